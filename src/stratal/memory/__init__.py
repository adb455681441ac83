"""Memory planning: when values live, which may share memory, where each lies in the arena."""
