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
from stratal.base.types import TensorType
from stratal.base.weak import note
from stratal.graph.builder import Builder
from stratal.graph.graph import substitute
from stratal.graph.node import Node, constant, graph_input, topological
from stratal.ops.control.custom import Watch, Watched
from stratal.tensor.arguments import check_function
from stratal.tensor.build import as_tensor, where_now
from stratal.tensor.calls.call_cache import cached_call
from stratal.tensor.calls.step_cache import backward_of
from stratal.tensor.functions.elementwise import FUNCTIONS
from stratal.tensor.lazy.exports import hand_out
from stratal.tensor.tensor import Tensor, wrap
from stratal.tensor.transformations.regions import RegionTrace
from stratal.tensor.values import node_values
from stratal.tensor.values.binding import (
    lazy_value_of,
    node_and_track,
    node_of,
    rebind,
    takes_gradients,
    track_of,
    versions_of,
)
from stratal.tensor.values.handle import (
    CONSTANT,
    CONSUMED,
    STOPPED,
    TRACKED,
    Handle,
    leaf_of,
    set_leaf,
    set_node,
)
from stratal.tensor.values.live import LEAVES, LIVE, earlier_nodes
from stratal.tensor.values.state import MODE, ModeBlock, enable_grad, tracing

_SUM = cached_call(FUNCTIONS["add"])


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
    return node_of(given if given.dtype is output.dtype else given.to(output.dtype))


