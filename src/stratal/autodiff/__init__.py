"""Derivatives, graph to graph: reverse mode, forward mode and the numerical check of both.

A derivative is made of ordinary nodes, so it passes through the same rewrites as any program and can be
differentiated again, to any order.
"""

from stratal.autodiff.check import GradientMismatchError, GradReport, check_grad, trace
from stratal.autodiff.jvp import jvp, jvp_graph
from stratal.autodiff.vjp import grad_graph, reached, value_and_grad_graph, vjp, vjp_graph

__all__ = [
    "GradReport",
    "GradientMismatchError",
    "check_grad",
    "grad_graph",
    "jvp",
    "jvp_graph",
    "reached",
    "trace",
    "value_and_grad_graph",
    "vjp",
    "vjp_graph",
]  # fmt: skip
