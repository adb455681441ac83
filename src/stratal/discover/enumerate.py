"""Small graphs over some ops: what the records' type rules accept, smallest first, one per value.

Types come from the records' samples, the sizes of different axes made different wherever a type rule allows
it; attributes from small sets by the name of their field, else from the samples. A graph whose value some
smaller graph has is reported with that one as a pair, and nothing larger is built on it: whatever could be
would be rewritten by the pair.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from stratal.base.dtypes import DType, float32
from stratal.base.errors import AttributeValueError, StratalError
from stratal.base.types import TensorType
from stratal.discover.fingerprint import Array, digest, draws, evaluate
from stratal.discover.terms import Unknown
from stratal.graph.node import Node, graph_input, make, topological
from stratal.graph.op import REGISTRY, Op

MOST_ELEMENTS: Final = 4096
MOST_AXES: Final = 5
MOST_SAMPLES: Final = 3  # of a record, whose types inputs have
MOST_ATTRIBUTES: Final = 8  # ways to call an op on operands of given types that come from samples
DRAWS: Final = (11, 23)
MORE_DRAWS: Final = tuple(range(100, 116))  # for pairs without a proof: an extreme may agree by chance
Types = tuple[TensorType, ...]


class Pair(NamedTuple):
    """Two graphs with one fingerprint, the smaller one second, and the inputs of both."""

    larger: Node
    smaller: Node
    inputs: tuple[Node, ...]


# -- types ---------------------------------------------------------------------------------------------------
def signatures(ops: Sequence[type[Op]], inputs: int = 3, dtype: DType = float32) -> list[Types]:
    """Return types of `inputs` inputs on which the ops can be called, from the records' samples.

    Those of most sizes come first: rules found there are the more general ones.
    """
    found: dict[tuple[str, ...], Types] = {}
    for cls in ops:
        for op, given in _samples(cls, dtype):
            if not 1 <= len(given) <= inputs:
                continue
            for others in itertools.product(_further(op, given, ops), repeat=inputs - len(given)):
                types = (*given, *others)
                found.setdefault(tuple(sorted(map(str, types))), types)
    return sorted(found.values(), key=lambda types: -len({n for t in types for n in t.ints}))


def _samples(cls: type[Op], dtype: DType) -> list[tuple[Op, Types]]:
    """Return calls of a record's samples on matrices, and the first on any, sizes made different."""
    fit = [
        (sample.op, sample.types)
        for sample in cls.samples()
        if sample.types and all(t.dtype is dtype and min(t.ints, default=2) > 1 for t in sample.types)
    ]
    matrices = [f for f in fit if max(t.ndim for t in f[1]) == 2]
    chosen = [*matrices[:MOST_SAMPLES], *(f for f in fit[:1] if f not in matrices)]
    return [(op, different(op, types)) for op, types in chosen]


def different(op: Op, types: Types) -> Types:
    """Return types an op accepts whose sizes are equal only where the op's type rule asks for it."""
    sizes = [n for t in types for n in t.ints]
    group = [sizes.index(n) for n in sizes]
    for k in range(len(sizes)):
        alone = [*group[:k], len(sizes) + k, *group[k + 1 :]]
        if group.count(group[k]) > 1 and _accepts(op, _sized(types, sizes, alone)):
            group = alone
    return _sized(types, sizes, group)


def _sized(types: Types, sizes: Sequence[int], group: Sequence[int]) -> Types:
    """Return types with one size per group, in the order the sizes had."""
    order = sorted(set(group), key=lambda g: (min(n for n, h in zip(sizes, group, strict=True) if h == g), g))
    values = (2, 3, 7, 11) if len(order) <= 4 else range(2, 2 + len(order))
    size = dict(zip(order, values, strict=False))
    flat = iter(size[g] for g in group)
    return tuple(t.with_shape([next(flat) for _ in t.shape]) for t in types)


def _accepts(op: Op, types: Types) -> bool:
    try:
        op.infer(*types)
    except StratalError:
        return False
    return True


