"""Tensor expressions as people write them: placeholders, `compute`, reductions, scalar functions, text."""

from stratal.loops.te import functions  # noqa: F401  fills the table of scalar functions
