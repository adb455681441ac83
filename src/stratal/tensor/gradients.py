"""Gradients of tensors and of functions of tensors, as graph nodes: they are lazy, and can be differentiated
again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stratal import autodiff
from stratal.base import tree
from stratal.base.errors import AttributeValueError, DTypeError, NotDifferentiableError, ShapeError
from stratal.base.source import SourceLine
from stratal.base.weak import note
from stratal.graph.builder import Builder
from stratal.graph.graph import substitute
from stratal.graph.node import Node, constant, graph_input, topological
from stratal.tensor import values
from stratal.tensor.alive import LEAVES, LIVE
from stratal.tensor.arguments import check_function
from stratal.tensor.build import as_tensor, where_now
from stratal.tensor.handles import CONSTANT, STOPPED, TRACKED, USED_UP, look, node_of, rebind, track_of
from stratal.tensor.state import MODE, enable_grad, tracing
from stratal.tensor.tensor import Tensor, wrap
from stratal.tensor.trace import RegionTrace


def _seed(output: Tensor, gradient: Any, where: tuple[SourceLine, ...]) -> Node:
    if gradient is None:
        if output.numel() != 1:
            raise ShapeError(
                "backward: the output must be a scalar", got=str(output.type), where=where,
                hint="reduce it with .sum() or .mean(), or pass the gradient of its elements",
            )  # fmt: skip
        return Builder(where).like(node_of(output), 1)
    given = as_tensor(gradient, "backward")
    if given.shape != output.shape:
        raise ShapeError(
            "backward: the gradient must have the shape of the output", got=f"{given.type} for {output.type}"
        )
    return node_of(given if given.dtype is output.dtype else given.astype(output.dtype))


def _check_tracked(output: Tensor) -> None:
    if output._track == USED_UP:
        raise NotDifferentiableError(
            "backward: the history of this tensor is used up",
            got=f"{output.type}: an update overwrote what it needs",
            hint="call backward() before the step",
        )  # fmt: skip
    if track_of(output) != TRACKED:
        raise NotDifferentiableError(
            "backward: the output depends on nothing that takes a gradient", got=str(output.type),
            hint="set requires_grad on a leaf before computing, outside st.no_grad()",
        )  # fmt: skip


def backward(
    output: Tensor,
    gradient: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Add the gradient of this tensor to `.grad` of every leaf it depends on that takes gradients.

    `gradient` weighs the elements of a tensor that is no scalar. A graph of nodes needs no `retain_graph`.
    """
    where = where_now()
    _check_tracked(output)
    seed = _seed(output, gradient, where)
    root = node_of(output)
    targets = _targets(root) if inputs is None else _given(inputs)
    if MODE.trace is not None:
        MODE.trace.differentiated = True
    found = autodiff.vjp([root], [seed], [node_of(t) for t in targets])
    track = TRACKED if create_graph else STOPPED
    for target, node in zip(targets, found, strict=True):
        if node is not None:
            _accumulate(target, node, track)


def _given(inputs: Any) -> list[Tensor]:
    return [inputs] if isinstance(inputs, Tensor) else list(inputs)


def _targets(root: Node) -> list[Tensor]:
    """Return the tensors that take a gradient from a root: leaves, and others that retain theirs."""
    ancestors = set(topological([root]))
    known: dict[int, Tensor] = {}
    for tensor in _gradient_takers():
        if node_of(tensor) in ancestors:
            known[id(tensor)] = tensor
    return list(known.values())


def _gradient_takers() -> list[Tensor]:
    return [*_takers_inside(), *_takers_outside()]


def _taker_nodes() -> set[Node]:
    """Return the nodes of all tensors that take a gradient; asking does not make a region read them."""
    found = {node_of(t) for t in _takers_inside()}
    with tracing(None):
        return found | {node_of(t) for t in _takers_outside()}


def _takers_inside() -> list[Tensor]:
    return [] if MODE.trace is None else MODE.trace.gradient_takers()


def _takers_outside() -> list[Tensor]:
    """Return the tensors outside of any trace, as far as this one sees them."""
    if MODE.trace is not None and not MODE.trace.open:
        return []
    return [t for t in (*_leaves_alive(), *_alive()) if t._trace is None and (t._leaf or t._retains)]


def _alive() -> list[Tensor]:
    return [t for handle in list(LIVE.values()) if (t := handle()) is not None]


def _leaves_alive() -> list[Tensor]:
    return [t for handle in list(LEAVES.values()) if (t := handle()) is not None and t._leaf]


def _accumulate(target: Tensor, node: Node, track: int) -> None:
    known = target.grad
    if known is None:
        target.grad = wrap(node, track)
    elif track == TRACKED:
        target.grad = known + wrap(node, track)
    else:
        old, _ = look(known)
        rebind(known, Builder(node.where).add(old, node), STOPPED)


