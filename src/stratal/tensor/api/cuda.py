"""What scripts ask before they choose a device. Programs run on the CPU; no GPU is used."""

from __future__ import annotations


def is_available() -> bool:
    """Return False: there is no GPU to compute on."""
    return False


def device_count() -> int:
    """Return 0, the number of GPUs there are to compute on."""
    return 0
