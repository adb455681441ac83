"""Records that say what must not be merged, moved or differentiated."""