def _further(op: Op, given: Types, ops: Sequence[type[Op]]) -> list[TensorType]:
    """Return types of one more input: those there are, one that the op takes after its result, vectors."""
    found = list(given)
    sizes = sorted({n for t in given for n in t.ints})
    fresh = max(sizes) + (6 if len(sizes) <= 4 else 1)
    if len(given) == 2:
        out = op.infer(*given)
        last = given[-1]
        for shape in itertools.product((*sizes, fresh), repeat=last.ndim) if last.ndim <= 2 else ():
            chained = last.with_shape(shape)
            if isinstance(out, TensorType) and shape[-1] == fresh and _accepts(op, (out, chained)):
                found.append(chained)
    if any(o.name == "broadcast" for o in ops):
        found += [given[0].with_shape((n,)) for n in sizes]
    return list(dict.fromkeys(found))


# -- attributes ----------------------------------------------------------------------------------------------
def _subsets(ndim: int) -> list[tuple[int, ...]]:
    return [c for k in range(1, ndim + 1) for c in itertools.combinations(range(ndim), k)]


CHOICES: Final[Mapping[str, Callable[[Types, Types], Sequence[Any]]]] = {
    "axis": lambda types, known: range(types[0].ndim),
    "axes": lambda types, known: [*_subsets(max([types[0].ndim, *(t.ndim for t in known)])), ()],
    "perm": lambda types, known: list(itertools.permutations(range(types[0].ndim)))[1:],
    "shape": lambda types, known: list(dict.fromkeys(t.shape for t in known)),
}
"""Values by the name of a field, from the operands' types and those of the graph's inputs."""


def _calls(cls: type[Op], types: Types, known: Types) -> Iterator[Op]:
    """Yield the op with every choice of attributes for operands of these types that its type rule accepts."""
    names = cls._fields
    if names == ("axes",):
        values: Iterable[tuple[Any, ...]] = [(a,) for a in _subsets(types[0].ndim)]
    elif all(n in CHOICES for n in names):
        values = itertools.product(*(CHOICES[n](types, known) for n in names))
    elif names == ("start", "stop", "step"):
        values = _cuts(types[0], known)
    else:
        values = _sampled(cls, types)
    for attributes in values:
        op = cls(*attributes)
        if _accepts(op, types):
            yield op


def _cuts(x: TensorType, known: Types) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield the parts of one axis before and after each size that other inputs have."""
    sizes = sorted({n for t in known for n in t.ints})
    for axis, n in enumerate(x.ints):
        for low, high in {(a, b) for s in sizes if s < n for a, b in ((0, s), (s, n))}:
            start, stop = [0] * x.ndim, list(x.ints)
            start[axis], stop[axis] = low, high
            yield tuple(start), tuple(stop), (1,) * x.ndim


def _sampled(cls: type[Op], types: Types) -> list[tuple[Any, ...]]:
    """Return attributes of a record's samples on operands of as many axes."""
    ranks = [t.ndim for t in types]
    found = [tuple(s.op.attributes.values()) for s in cls.samples() if [t.ndim for t in s.types] == ranks]
    return list(dict.fromkeys(found))[:MOST_ATTRIBUTES]


