"""Discrete Fourier transforms: the array API's `fft`, and PyTorch's names of the two-dimensional ones.

`norm` says where the factor 1/n goes: "backward" (the default) into the inverse, "forward" into the
transform, "ortho" as 1/sqrt(n) into both. `n`, or `s` for several axes, cuts or pads an axis with zeros
first; an entry of -1 leaves it. `axis` and `axes` are also called `dim`, as in PyTorch. float32 and integers
transform to complex64, float64 to complex128; 16-bit floats are refused. They are linear, and differentiable
to any order.
"""

from stratal.fft import transforms
from stratal.fft.transforms import *  # noqa: F403  listed in `__all__` there
from stratal.tensor.api.explained import explain_all

__all__ = transforms.__all__
explain_all(globals())
