"""Records that make tensors of nothing: iota, random bits."""
