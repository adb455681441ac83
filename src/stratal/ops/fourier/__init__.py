"""Discrete Fourier transforms: ops on complex numbers, and the one in real numbers they become."""
