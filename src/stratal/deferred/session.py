"""Sessions: what runs deferred graphs, and keeps the values of variables."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, Self

import numpy as np

from stratal.base import tree
from stratal.base.dims import Sym
from stratal.base.errors import AttributeValueError, CaptureError, DTypeError, ShapeError, StratalError
from stratal.base.interrupts import Block
from stratal.base.types import TensorType
from stratal.deferred.graph import Deferred, Graph, default_sessions, get_default_graph
from stratal.deferred.run import Run
from stratal.deferred.variable import Operation, Variable, node_in
from stratal.graph.node import Node
from stratal.runtime.storage import Storage
from stratal.tensor.arrays import Array
from stratal.tensor.tensor import Tensor, hold, tensor
from stratal.tensor.values.state import MODE, no_grad, tracing


class Session(Block):
    """Runs parts of one graph. Each session has values of its own for the graph's variables.

    A combination of fetches and fed tensors is compiled when it runs first, as `st.compile` would: once per
    dtype and size of what is fed, and where sizes change for many at once. `last` is the run made last, whose
    `graph`, `program`, `plan` and `explain()` show what was executed.
    """

    def __init__(self, graph: Graph | None = None) -> None:
        super().__init__()
        self.graph = graph if graph is not None else get_default_graph()
        self.last: Run | None = None
        self._runs: dict[Any, Run] = {}
        self._cells: dict[Variable, Tensor] = {}
        self._initialized: set[Variable] = set()
        self._closed = False

    def during(self) -> Generator[Self]:
        sessions = default_sessions()
        try:
            sessions.append(self)
            yield self
        finally:
            sessions.remove(self)
            self.close()

    def close(self) -> None:
        """Forget the values of variables; nothing can be run any more."""
        self._closed = True
        self._cells.clear()
        self._runs.clear()

    # -- running ---------------------------------------------------------------------------------------------
    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> Any:
        """Compute what `fetches` need and nothing else; return arrays in containers like theirs.

        Fetches are deferred tensors, variables and operations in lists, tuples and dicts; an operation that
        is not an assignment gives None. Tensors see the values variables had before the run, whatever is
        assigned in it. `feed_dict` gives placeholders, and any other tensor of the graph, a value.
        Raises: for missing or unfit feeds, for variables without a value, for tensors of another graph.
        """
        self._check_open()
        leaves, structure = tree.flatten(fetches)
        with tracing(None):  # the graph may be open
            fed = {self._node(k, "feed"): _as_fed(k, v) for k, v in (feed_dict or {}).items()}
        key = (tuple(map(self._fetch, leaves)), tuple(fed))
        found = self._runs.get(key)
        if found is None:
            found = self._runs[key] = Run(self.graph, key[0], list(fed), self._cell)
        sizes = _sizes(found.fed_types, list(fed.values()))
        found.check(self._initialized, sizes)
        with tracing(None), no_grad():
            values = found(list(fed.values()), sizes)
        self.last = found
        self._initialized.update(found.writes)
        return tree.unflatten(structure, [None if v is None else v.numpy()[()] for v in values])

    def _check_open(self) -> None:
        if self._closed:
            raise AttributeValueError("run: the session is closed", hint="make another Session")
        if MODE.trace not in (None, self.graph.trace):
            raise CaptureError(
                "run: a session cannot run while a function is captured or another graph is built",
                hint="call it outside",
            )

    def _fetch(self, x: Any) -> Node | Operation:
        if not isinstance(x, Operation):
            return self._node(x, "fetch")
        if x.graph is not self.graph and x.writes:
            raise CaptureError(
                "run: an operation belongs to another graph", got=", ".join(v.name for v in x.writes),
                hint="Session(graph) runs what was built in that graph",
            )  # fmt: skip
        return x

    def _node(self, x: Any, what: str) -> Node:
        if not isinstance(x, Deferred):
            got = f"{x!r}" if isinstance(x, str) else type(x).__name__
            raise DTypeError(
                f"run: cannot {what} this", got=got, hint=f"a deferred tensor is what one can {what}"
            )
        return x._node if x._trace is self.graph.trace and x._node is not None else node_in(self.graph, x)

    def _cell(self, variable: Variable) -> Tensor:
        """Return the tensor that holds a variable's value in this session."""
        if variable not in self._cells:
            self._cells[variable] = hold(Storage.empty(variable.type))
        return self._cells[variable]


class InteractiveSession(Session):
    """A session that is the default one from the start, for `tensor.eval()`."""

    def __init__(self, graph: Graph | None = None) -> None:
        super().__init__(graph)
        default_sessions().append(self)

    def close(self) -> None:
        """Forget the values of variables, and be the default no longer."""
        super().close()
        if self in default_sessions():
            default_sessions().remove(self)


# -- what is fed ---------------------------------------------------------------------------------------------
def _as_fed(target: Deferred, value: Any) -> Tensor:
    """Return a value as a tensor of the dtype of what it stands for. Raises: where numbers would be lost."""
    if isinstance(value, Deferred):
        raise DTypeError("run: a deferred tensor has no value to feed", got=repr(value))
    wanted = target.type.dtype.np
    try:
        array = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
    except (TypeError, ValueError) as error:
        if isinstance(error, StratalError):
            raise
        raise ShapeError("run: what is fed is no array", got=str(error)) from None
    if array.dtype == wanted:
        return value if isinstance(value, Tensor) else tensor(array)
    made = _converted(array, wanted)
    if made is None:
        raise DTypeError(
            "run: the dtype of what is fed does not fit", got=f"{array.dtype} for {target!r}",
            hint="numbers of another kind, or too large for the dtype, are converted by x.astype(...) only",
        )  # fmt: skip
    return tensor(made)


def _converted(array: Array, dtype: Any) -> Array | None:
    """Return numbers in another dtype: floats may be rounded, whole numbers must stay what they are."""
    if array.dtype.kind in "iu" and np.dtype(dtype).kind in "iu":
        made = array.astype(dtype)
        return made if np.array_equal(made, array) else None
    if array.dtype.kind in "OSUMm" or not np.can_cast(array.dtype, dtype, "same_kind"):
        return None
    with np.errstate(over="ignore"):  # what is too large is infinite
        return array.astype(dtype)


def _sizes(types: list[TensorType], fed: list[Tensor]) -> dict[str, tuple[int, int]]:
    """Return for each open size the tensor and the axis that say what it is."""
    found: dict[str, tuple[int, int]] = {}
    for k, (type_, value) in enumerate(zip(types, fed, strict=True)):
        if len(type_.shape) != value.ndim:
            raise ShapeError("run: what is fed has another rank", got=f"{value.type} for {type_}")
        for axis, (wanted, n) in enumerate(zip(type_.shape, value.shape, strict=True)):
            if not isinstance(wanted, Sym):
                if wanted != n:
                    raise ShapeError(
                        "run: what is fed has another shape", got=f"{value.type} for {type_}",
                        hint=f"axis {axis} should have size {wanted}",
                    )  # fmt: skip
                continue
            if not n:
                raise ShapeError("run: an open size is at least 1", got=f"{value.type} for {type_}")
            first, its_axis = found.setdefault(str(wanted), (k, axis))
            known = fed[first].shape[its_axis]
            if known != n:
                raise ShapeError(
                    "run: sizes that are one size in the graph differ", got=f"{wanted} is {known} and {n}",
                    hint="a name in place of None makes another size: placeholder(float32, ['queries', 8])",
                )  # fmt: skip
    return found
