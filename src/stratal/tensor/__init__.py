"""What users hold: tensors, functions on them, random numbers, gradients, capture."""
