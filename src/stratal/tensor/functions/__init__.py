"""Functions of tensors, each one op or a few."""
