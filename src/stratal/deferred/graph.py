"""Graphs that are built first and run later, and the tensors they are made of.

A graph is a trace that stays open. Its tensors are tensors like all others, so every function of Stratal
takes them while the graph is open (`with graph:`); their operators and methods open it by themselves.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Self

from stratal.base.dtypes import uint64
from stratal.base.errors import (
    AttributeValueError,
    CaptureError,
    NotDifferentiableError,
    StratalError,
    UndecidedError,
)
from stratal.base.interrupts import Block
from stratal.graph.node import Input, Node
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.state import MODE, tracing
from stratal.tensor.values.trace import Trace

if TYPE_CHECKING:
    from stratal.deferred.variable import Variable

LARGEST = 1 << 30  # a size that is left open
_OPEN = "the size is open until a run: give placeholder a number in place of None"


class GraphTrace(Trace):
    """What a graph knows of its tensors, and of those from outside that it reads."""

    def __init__(self, graph: Graph) -> None:
        super().__init__("a deferred graph")
        self.graph = graph

    def made(self, tensor: Tensor) -> None:
        if type(tensor) is Tensor:
            tensor.__class__ = Deferred

    def reads(self, tensor: Tensor) -> bool:
        """Return False: tensors from outside have their values while a graph is being built."""
        return False

    def write(self, tensor: Tensor, node: Node, track: int) -> None:
        """Give a tensor of the graph another value; of others, only the states of random generators, which
        each run carries on.
        """
        inside = tensor._trace is self
        if inside and isinstance(tensor._node and tensor._node.op, Input):
            raise CaptureError(
                "deferred: a placeholder or variable cannot be changed in place", got=str(tensor.type),
                hint="assign(variable, value) is an operation for a session to run",
            )  # fmt: skip
        if not inside and (tensor.dtype is not uint64 or tensor.ndim):
            raise CaptureError(
                "deferred: a graph cannot change a tensor from outside of it", got=str(tensor.type),
                hint="make it a Variable; modules that keep statistics: call eval() first",
            )  # fmt: skip
        super().write(tensor, node, track)

    def own_value(self, tensor: Tensor, leaf: bool) -> None:
        raise CaptureError(
            "deferred: what takes gradients in a graph is a Variable", got=str(tensor.type),
            hint="make modules and parameters before the graph is opened, variables inside",
        )  # fmt: skip

    def refusal(self, tensor: Tensor, asked: str) -> StratalError:
        node = tensor._node
        got = f"{tensor.type}" + (f" from {node.where[0]}" if node is not None and node.where else "")
        if asked not in ("this op", "an in-place operator"):
            return CaptureError(
                f"deferred: Python asks for a value ({asked}) that exists only where a session runs", got=got,
                hint="Session().run(tensor, feed_dict) returns it as an array",
            )  # fmt: skip
        if MODE.trace is None:
            return CaptureError(
                "deferred: the graph of this tensor is not open", got=got,
                hint="with tensor.graph: ..., or the function of this name in stratal.deferred",
            )  # fmt: skip
        return CaptureError(
            "deferred: a tensor is used in another graph than its own", got=got,
            hint="build it inside the graph that uses it",
        )  # fmt: skip


class Graph(Block):
    """Nodes to be run by a session. As a context manager it is the default graph, and open: every function of
    Stratal builds nodes of it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.trace = GraphTrace(self)
        self.variables: list[Variable] = []

    def as_default(self) -> Graph:
        """Return this graph, for `with graph.as_default():`."""
        return self

    def during(self) -> Generator[Self]:
        stack = _DEFAULT.stack
        try:
            stack.append(self)
            with tracing(self.trace):
                yield self
        except GeneratorExit as left:
            if isinstance(left.__context__, UndecidedError):
                left.__context__.hint = _OPEN
            raise
        finally:
            stack.remove(self)


class _Default(threading.local):
    def __init__(self) -> None:
        self.stack: list[Graph] = []
        self.graph = Graph()
        self.sessions: list[Runs] = []


class Runs(Protocol):
    """What runs graphs: a session."""

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> Any: ...


_DEFAULT = _Default()


def get_default_graph() -> Graph:
    """Return the graph that is open, or this thread's own."""
    return _DEFAULT.stack[-1] if _DEFAULT.stack else _DEFAULT.graph


def reset_default_graph() -> None:
    """Begin a new default graph. Raises: CaptureError inside `with graph:`."""
    if _DEFAULT.stack:
        raise CaptureError("reset_default_graph: a graph is open", hint="call it outside of `with graph:`")
    _DEFAULT.graph = Graph()


def default_sessions() -> list[Runs]:
    """Return the sessions of this thread that are open as defaults, the current one last."""
    return _DEFAULT.sessions


def get_default_session() -> Runs | None:
    """Return the session whose `with` block this is, or the interactive one."""
    return _DEFAULT.sessions[-1] if _DEFAULT.sessions else None


def run_by_default(fetch: Any, feed_dict: Mapping[Any, Any] | None, session: Runs | None) -> Any:
    """Run a tensor or an operation in a session, or in the default one."""
    found = session or get_default_session()
    if found is None:
        raise AttributeValueError(
            "eval: there is no default session", hint="with Session(): ..., or pass one"
        )
    return found.run(fetch, feed_dict)


class Deferred(Tensor):
    """A tensor without a value: a node of a graph."""

    __slots__ = ()

    @property
    def graph(self) -> Graph:
        """The graph this tensor belongs to."""
        assert isinstance(self._trace, GraphTrace)
        return self._trace.graph

    def __repr__(self) -> str:
        node = self._node
        where = f" from {node.where[0]}" if node is not None and node.where else ""
        return f"<deferred {self.type}{where}>"

    def eval(self, feed_dict: Mapping[Any, Any] | None = None, session: Runs | None = None) -> Any:
        """Run this tensor in a session, or in the default one, and return its value as an array."""
        return run_by_default(self, feed_dict, session)

    def backward(self, *args: Any, **kwargs: Any) -> None:
        raise NotDifferentiableError(
            "backward: a deferred tensor has no gradient to add to", got=str(self.type),
            hint="gradients(y, x) builds its graph; an optimizer's minimize(y) uses it",
        )  # fmt: skip


def graph_of(*values: Any) -> Graph:
    """Return the graph of the first deferred tensor among values and lists of them, or the default one."""
    for value in values:
        for x in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(x, Deferred):
                return x.graph
    return get_default_graph()


def builds(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function open the graph of its arguments by itself, unless one is open."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if MODE.trace is not None:
            return function(*args, **kwargs)
        try:
            with tracing(graph_of(*args, *kwargs.values()).trace):
                return function(*args, **kwargs)
        except UndecidedError as error:
            error.hint = _OPEN
            raise

    return wrapper


_NOT_BUILDING = {"__init__", "__hash__", "__reduce__", "__copy__", "__deepcopy__", "__repr__", "backward"}


def _install() -> None:
    """Let all operators, methods and properties of tensors open the graph of a deferred one."""
    for name, value in vars(Tensor).items():
        if isinstance(value, property) and not name.startswith("_"):
            get, put = (f and builds(f) for f in (value.fget, value.fset))
            setattr(Deferred, name, property(get, put, doc=value.__doc__))
        elif (name not in _NOT_BUILDING and callable(value)) or isinstance(value, functools.partialmethod):
            setattr(Deferred, name, builds(getattr(Tensor, name)))


_install()
