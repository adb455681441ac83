"""Records that act on each element alone."""
