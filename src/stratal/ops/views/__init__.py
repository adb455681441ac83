"""Records that move elements without computing on them."""
