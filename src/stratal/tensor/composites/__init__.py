"""Functions NumPy and PyTorch users reach for that are made of other functions, by theme."""
