"""State dicts: whether names and values fit the state of a module, and writing them into it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from stratal.base.errors import FormatError
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.state import no_grad


class StateDictError(FormatError, KeyError):
    """A state dict that does not fit the module it is loaded into."""

    def __str__(self) -> str:  # KeyError would print the repr of its argument
        return FormatError.__str__(self)


class LoadResult(NamedTuple):
    """Names that a state dict lacked, and names it had that the module does not."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"LoadResult(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """Return a NumPy array of a tensor of any library; one whose dtype NumPy lacks comes as float32, what is
    no tensor at all as an array of objects.
    """
    if isinstance(value, Tensor):
        value = value.detach()
        value._value("load_state_dict")  # names what asks, where a compiled function does
        return np.asarray(value)
    detach = getattr(value, "detach", None)
    value = detach() if callable(detach) else value
    try:
        return np.asarray(value)
    except TypeError:
        return np.asarray(value.float() if hasattr(value, "float") else None)
    except ValueError:  # nested lists of unequal lengths
        return np.asarray(None)


def load_into(
    own: Mapping[str, Tensor], state: Mapping[str, Any], strict: bool, owner: str, extra: Collection[str] = ()
) -> LoadResult:
    """Write the values of a state dict into the live tensors of a module, all or nothing.

    `owner` names the module in errors; names in `extra` belong to the state dict and are written elsewhere.
    """
    missing = [name for name in (*own, *extra) if name not in state]
    unexpected = [name for name in state if name not in own and name not in extra]
    arrays = {name: as_array(state[name]) for name in own if name in state}
    misshapen = [
        f"{name}: {list(array.shape)} for {list(own[name].shape)}"
        for name, array in arrays.items()
        if tuple(array.shape) != tuple(own[name].shape)
    ]
    problems = [f"{name}: no array of numbers" for name in arrays if arrays[name].dtype.kind in "OSUmM"]
    problems += [f"shape {text}" for text in misshapen]
    if strict:
        problems += [f"missing {name}" for name in missing] + [f"unexpected {name}" for name in unexpected]
    if problems:
        raise StateDictError(
            f"load_state_dict: the state dict does not fit {owner}",
            got="; ".join(problems),
            hint=_hint(own, state, bool(misshapen)),
        )
    with no_grad():
        for name, array in arrays.items():
            own[name].copy_(array)
    return LoadResult(missing, unexpected)


def _hint(own: Mapping[str, Tensor], state: Mapping[str, Any], misshapen: bool) -> str:
    """Return what to do about a state dict that does not fit: of a checkpoint, which part of it is one."""
    for key, part in state.items():
        if isinstance(part, Mapping) and any(name in own for name in part):
            return f"this is a checkpoint: load_state_dict(checkpoint[{key!r}])"
        for inner, deeper in part.items() if isinstance(part, Mapping) else ():
            if isinstance(deeper, Mapping) and any(name in own for name in deeper):
                return f"this is a checkpoint: load_state_dict(checkpoint[{key!r}][{inner!r}])"
    return (
        "the module was built with other sizes" if misshapen else "strict=False loads the names that match"
    )
