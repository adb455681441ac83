"""Views between scores and what they are made of, moved to where values are small.

    broadcast(rows[..., L, 1])             ->  broadcast(reshape(rows)[..., L])
    reshape(q k^T), of heads alone         ->  reshape(q) reshape(k)^T
    reshape(p) v, of heads alone           ->  reshape(p reshape(v))
"""

from __future__ import annotations

from collections.abc import Sequence

from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.ops.linear.contract import parse_spec
from stratal.optimize.online.scores import AXES


def squeezed(node: Node) -> tuple[str, Node] | None:
    """Repeat values of rows [..., L, 1] as [..., L]: without axes that are stretched."""
    if node.op.name != "broadcast":
        return None
    (x,) = node.inputs
    axes = node.op.attributes["axes"]
    kept = [k for k, a in enumerate(axes) if x.shape[k] == node.shape[a]]
    if len(kept) == len(axes):
        return None
    b = Builder(node.where)
    rows = b.reshape(x, shape=tuple(x.shape[k] for k in kept))
    return "squeezed", b.broadcast(rows, shape=node.shape, axes=tuple(axes[k] for k in kept))


def unfolded(node: Node, least: int) -> tuple[str, Node] | None:
    """Move a reshape that splits or joins heads of scores, of at least that many bytes, to smaller values."""
    if node.op.name == "reshape" and node.aval.nbytes >= least:
        (product,) = node.inputs
        grows = all(i.aval.nbytes < node.aval.nbytes for i in product.inputs)
        if product.op.name == "contract" and grows and _of_heads(node, product) and _leading(product):
            heads = node.shape[:-2]
            return "unfolded", _product(Builder(node.where), product, product.inputs, heads)
    if node.op.name != "contract" or not _leading(node):
        return None
    for side, x in enumerate(node.inputs):
        shrinks = x.aval.nbytes > max(least - 1, node.aval.nbytes, node.inputs[1 - side].aval.nbytes)
        if x.op.name == "reshape" and shrinks and _of_heads(x, x.inputs[0]):
            operands = list(node.inputs)
            (operands[side],) = x.inputs
            b = Builder(node.where)
            product = _product(b, node, operands, x.inputs[0].shape[:-2])
            return "unfolded", b.reshape(product, shape=node.shape)
    return None


def _of_heads(node: Node, x: Node) -> bool:
    return x.aval.ndim >= 2 and node.shape[-2:] == x.shape[-2:]


def _leading(node: Node) -> bool:
    """Return whether a product is one of matrices, all other axes in front."""
    spec = parse_spec(node.op.attributes["spec"])
    heads = len(spec.batch)
    same = spec.left[:heads] == spec.right[:heads] == spec.out[:heads] == spec.batch
    return same and {len(spec.left), len(spec.right), len(spec.out)} == {heads + 2}


def _product(b: Builder, node: Node, operands: Sequence[Node], heads: tuple[int, ...]) -> Node:
    """Return a product of matrices with other axes in front."""
    attributes = node.op.attributes
    spec = parse_spec(attributes["spec"])
    names = dict(zip(dict.fromkeys(spec.left[-2:] + spec.right[-2:]), "wxyz", strict=False))
    left, right, out = (
        AXES[: len(heads)] + "".join(names[c] for c in letters[-2:]) for letters in spec[:3]
    )
    x, y = (_reshaped(b, o, (*heads, *o.shape[-2:])) for o in operands)
    return b.contract(x, y, spec=f"{left},{right}->{out}", dtype=attributes["dtype"])


def _reshaped(b: Builder, x: Node, shape: tuple[int, ...]) -> Node:
    return x if x.shape == shape else b.reshape(x, shape=shape)
