"""Functions with derivatives of their own, given by rules of the user's."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stratal.base import tree
from stratal.base.errors import AttributeValueError, CaptureError, DTypeError, ShapeError
from stratal.base.types import TensorType
from stratal.graph.graph import Graph
from stratal.graph.node import make
from stratal.ops.control.custom import CustomJvp, CustomVjp
from stratal.tensor.build import as_tensor, where_now
from stratal.tensor.functions.creation import zeros
from stratal.tensor.functions.elementwise import cast
from stratal.tensor.tensor import Tensor
from stratal.tensor.transformations.regions import Operands, Region, Slots, captured, closed, finished
from stratal.tensor.values.state import MODE


class _Depth(threading.local):
    """How often a function stands among the rules being traced in this thread, by its id."""

    def __init__(self) -> None:
        self.of: dict[int, int] = {}


_DEPTH = _Depth()
_ORDERS = 4  # derivatives that rules which call their own function are followed to


class _Custom:
    """What custom_vjp and custom_jvp share: calling the function with positional arguments."""

    name = ""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.label = getattr(function, "__name__", type(function).__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            bound = inspect.signature(self.function).bind(*args, **kwargs)
            bound.apply_defaults()
            if bound.kwargs:
                raise AttributeValueError(
                    f"{self.name}: takes positional arguments", got=", ".join(bound.kwargs)
                )
            args = bound.args
        if not MODE.grad:
            return self.function(*args)
        depth = _DEPTH.of.get(id(self), 0)
        given, primal = self.primal(args)
        if depth == _ORDERS:
            return self.called(
                given, primal, [], lambda body: CustomVjp(body, None, None, len(given.tensors))
            )
        _DEPTH.of[id(self)] = depth + 1
        try:
            return self.with_rule(given, primal)
        finally:
            _DEPTH.of[id(self)] = depth

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def with_rule(self, given: Slots, primal: Region) -> Any:
        """Return the result, with the rule beside it."""
        raise NotImplementedError

    def called(
        self, given: Slots, primal: Region, rules: Sequence[Region], op: Callable[..., CustomVjp | CustomJvp]
    ) -> Any:
        """Return the result of the op made of the closed graphs of the function and its rules."""
        regions = (primal, *rules)
        outer = list(dict.fromkeys(n for r in regions for n in captured(r.results, r.inputs)))
        graphs = [closed(r.name, r.inputs, outer, r.results) for r in regions]
        ops = Operands().tensors(given.tensors).outer(outer, [primal])
        node = make(op(*graphs), *ops.nodes, where=where_now())
        return primal.extra.filled(finished(node, ops.track, [primal], len(primal.results), 0))

    def region(self, role: str, types: Sequence[TensorType], body: Callable[[list[Tensor]], Any]) -> Region:
        """Trace one of the functions. Raises: CaptureError where it changes something around it."""
        region = Region(f"{self.label}.{role}", types, body, [])
        if region.changed or region.tokens:
            raise CaptureError(
                f"{self.name}: the {role} must not change anything around it",
                got="a random generator, a tensor of its own or st.host_call",
                hint="hand in random keys and tensors as arguments, and return new values",
            )  # fmt: skip
        return region

    def primal(self, args: tuple[Any, ...]) -> tuple[Slots, Region]:
        given = Slots(args)

        def body(fresh: list[Tensor]) -> tuple[list[Tensor], Any]:
            found = Slots(self.function(*given.filled(fresh)))
            return found.tensors, found

        return given, self.region("function", given.types, body)

    def need(self, rule: Any, method: str) -> None:
        if rule is None:
            raise AttributeValueError(f"{self.name}: has no rule yet", got=self.label, hint=f"call {method}")


class custom_vjp(_Custom):
    """A function whose reverse mode is given by two functions.

        f = st.custom_vjp(f)
        f.defvjp(forward, backward)

    `forward(*args)` returns (result, anything); `backward(anything, cotangent of the result)` returns a tuple
    of one cotangent per argument, None for zero. Both are differentiated in turn for derivatives of higher
    order. Usable under vmap, in compiled functions and in loops; forward mode is an error, as is a gradient
    of what the function reads from around it.
    """

    name = "custom_vjp"
    forward: Callable[..., Any] | None = None
    backward: Callable[..., Any] | None = None

    def defvjp(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        """Set both rules."""
        self.forward, self.backward = forward, backward

    def with_rule(self, given: Slots, primal: Region) -> Any:
        self.need(self.forward, "defvjp(forward, backward)")
        first = self.region("forward rule", given.types, functools.partial(self._forward, given))
        result, residuals = first.extra
        same = [t.type for t in result.tensors] == [n.aval for n in primal.results]
        if result.structure != primal.extra.structure or not same:
            raise ShapeError(
                "custom_vjp: the forward rule must return (result, residuals), result as the function's",
                got=f"{result.structure} for {primal.extra.structure}",
            )
        seeds = [t for t in result.types if t.dtype.is_inexact]
        back = self.region(
            "backward rule",
            [*residuals.types, *seeds],
            functools.partial(self._back, given, result, residuals),
        )

        def op(body: Graph, forward: Graph, backward: Graph) -> CustomVjp:
            return CustomVjp(body, forward, backward, len(given.tensors))

        return self.called(given, primal, [first, back], op)

    def _forward(self, given: Slots, fresh: list[Tensor]) -> tuple[list[Tensor], Any]:
        assert self.forward is not None
        found = self.forward(*given.filled(fresh))
        if not isinstance(found, tuple) or len(found) != 2:
            raise DTypeError("custom_vjp: the forward rule must return (result, residuals)",
                             got=type(found).__name__)  # fmt: skip
        result, residuals = map(Slots, found)
        return [*result.tensors, *residuals.tensors], (result, residuals)

    def _back(
        self, given: Slots, result: Slots, residuals: Slots, fresh: list[Tensor]
    ) -> tuple[list[Tensor], Any]:
        assert self.backward is not None
        kept, seeds = fresh[: len(residuals.tensors)], iter(fresh[len(residuals.tensors) :])
        cotangents = [
            next(seeds) if t.dtype.is_inexact else zeros(t.shape, dtype=t.dtype) for t in result.types
        ]
        found = self.backward(residuals.filled(kept), result.filled(cotangents))
        return _like_arguments(found, given), None


class custom_jvp(_Custom):
    """A function whose derivative is given by a function of tangents, linear in them.

        f = st.custom_jvp(f)
        f.defjvp(rule)

    `rule(primals, tangents)`, tuples of one entry per argument, returns (result, tangent of the result).
    Reverse mode runs its transpose. Usable under vmap, in compiled functions and in loops; a derivative by
    what the function reads from around it is an error.
    """

    name = "custom_jvp"
    rule: Callable[..., Any] | None = None

    def defjvp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule, and return it: also a decorator."""
        self.rule = rule
        return rule

    def with_rule(self, given: Slots, primal: Region) -> Any:
        self.need(self.rule, "defjvp(rule)")
        count = len(given.types)
        moves = [t for t in given.types if t.dtype.is_inexact]
        rule = self.region(
            "rule", [*given.types, *moves], functools.partial(self._tangent, given, primal.extra)
        )

        def op(body: Graph, tangent: Graph) -> CustomJvp:
            own, rest = tangent.inputs[:count], tangent.inputs[count:]
            moved, others = rest[: len(moves)], rest[len(moves) :]
            return CustomJvp(body, Graph([*own, *others, *moved], tangent.outputs, name=rule.name), count)

        return self.called(given, primal, [rule], op)

    def _tangent(self, given: Slots, result: Slots, fresh: list[Tensor]) -> tuple[list[Tensor], Any]:
        assert self.rule is not None
        primals, moves = fresh[: len(given.types)], iter(fresh[len(given.types) :])
        tangents = [next(moves) if t.dtype.is_inexact else zeros(t.shape, dtype=t.dtype) for t in given.types]
        found = self.rule(given.filled(primals), given.filled(tangents))
        if not isinstance(found, tuple) or len(found) != 2:
            raise DTypeError("custom_jvp: the rule must return (result, tangent)", got=type(found).__name__)
        return _like("the rule", found[1], result.filled(result.tensors)), None


