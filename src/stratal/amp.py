"""Mixed precision under the names of `torch.amp`."""

from __future__ import annotations

from stratal.optim.grad_scaler import GradScaler
from stratal.tensor.autocast import autocast, get_autocast_dtype, is_autocast_enabled

__all__ = ["GradScaler", "autocast", "get_autocast_dtype", "is_autocast_enabled"]
