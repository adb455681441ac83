"""Proved rewrites of a graph, found by a search and chosen by their prices."""