# -- graphs --------------------------------------------------------------------------------------------------
class Enumeration:
    """Builds graphs of up to `size` ops on inputs of given types, and finds those that agree.

    Ops named in `once` are not applied to what they made already: few rules, and many graphs. `seen` counts
    graphs, `unknown` those that have no fingerprint.
    """

    def __init__(
        self, ops: Sequence[type[Op]], types: Types, size: int, once: Collection[str] = ()
    ) -> None:
        self.once = frozenset(once)
        self.ops = sorted(ops, key=lambda cls: cls.name)
        self.types = types
        self.size = size
        self.inputs = tuple(graph_input(f"x{k}", t) for k, t in enumerate(types))
        self.levels: list[list[Node]] = [list(self.inputs)]
        self.number = {x: k for k, x in enumerate(self.inputs)}
        self.values: dict[Node, list[Array]] = {}
        self.found: dict[tuple[str, bytes], Node] = {}
        self.seen = 0
        self.unknown = 0
        drawn = [draws(types, seed) for seed in DRAWS]
        for k, x in enumerate(self.inputs):
            self.values[x] = [d[k] for d in drawn]
            self.found[str(x.type), digest(self.values[x])] = x

    def pairs(self, until: float = math.inf) -> Iterator[Pair]:
        """Yield graphs that agree, smallest first, until all are built or the time (`monotonic`) is up."""
        for size in range(1, self.size + 1):
            self.levels.append([])
            for made in self._built(size):
                if time.monotonic() > until:
                    return
                pair = self._known(made, size)
                if pair is not None:
                    yield pair

    def _built(self, size: int) -> Iterator[Node]:
        for cls in self.ops:
            arity = cls.arity if cls.arity is not None else 2
            for split in _splits(size - 1, arity):
                for operands in itertools.product(*(tuple(self.levels[k]) for k in split)):
                    if cls.commutative and not self._in_order(operands):
                        continue
                    if cls.name in self.once and _stands_on(cls, operands):
                        continue
                    types = tuple(x.aval for x in operands)
                    for op in _calls(cls, types, self.types):
                        yield make(op, *operands)

    def _in_order(self, operands: Sequence[Node]) -> bool:
        numbers = [self.number[x] for x in operands]
        return numbers == sorted(numbers)

    def _known(self, made: Node, size: int) -> Pair | None:
        """Return the pair of a graph and an earlier one of its value; else note the graph."""
        if made in self.values or not isinstance(made.type, TensorType) or made.aval.ndim > MOST_AXES:
            return None
        if not 0 < math.prod(made.aval.ints) <= MOST_ELEMENTS:
            return None
        self.seen += 1
        try:
            values = [evaluate(made, [self.values[x][k] for x in made.inputs]) for k in range(len(DRAWS))]
        except Unknown:
            self.unknown += 1
            return None
        key = str(made.type), digest(values)
        smaller = self.found.get(key)
        if smaller is not None:
            return Pair(made, smaller, self.inputs)
        self.found[key] = made
        self._note(made, values, size)
        return None

    def _note(self, made: Node, values: list[Array], size: int) -> None:
        self.values[made] = values
        self.number[made] = len(self.number)
        self.levels[size].append(made)

    def confirmed(self, pair: Pair) -> bool:
        """Return whether a pair agrees in more draws. If not, larger graphs are built on both sides."""
        larger, smaller = pair.larger, pair.smaller
        if all(np.array_equal(self._value(larger, s), self._value(smaller, s)) for s in MORE_DRAWS):
            return True
        self._note(larger, [self._value(larger, s) for s in DRAWS], len(self.levels) - 1)
        return False

    def _value(self, node: Node, seed: int) -> Array:
        return value_of(node, dict(zip(self.inputs, draws(self.types, seed), strict=True)))


def value_of(node: Node, inputs: Mapping[Node, Array]) -> Array:
    """Return a graph's value in the field for values of its inputs. Raises: Unknown."""
    values = dict(inputs)
    for below in topological([node], stop=values.__contains__):
        if below not in values:
            values[below] = evaluate(below, [values[x] for x in below.inputs])
    return values[node]


def _splits(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield the ways to divide a number of ops among operands."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _splits(total - first, parts - 1):
            yield (first, *rest)


def records(names: Iterable[str]) -> list[type[Op]]:
    """Return records by name. Raises: AttributeValueError where there is no such op."""
    wanted = list(names)
    unknown = [n for n in wanted if n not in REGISTRY]
    if unknown:
        raise AttributeValueError(
            "discover: no such op", got=", ".join(unknown), hint="`stratal ops` lists them"
        )
    return [REGISTRY[n] for n in wanted]


def _stands_on(cls: type[Op], operands: Sequence[Node]) -> bool:
    return any(isinstance(x.op, cls) for x in topological(operands))
