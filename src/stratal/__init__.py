"""Stratal: deep learning, the whole stack in Python."""

__version__ = "0.1.0"
