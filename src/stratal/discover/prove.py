"""Two graphs, one value: a proof is the common normal form of both.

`prove(lhs, rhs)` holds for the sizes of the graphs it is given, for all values of their inputs. No element is
looked at, so it costs the same at any size: whoever applies a rule can ask again at the sizes it is applied
to. Nothing is assumed but what `normal_form` says of records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stratal.base.errors import VerifyError
from stratal.discover.canonical import text_of
from stratal.discover.normal_form import Reader
from stratal.discover.terms import Unknown
from stratal.graph.node import Node


@dataclass(frozen=True)
class Proof:
    """What became of an attempt: `proved` with a `certificate`, or the `reason` why not.

    `exact`: to the bit, not only over the real numbers. `certificate` is the normal form of both sides.
    """

    proved: bool
    exact: bool = False
    certificate: str = ""
    reason: str = ""


def prove(
    lhs: Node, rhs: Node, inputs: Sequence[Node], names: Sequence[str] = (), *, bits: bool = True
) -> Proof:
    """Return a proof that two nodes have the same value for every value of `inputs`, or why there is none.

    `names` are those of the inputs in the certificate: `x0`, `x1`, ... where none are given. Without `bits`,
    nobody asks whether it holds to the bit.
    Raises: VerifyError where two inputs have one name, which would make them one.
    """
    if lhs.type != rhs.type:
        return Proof(False, reason=f"types differ: {lhs.type} and {rhs.type}")
    called = list(names) or [f"x{k}" for k in range(len(inputs))]
    if len(set(called)) != len(inputs) or not all(n.isidentifier() for n in called):
        raise VerifyError("prove: inputs need different names", got=", ".join(called))
    known = dict(zip(inputs, called, strict=True))
    try:
        left, right = (text_of(Reader(known).element(side)) for side in (lhs, rhs))
    except Unknown as unknown:
        return Proof(False, reason=f"unknown: {unknown}")
    if left != right:
        return Proof(False, reason=f"the forms differ: {left}  and  {right}")
    return Proof(True, exact=bits and _same_bits(lhs, rhs, known), certificate=left)


def _same_bits(lhs: Node, rhs: Node, known: dict[Node, str]) -> bool:
    try:
        left, right = (text_of(Reader(known, ring=False).element(side)) for side in (lhs, rhs))
    except Unknown:
        return False
    return left == right