# -- of tensors ----------------------------------------------------------------------------------------------
def gradients(
    outputs: Any, inputs: Any, grad_outputs: Any = None, *, create_graph: bool = False,
    allow_unused: bool = False,
    retain_graph: bool | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Return the gradients of tensors with respect to tensors, leaving `.grad` alone."""
    outs, ins = _given(outputs), _given(inputs)
    weights = [None] * len(outs) if grad_outputs is None else _given(grad_outputs)
    where = where_now()
    for output in outs:
        _check_tracked(output)
    seeds = [_seed(o, w, where) for o, w in zip(outs, weights, strict=True)]
    found = autodiff.vjp([node_of(o) for o in outs], seeds, [node_of(t) for t in ins])
    if not allow_unused and any(n is None for n in found):
        lost = ins[[n is None for n in found].index(True)]
        raise NotDifferentiableError(
            "gradients: an output does not depend on an input",
            got=str(lost.type),
            hint="allow_unused=True returns None",
        )
    return tuple(None if n is None else wrap(n, TRACKED if create_graph else STOPPED) for n in found)


# -- of functions --------------------------------------------------------------------------------------------
class _Point:
    """Where a user's function is differentiated: independent variables in place of some of its arguments.

    The variables are nodes of their own, so that nothing else the function reads is taken for them; `back`
    puts the arguments in their place again, which is what lets derivatives nest.
    """

    def __init__(self, name: str, primals: Sequence[Any]) -> None:
        leaves, self.structure = tree.flatten(list(primals))
        self.given = [as_tensor(x, name) for x in leaves]
        for t in self.given:
            if not t.dtype.is_inexact:
                raise DTypeError(
                    f"{name}: only floats and complex numbers can be differentiated", got=str(t.type)
                )
        self.arguments = [node_of(t) for t in self.given]
        self.variables = [_variable(t) for t in self.given]
        self.nodes = [node_of(t) for t in self.variables]

    def run(self, function: Callable[..., Any], rest: dict[str, Any]) -> Any:
        with enable_grad():
            return function(*tree.unflatten(self.structure, self.variables), **rest)

    def back(self, nodes: Sequence[Node]) -> list[Tensor]:
        """Return tensors for nodes built on the variables, with the arguments in their place."""
        made = substitute(nodes, dict(zip(self.nodes, self.arguments, strict=True)))
        takers = _taker_nodes() - set(self.nodes)
        tracked = any(n in takers for n in topological(made))
        track = (TRACKED if MODE.grad else STOPPED) if tracked else CONSTANT
        return [wrap(n, track if n.aval.dtype.is_inexact else CONSTANT) for n in made]

    def back_tree(self, result: Any) -> Any:
        """Return a container of tensors built on the variables, with the arguments in their place."""
        leaves, structure = tree.flatten(result)
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        fixed = iter(self.back([node_of(t) for t in tensors]))
        return tree.unflatten(structure, [next(fixed) if isinstance(x, Tensor) else x for x in leaves])


def _variable(t: Tensor) -> Tensor:
    """Return a leaf with the value of `t` and a node of its own."""
    if MODE.trace is not None:
        made = wrap(graph_input("", t.type), TRACKED)
    elif t._storage is not None:
        made = wrap(values.leaf(t._storage))
        made._node, made._track = values.leaf(t._storage), TRACKED
    else:
        made = wrap(values.pending_leaf(node_of(t)), TRACKED)
    made._leaf = True
    if MODE.trace is None:
        note(LEAVES, made)
    return made


def _outputs(name: str, result: Any) -> tuple[list[Tensor], Any]:
    leaves, structure = tree.flatten(result)
    for x in leaves:
        if not isinstance(x, Tensor):
            raise DTypeError(f"{name}: the function must return tensors", got=type(x).__name__)
    return leaves, structure


def split_arguments(
    name: str, argnums: Any, args: Sequence[Any]
) -> tuple[tuple[int, ...], Callable[[Sequence[Any]], list[Any]]]:
    """Return the places `argnums` names, and a function that puts other arguments there."""
    wanted = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    if not all(-len(args) <= k < len(args) for k in wanted):
        raise AttributeValueError(
            f"{name}: argnums names an argument that was not passed", got=f"{argnums} of {len(args)}"
        )
    places = tuple(k % len(args) for k in wanted)

    def fill(chosen: Sequence[Any]) -> list[Any]:
        full = list(args)
        for k, x in zip(places, chosen, strict=True):
            full[k] = x
        return full

    return places, fill


def _parted(name: str, result: Any, has_aux: bool) -> tuple[Any, Any]:
    """Return what a function returned as the value and the rest. Raises: ShapeError."""
    if not has_aux:
        return result, None
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise ShapeError(f"{name}: with has_aux the function must return (value, anything else)",
                         got=type(result).__name__, hint="leave has_aux out, or return a pair")  # fmt: skip
    return result[0], result[1]


def value_and_grad(
    function: Callable[..., Any], argnums: Any = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that returns the value and the gradient with respect to the arguments `argnums`.

    Arguments may be containers of tensors; the gradient then is one too. With `has_aux` the function returns
    (value, anything else), and so does the first result.
    """
    check_function("value_and_grad", function)
    name = "value_and_grad"

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        places, fill = split_arguments(name, argnums, args)
        point = _Point(name, [args[k] for k in places])
        result = point.run(lambda *chosen, **rest: function(*fill(chosen), **rest), kwargs)
        value, aux = _parted(name, result, has_aux)
        if not isinstance(value, Tensor) or value.ndim or not value.dtype.is_float:
            got = str(value.type) if isinstance(value, Tensor) else type(value).__name__
            kept = "float(), item() and numpy() end the derivative: keep it a tensor"
            hint = "sum it, or use st.vjp" if isinstance(value, Tensor) else kept
            raise ShapeError("grad: the function must return a real scalar", got=got, hint=hint)
        b = Builder(where_now())
        root = node_of(value)
        found = autodiff.vjp([root], [b.like(root, 1)], point.nodes)
        grads = [b.like(v, 0) if g is None else g for g, v in zip(found, point.nodes, strict=True)]
        returned, *tensors = point.back([root, *grads])
        parts = tree.unflatten(point.structure, tensors)
        gradient = parts[0] if isinstance(argnums, int) else tuple(parts)
        return ((returned, point.back_tree(aux)) if has_aux else returned), gradient

    return wrapper


def grad(function: Callable[..., Any], argnums: Any = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Return a function that returns the gradient of a scalar function; with `has_aux` also what else it
    returned.
    """
    check_function("grad", function)
    both = value_and_grad(function, argnums, has_aux)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return wrapper


def vjp(function: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Return the value of a function and a function from a cotangent of it to cotangents of the arguments."""
    point = _Point("vjp", primals)
    result = point.run(function, {})
    main, aux = _parted("vjp", result, has_aux)
    outputs, structure = _outputs("vjp", main)
    roots = [node_of(t) for t in outputs]

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        leaves, given = tree.flatten(cotangent)
        if given != structure:
            raise ShapeError(
                "vjp: the cotangent must be a container like the result", got=f"{given} for {structure}"
            )
        seeds = [node_of(as_tensor(c, "vjp")) for c in leaves]
        found = autodiff.vjp(roots, seeds, point.nodes)
        b = Builder(where_now())
        grads = [b.like(v, 0) if g is None else g for g, v in zip(found, point.nodes, strict=True)]
        return tuple(tree.unflatten(point.structure, point.back(grads)))

    value = point.back_tree(main)
    return (value, pullback, point.back_tree(aux)) if has_aux else (value, pullback)


def linearize(function: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Return the value of a function and a function from tangents of the arguments to tangents of the value.

    With `has_aux` the function returns (value, anything else), and the latter comes third.
    """
    point = _Point("jvp", primals)
    result = point.run(function, {})
    main, aux = _parted("linearize", result, has_aux)
    outputs, structure = _outputs("jvp", main)
    roots = [node_of(t) for t in outputs]

    def push(*tangents: Any) -> Any:
        moves, given = tree.flatten(list(tangents))
        if given != point.structure:
            raise ShapeError(
                "jvp: tangents must be containers like the arguments", got=f"{given} for {point.structure}"
            )
        found = autodiff.jvp(roots, point.nodes, [node_of(as_tensor(t, "jvp")) for t in moves])
        b = Builder(where_now())
        moved = point.back([b.like(r, 0) if t is None else t for t, r in zip(found, roots, strict=True)])
        return tree.unflatten(structure, moved)

    value = point.back_tree(main)
    return (value, push, point.back_tree(aux)) if has_aux else (value, push)


def jvp(
    function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], *, has_aux: bool = False
) -> tuple[Any, ...]:
    """Return the value of a function and its tangent when the arguments move along tangents."""
    value, push, *aux = linearize(function, *primals, has_aux=has_aux)
    return value, push(*tangents), *aux


def check_grad(
    function: Callable[..., Any],
    inputs: Any,
    *,
    order: int = 1,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    seed: int = 0,
) -> autodiff.GradReport:
    """Compare both derivatives of a function of tensors with finite differences in float64, and return the
    report.

    Inputs that are not floats stay as they are. `order=2` checks the derivative of the derivative too.
    Raises: GradientMismatchError naming the element that is wrong.
    """
    arrays = [np.asarray(x) for x in (inputs if isinstance(inputs, (list, tuple)) else [inputs])]

    def on_nodes(b: Builder, *nodes: Node) -> list[Node]:
        trace = CheckTrace("check_grad")
        with tracing(trace):
            outputs, _ = _outputs("check_grad", function(*[wrap(n, TRACKED) for n in nodes]))
            return [node_of(t) for t in outputs]

    return autodiff.check_grad(on_nodes, arrays, order=order, rtol=rtol, atol=atol, seed=seed)


class CheckTrace(RegionTrace):
    """Outer tensors the checked function reads are constants of it."""

    def __init__(self, name: str) -> None:
        super().__init__(name, None)

    @property
    def open(self) -> bool:
        return False

    def around(self, tensor: Tensor) -> tuple[Node, int]:
        with tracing(None):
            return constant(tensor.numpy()), CONSTANT