def _check_tracked(output: Tensor) -> None:
    if output._track == CONSUMED:
        raise NotDifferentiableError(
            "backward: the history of this tensor is used up",
            got=f"{output.type}: an update overwrote what it needs, or it stayed in a compiled call",
            hint="call backward() before the step, and once in the compiled function",
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
    _check_tracked(output)
    plain = gradient is None and inputs is None and not create_graph
    known = backward_of(output) if plain and MODE.trace is None and MODE.eager is None else None
    gradients_known = None if known is None else known.gradients()
    if gradients_known is not None:
        for target, made in gradients_known:
            _add(target, made)
        return
    where = where_now()
    seed = _seed(output, gradient, where)
    root = node_of(output)
    targets = _targets(root) if inputs is None else _given(inputs)
    if MODE.trace is not None:
        MODE.trace.differentiated = True
        MODE.trace.losses.append(root)
    found = _cotangents([root], [seed], targets, where)
    if known is not None:
        known.remember(targets, found)
    track = TRACKED if create_graph else STOPPED
    for target, node in zip(targets, found, strict=True):
        if node is not None:
            _accumulate(target, node, track)


def _cotangents(
    roots: Sequence[Node], seeds: Sequence[Node], targets: Sequence[Tensor], where: tuple[SourceLine, ...]
) -> list[Node | None]:
    """Return the gradient of each target: of a leaf changed in place, the sum over all it stood for."""
    versions = [versions_of(t) for t in targets]
    parts = iter(autodiff.vjp(roots, seeds, [node for nodes in versions for node in nodes]))
    found: list[Node | None] = []
    for nodes in versions:
        some = [part for _ in nodes if (part := next(parts)) is not None]
        found.append(functools.reduce(Builder(where).add, some) if some else None)
    missing = [k for k, node in enumerate(found) if node is None]
    for k in missing:  # as in PyTorch, a derivative that is zero is no missing one
        if any(autodiff.reached(roots, versions[k])):
            found[k] = Builder(where).like(versions[k][0], 0)
    return found


def _given(inputs: Any) -> list[Tensor]:
    return [inputs] if isinstance(inputs, Tensor) else list(inputs)


def _targets(root: Node) -> list[Tensor]:
    """Return the tensors that take a gradient from a root: leaves, and others that retain theirs."""
    ancestors = set(topological([root]))
    takers = (*_takers_inside(), *_takers_outside())
    return list({id(t): t for t in takers if not ancestors.isdisjoint(_known_versions(t))}.values())


def _known_versions(tensor: Tensor) -> list[Node]:
    """Return the nodes a tensor goes by, giving it none: outside of traces it may be another thread's."""
    if MODE.trace is not None:
        return versions_of(tensor)
    node = tensor._node
    return earlier_nodes(tensor) if node is None else [node, *earlier_nodes(tensor)]


def _taker_nodes() -> set[Node]:
    """Return the nodes of all tensors that take a gradient; asking does not make a region read them."""
    found = {node_of(t) for t in _takers_inside()}
    with tracing(None):
        return found | {node for t in _takers_outside() if (node := t._node) is not None}


def _takers_inside() -> list[Tensor]:
    takers = [] if MODE.trace is None else MODE.trace.gradient_takers()
    return [t for t in takers if isinstance(t, Tensor)]


def _takers_outside() -> list[Tensor]:
    """Return the tensors outside of any trace, as far as this one sees them."""
    if MODE.trace is not None and not MODE.trace.open:
        return []
    leaves = [t for handle in list(LEAVES.values()) if isinstance(t := handle(), Tensor) and t._leaf]
    alive = [t for handle in list(LIVE.values()) if isinstance(t := handle(), Tensor)]
    return [t for t in (*leaves, *alive) if t._trace is None and (t._leaf or t._retains)]


def _accumulate(target: Tensor, node: Node, track: int) -> None:
    known = target.grad
    if known is None:
        target.grad = wrap(node, track)
    elif track == TRACKED:
        target.grad = known + wrap(node, track)
    else:
        rebind(known, Builder(node.where).add(node_and_track(known)[0], node), STOPPED)


def _add(target: Tensor, gradient: Tensor) -> None:
    """Add a gradient that is a promise to that of a leaf."""
    known = target.grad
    if known is None:
        target.grad = gradient
    else:
        rebind(known, lazy_value_of(_SUM(known, gradient))[0], STOPPED)


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
    found = _cotangents([node_of(o) for o in outs], seeds, ins, where)
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
        if MODE.trace is not None:
            MODE.trace.points.append(dict(zip(self.nodes, self.arguments, strict=True)))

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
        made = wrap(node_values.leaf(t._storage))
        set_node(made, leaf_of(made), TRACKED)
    else:
        made = wrap(node_values.pending_leaf(node_of(t)), TRACKED)
    set_leaf(made, True)
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


def _at_point(
    name: str, caller: str, function: Callable[..., Any], primals: Sequence[Any], has_aux: bool
) -> tuple[_Point, list[Node], tree.Structure, list[Any]]:
    """Return where a function is differentiated, the nodes and the structure of its value there, and what it
    returned: the value, with `has_aux` also the rest.
    """
    point = _Point(name, primals)
    main, aux = _parted(caller, point.run(function, {}), has_aux)
    outputs, structure = _outputs(name, main)
    returned = [point.back_tree(part) for part in ([main, aux] if has_aux else [main])]
    return point, [node_of(t) for t in outputs], structure, returned


def _or_zeros(found: Sequence[Node | None], like: Sequence[Node]) -> list[Node]:
    """Return derivatives, zeros where there are none."""
    b = Builder(where_now())
    return [b.like(node, 0) if made is None else made for made, node in zip(found, like, strict=True)]


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
        root = node_of(value)
        found = autodiff.vjp([root], [Builder(where_now()).like(root, 1)], point.nodes)
        returned, *tensors = point.back([root, *_or_zeros(found, point.nodes)])
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
    point, roots, structure, returned = _at_point("vjp", "vjp", function, primals, has_aux)

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        leaves, given = tree.flatten(cotangent)
        if given != structure:
            raise ShapeError(
                "vjp: the cotangent must be a container like the result", got=f"{given} for {structure}"
            )
        seeds = [node_of(as_tensor(c, "vjp")) for c in leaves]
        found = _or_zeros(autodiff.vjp(roots, seeds, point.nodes), point.nodes)
        return tuple(tree.unflatten(point.structure, point.back(found)))

    value, *aux = returned
    return value, pullback, *aux


def linearize(function: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Return the value of a function and a function from tangents of the arguments to tangents of the value.

    With `has_aux` the function returns (value, anything else), and the latter comes third.
    """
    point, roots, structure, returned = _at_point("jvp", "linearize", function, primals, has_aux)

    def push(*tangents: Any) -> Any:
        moves, given = tree.flatten(list(tangents))
        if given != point.structure:
            raise ShapeError(
                "jvp: tangents must be containers like the arguments", got=f"{given} for {point.structure}"
            )
        found = autodiff.jvp(roots, point.nodes, [node_of(as_tensor(t, "jvp")) for t in moves])
        return tree.unflatten(structure, point.back(_or_zeros(found, roots)))

    value, *aux = returned
    return value, push, *aux


def jvp(
    function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], *, has_aux: bool = False
) -> tuple[Any, ...]:
    """Return the value of a function and its tangent when the arguments move along tangents."""
    value, push, *aux = linearize(function, *primals, has_aux=has_aux)
    return value, push(*tangents), *aux


def check_grad(
    function: Callable[..., Any], inputs: Any, *, order: int = 1, rtol: float = 1e-5, atol: float = 1e-8,
    seed: int = 0
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

    def around(self, tensor: Handle) -> tuple[Node, int]:
        with tracing(None):
            return constant(hand_out(tensor, "numpy()")), CONSTANT


# -- gradients seen by a Python function, which may replace them, while reverse mode builds them -------------
Gradients = Sequence[Tensor | None]


def tracked(tensor: object) -> bool:
    """Return whether what is computed from a value now takes gradients to it."""
    return isinstance(tensor, Tensor) and takes_gradients(tensor)


def watched(name: str, tensors: Sequence[Tensor], watcher: Callable[[Gradients], Gradients]) -> list[Tensor]:
    """Return tracked tensors unchanged; reverse mode calls `watcher` with their gradients and passes on what
    it returns, None for none.

    It is called once per sweep, when all their gradients are known, on tensors that are computed when read.
    """
    nodes = [node_and_track(t)[0] for t in tensors]
    types = [node.aval for node in nodes]

    def passed(cotangents: Sequence[Node | None]) -> list[Node | None]:
        with ModeBlock("eager", None):
            given = [None if ct is None else wrap(ct, STOPPED) for ct in cotangents]
            found = watcher(given)
        return [_fitting(name, new, type_) for new, type_ in zip(found, types, strict=True)]

    return [wrap(node, TRACKED) for node in Watched.of(Watch(name, passed), *nodes)]


def _fitting(name: str, gradient: Tensor | None, type_: TensorType) -> Node | None:
    """Return the node of a gradient. Raises: ShapeError where it is of another type than the value."""
    if gradient is None:
        return None
    if gradient.type != type_:
        raise ShapeError(
            f"{name}: a gradient has the shape and dtype of its tensor", got=f"{gradient.type} for {type_}"
        )
    return node_of(gradient)
