"""How much memory training will take, answered before it runs and without the memory."""

from stratal.forecast.estimate import DEVICES, Estimate, estimate

__all__ = ["DEVICES", "Estimate", "estimate"]
