"""What a fused kernel computes as a graph of its own, under the name that records of measurements give it."""

from __future__ import annotations

from stratal.graph.graph import Graph, substitute
from stratal.graph.node import Const, Input, Item, Node, graph_input, topological
from stratal.graph.partition import Group, Partition


def fused_groups(partition: Partition) -> list[Group]:
    """Return the groups that compute several nodes in one kernel."""
    kinds = ("pointwise", "rows", "columns", "contract")
    return [g for g in partition.groups if g.kind in kinds and len(g.members) > 1]


def kernel_graph(group: Group, partition: Partition) -> Graph:
    """Return what a group computes as a graph of its own: what it reads from memory are the inputs."""
    members = set(group.members)

    def is_read(node: Node) -> bool:
        constant = isinstance(node.op, Const) and node.shape != ()
        return node not in members and (
            isinstance(node.op, (Input, Item)) or constant or node in partition.stored
        )

    read = [n for n in topological(group.members, stop=is_read) if is_read(n)]
    fresh = {node: graph_input(f"x{k}", node.aval) for k, node in enumerate(read)}
    results = [m for m in group.members if m in partition.stored]
    return Graph([fresh[n] for n in read], substitute(results, fresh), name="kernel")


def fusion_key(kernel: Graph) -> str:
    """Return the name under which records hold whether a kernel is better taken apart."""
    return f"fusion {kernel.digest}"
