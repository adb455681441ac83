"""Batches, graph to graph: the same computation on many rows at once.

What comes out is made of ordinary nodes, so it can be differentiated, and batched again.
"""

from stratal.batching.batch import batch, batch_graph

__all__ = ["batch", "batch_graph"]
