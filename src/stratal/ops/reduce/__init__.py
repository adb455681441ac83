"""Records that combine elements along axes."""
