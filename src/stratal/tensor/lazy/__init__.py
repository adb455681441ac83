"""Lazy work: what waits, which of it runs together, and the programs it runs as."""