def _like_arguments(found: Any, given: Slots) -> list[Tensor]:
    """Return a derivative per float tensor of the arguments, of one entry per argument."""
    args = given.filled(given.tensors)
    if not isinstance(found, (tuple, list)) or len(found) != len(args):
        got = f"{len(found)} entries" if isinstance(found, (tuple, list)) else type(found).__name__
        raise ShapeError("custom_vjp: the backward rule returns a tuple of one cotangent per argument",
                         got=f"{got} for {len(args)} arguments")  # fmt: skip
    return [t for entry, arg in zip(found, args, strict=True) for t in _like("the backward rule", entry, arg)]


def _like(what: str, found: Any, like: Any) -> list[Tensor]:
    """Return a derivative per float tensor of `like`; None stands for zeros."""
    wanted = tree.leaves(like)
    if found is None:
        parts: list[Any] = [None] * len(wanted)
    else:
        parts, structure = tree.flatten(found, is_leaf=lambda x: x is None)
        if structure != tree.flatten(like)[1]:
            raise ShapeError(f"custom derivative: {what} returns containers like what it is for",
                             got=f"{structure} for {tree.flatten(like)[1]}")  # fmt: skip
    made = []
    for part, x in zip(parts, wanted, strict=True):
        if not isinstance(x, (Tensor, np.ndarray)) or not as_tensor(x).dtype.is_inexact:
            continue
        type_ = as_tensor(x).type
        t = zeros(type_.shape, dtype=type_.dtype) if part is None else as_tensor(part, "custom derivative")
        if t.shape != type_.shape or not t.dtype.is_inexact:
            raise ShapeError(f"custom derivative: {what} returns what has the shape of what it is for",
                             got=f"{t.type} for {type_}")  # fmt: skip
        made.append(t if t.dtype is type_.dtype else cast(t, type_.dtype))
    return made
