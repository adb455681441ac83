"""Modules as functions of their parameters, which `st.vmap` and `st.grad` then take like any argument."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from itertools import starmap
from typing import Any

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.base.interrupts import block
from stratal.nn.module import Module
from stratal.nn.state import StateDictError
from stratal.tensor.build import as_tensor
from stratal.tensor.functions.shapes import stack
from stratal.tensor.tensor import Tensor

Tables = dict[str, list[tuple[dict[str, Any], str]]]
"""Where each parameter and buffer of a module stands: tables of the modules within, and keys in them."""


def functional_call(
    module: Module, parameter_and_buffer_dicts: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    args: Any = None, kwargs: dict[str, Any] | None = None, *, tie_weights: bool = True, strict: bool = False
) -> Any:
    """Return module(*args, **kwargs) with other tensors in place of parameters and buffers, by name.

    What the dicts do not name stays the module's, unless `strict`. A tensor under several names is replaced
    under all of them where one is given, unless `tie_weights` is off. Buffers changed in place are the given
    ones. As `torch.func.functional_call`. Raises: StateDictError listing names that are unknown or missing.
    """
    parts, given = parameter_and_buffer_dicts, dict[str, Any]()
    for part in [parts] if isinstance(parts, Mapping) else parts:
        twice = given.keys() & part.keys()
        if twice:
            raise AttributeValueError(
                "functional_call: two dicts name the same tensor", got=", ".join(sorted(twice))
            )
        given |= part
    places = _places(module, tie_weights)
    unknown = sorted(given.keys() - places.keys())
    missing = sorted(places.keys() - {n for name in given if name in places for n in _tied(places, name)})
    if unknown or (strict and missing):
        raise StateDictError(
            "functional_call: names do not fit the module",
            got=f"unknown: {', '.join(unknown) or 'none'}; missing: {', '.join(missing) or 'none'}",
        )
    positional = () if args is None else args if isinstance(args, tuple) else (args,)
    with _replaced(module, places, given):
        return module(*positional, **(kwargs or {}))


def _places(module: Module, tie_weights: bool) -> Tables:
    """Return the places of each name; tied names share one list."""
    found: Tables = {}
    by_tensor: dict[int, list[tuple[dict[str, Any], str]]] = {}
    for prefix, part in module.named_modules(remove_duplicate=False):
        for table in (part._parameters, part._buffers):
            for key, tensor in table.items():
                if tensor is not None:
                    own: list[tuple[dict[str, Any], str]] = []
                    shared = by_tensor.setdefault(id(tensor), own) if tie_weights else own
                    shared.append((table, key))
                    found[f"{prefix}.{key}" if prefix else key] = shared
    return found


def _tied(places: Tables, name: str) -> list[str]:
    return [other for other, where in places.items() if where is places[name]]


@block
def _replaced(module: Module, places: Tables, given: Mapping[str, Any]) -> Generator[None]:
    before = [(table, key, table[key]) for name in given for table, key in places[name]]
    try:
        for name, value in given.items():
            tensor = as_tensor(value, "functional_call")
            for table, key in places[name]:
                if tensor.shape != table[key].shape:
                    raise ShapeError(f"functional_call: {name} has another shape",
                                     got=f"{tensor.type} for {table[key].type}")  # fmt: skip
            for table, key in places[name]:
                table[key] = tensor
        yield
    finally:
        any(starmap(dict.__setitem__, before))  # in C: no handler of signals comes before the last


def stack_module_state(models: Sequence[Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the parameters and the buffers of like models, stacked by name: an ensemble for `st.vmap`.

    As `torch.func.stack_module_state`: stacked parameters are leaves that take gradients where those of the
    first model do. Raises: StateDictError where models have other names than the first.
    """
    if not models:
        raise AttributeValueError("stack_module_state: takes at least one model", got="none")
    states: list[tuple[dict[str, Tensor], dict[str, Tensor]]]
    states = [(dict(m.named_parameters()), dict(m.named_buffers())) for m in models]
    for own in states[1:]:
        if any(a.keys() != b.keys() for a, b in zip(own, states[0], strict=True)):
            got = ", ".join(sorted(set(own[0]) ^ set(states[0][0]) | set(own[1]) ^ set(states[0][1])))
            raise StateDictError("stack_module_state: models have different tensors", got=got)
    first, buffers = states[0]
    parameters = {n: stack([own[n].detach() for own, _ in states]) for n in first}
    for name, tensor in parameters.items():
        tensor.requires_grad_(first[name].requires_grad)
    return parameters, {n: stack([own[n] for _, own in states]) for n in buffers}
