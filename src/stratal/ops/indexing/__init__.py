"""Records that read or write at computed places, and sort."""
