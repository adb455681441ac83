"""Records for control flow: regions with threaded state, host calls."""
