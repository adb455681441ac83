"""Jacobians and Hessians: a derivative in every direction of a basis at once, by vmap."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from stratal.base import tree
from stratal.base.dims import as_int
from stratal.base.errors import AttributeValueError, DTypeError
from stratal.tensor.arguments import check_function
from stratal.tensor.build import as_tensor
from stratal.tensor.functions.creation import eye, zeros
from stratal.tensor.functions.shapes import reshape
from stratal.tensor.tensor import Tensor
from stratal.tensor.transformations.gradients import linearize, split_arguments, vjp
from stratal.tensor.transformations.mapping import vmap

Argnums = int | Sequence[int]
Derivative = Callable[..., Any]


def jacrev(
    function: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """Return a function that returns the Jacobian with respect to the arguments `argnums`, in reverse mode.

    A result of shape [r...] and an argument of shape [a...] give [r..., a...]. Results and arguments may be
    containers: the Jacobian is a container like the result, of containers like the arguments (a tuple of
    them for a sequence of `argnums`). Cost: one pullback per element of the result, `chunk_size` at a time;
    `jacfwd` is cheaper where there are fewer arguments. With `has_aux` the function returns (result, anything
    else), and so does the Jacobian.
    """

    def rows(outputs: list[Tensor], structure: tree.Structure, _: Any, pullback: Derivative) -> Iterator[Any]:
        def back(number: int, cotangent: Tensor) -> Any:
            return pullback(_in_place_of(outputs, structure, number, cotangent))

        for number, output in enumerate(outputs):
            moved = vmap(functools.partial(back, number), chunk_size=chunk_size)(_basis(output))
            yield [tree.map(lambda g, y=output: reshape(g, y.shape + g.shape[1:]), part) for part in moved]

    return _jacobian("jacrev", vjp, rows, function, argnums, has_aux)


def jacfwd(
    function: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """Return a function that returns the Jacobian with respect to the arguments `argnums`, in forward mode.

    Shapes and containers as of `jacrev`. Cost: one tangent per element of the arguments; `jacrev` is cheaper
    where results are fewer.
    """

    def rows(outputs: list[Tensor], _: Any, chosen: list[Any], push: Derivative) -> Iterator[Any]:
        inputs, given = _real("jacfwd", chosen)

        def forth(number: int, tangent: Tensor) -> list[Tensor]:
            return tree.leaves(push(*_in_place_of(inputs, given, number, tangent)))

        columns = [
            vmap(functools.partial(forth, number), out_axes=-1, chunk_size=chunk_size)(_basis(x))
            for number, x in enumerate(inputs)
        ]
        for k, output in enumerate(outputs):
            parts = [reshape(c[k], output.shape + x.shape) for c, x in zip(columns, inputs, strict=True)]
            yield tree.unflatten(given, parts)

    return _jacobian("jacfwd", linearize, rows, function, argnums, has_aux)


def _jacobian(
    name: str, derived: Derivative, rows: Callable[..., Iterable[Any]], function: Callable[..., Any],
    argnums: Argnums, has_aux: bool,
) -> Callable[..., Any]:  # fmt: skip
    """Return a function that returns the Jacobian; `rows` yields that of each result, by argument."""
    check_function(name, function)

    @functools.wraps(function)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        places, fill = split_arguments(name, argnums, args)
        chosen = [args[k] for k in places]
        value, derivative, *aux = derived(
            lambda *given: function(*fill(given), **kwargs), *chosen, has_aux=has_aux
        )
        outputs, structure = _real(name, value)
        made = rows(outputs, structure, chosen, derivative)
        result = tree.unflatten(structure, [r[0] if isinstance(argnums, int) else tuple(r) for r in made])
        return (result, *aux) if has_aux else result

    return jacobian


def jacobian(
    function: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False, *, mode: str = "reverse"
) -> Callable[..., Any]:
    """Return a function that returns the Jacobian, in `reverse` mode as `jacrev` or `forward` as `jacfwd`."""
    modes = {"reverse": jacrev, "forward": jacfwd}
    if mode not in modes:
        raise AttributeValueError("jacobian: mode is 'reverse' or 'forward'", got=repr(mode))
    return modes[mode](function, argnums, has_aux)


def hessian(function: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Return a function that returns the second derivatives: forward mode over reverse mode.

    A result of shape [r...] gives [r..., a..., a...]; for containers as `jacrev`, twice.
    """
    check_function("hessian", function)
    return jacfwd(jacrev(function, argnums, has_aux), argnums, has_aux)


def _real(name: str, value: Any) -> tuple[list[Tensor], tree.Structure]:
    leaves, structure = tree.flatten(value)
    tensors = [as_tensor(x, name) for x in leaves]
    for t in tensors:
        if not t.dtype.is_float:
            raise DTypeError(f"{name}: results and arguments are real floats", got=str(t.type))
    return tensors, structure


def _basis(like: Tensor) -> Tensor:
    """Return every unit vector of a tensor's shape, one per row."""
    count = as_int(like.type.size)
    return reshape(eye(count, dtype=like.dtype), (count, *like.shape))


def _in_place_of(tensors: Iterable[Tensor], structure: tree.Structure, number: int, one: Tensor) -> Any:
    """Return a container of zeros, with `one` at a place."""
    parts = [one if k == number else zeros(t.shape, dtype=t.dtype) for k, t in enumerate(tensors)]
    return tree.unflatten(structure, parts)
