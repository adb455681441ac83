"""Two vocabularies for one function: the array API's `axis, keepdims` and PyTorch's `dim, keepdim, input`.

Functions are written in the first, often by position alone; those that users call take both, by name, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from stratal.base.errors import AttributeValueError

F = TypeVar("F", bound=Callable[..., Any])

_WORDS = (  # PyTorch's, the function's
    ("dim", "axis"),
    ("dim", "axes"),
    ("dims", "axis"),
    ("dims", "axes"),
    ("keepdim", "keepdims"),
    ("size", "shape"),
    ("input", "x"),
    ("self", "x"),
    ("other", "y"),
    ("exponent", "y"),
    ("tensors", "arrays"),
    ("A", "x"),
    ("A", "x1"),
    ("B", "x2"),
    ("end", "stop"),
    ("shifts", "shift"),
    ("mat2", "y"),
    ("vec2", "y"),
    ("in_dims", "in_axes"),
    ("out_dims", "out_axes"),
    ("func", "function"),
)
_OF = {  # words of one function
    "asarray": {"data": "obj"},
    "bernoulli": {"input": "p"},
    "cond": {"pred": "predicate"},
    "div": {"dividend": "x", "divisor": "y"},
    "dot": {"tensor": "y"},
    "eye": {"n": "n_rows", "m": "n_cols"},
    "from_dlpack": {"ext_tensor": "x"},
    "from_numpy": {"ndarray": "array"},
    "isin": {"elements": "x", "test_elements": "values"},
    "ldexp": {"other": "exponent"},
    "multinomial": {"input": "probabilities"},
    "load": {"f": "path"},
    "matmul": {"vec": "y"},
    "one_hot": {"tensor": "input"},
    "save": {"obj": "model", "f": "path"},
    "searchsorted": {"sorted_sequence": "edges", "input": "x", "values": "x"},
    "set_rng_state": {"new_state": "state"},
    "split": {"tensor": "x"},
    "transpose": {"axis0": "dim0", "axis1": "dim1"},
    "take": {"index": "indices"},
    "tensordot": {"a": "x", "b": "y"},
    "tile": {"dims": "repetitions"},
    "zeta": {"input": "s", "other": "q"},
    **{name: {"input": "a", "other": "x"} for name in ("igamma", "igammac", "gammainc", "gammaincc")},
}


class Words(NamedTuple):
    """How the arguments of a function are named."""

    names: dict[str, str]  # the function's names by PyTorch's, where they differ
    positional: tuple[str, ...]  # the function's names of what Python takes by position alone


def words_of(function: Callable[..., Any]) -> Words:
    """Return a function's words; of one that takes any name, those of its operands."""
    parameters = inspect.signature(function).parameters.values()
    own = {p.name for p in parameters}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        own &= {"x", "y"}
    names = {theirs: ours for theirs, ours in _WORDS if ours in own and theirs not in own}
    own_words = {theirs: ours for theirs, ours in _OF.get(function.__name__, {}).items() if ours in own}
    return Words(names | own_words, tuple(p.name for p in parameters if p.kind is p.POSITIONAL_ONLY))


def in_words(
    name: str, words: Words, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments as a function of these words takes them. Raises: AttributeValueError."""
    if kwargs.keys().isdisjoint(words.names) and kwargs.keys().isdisjoint(words.positional):
        return args, kwargs
    found = {}
    for word, value in kwargs.items():
        ours = words.names.get(word, word)
        if ours in found or (ours is not word and ours in kwargs):
            raise AttributeValueError(f"{name}: {word!r} and {ours!r} are the same argument")
        found[ours] = value
    by_position = [*args]
    for ours in words.positional[len(args) :]:
        if ours not in found:
            break
        by_position.append(found.pop(ours))
    return tuple(by_position), found


def named(function: F, name: str, doc: str) -> F:
    """Give a function made by another the name it is offered under, and its docstring."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function
