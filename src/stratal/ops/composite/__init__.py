"""Named functions of primitives: softmax, layer norm, attention, losses."""
