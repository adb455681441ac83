"""State dicts: names and values of a module's state, out of it and back into it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stratal.base.errors import FormatError
from stratal.tensor.state import no_grad
from stratal.tensor.tensor import Tensor

if TYPE_CHECKING:
    from stratal.nn.module import Module


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


def named_state(module: Module, prefix: str = "") -> dict[str, Tensor]:
    """Return the live parameters and persistent buffers by dotted name; a shared one under each of its
    names.
    """
    found: dict[str, Tensor] = {}
    start = prefix[:-1] if prefix.endswith(".") else prefix
    for owner, part in module.named_modules(prefix=start, remove_duplicate=False):
        dotted = f"{owner}." if owner else ""
        for name, value in [*part._parameters.items(), *part._buffers.items()]:
            if value is not None and name not in part._non_persistent:
                found[dotted + name] = value
    return found


def read_state(module: Module, prefix: str, keep_vars: bool) -> dict[str, Tensor]:
    """Return `named_state`, detached from later changes unless `keep_vars`."""
    live = named_state(module, prefix)
    return live if keep_vars else {name: value.detach() for name, value in live.items()}


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """Return a NumPy array of a tensor of any library; one whose dtype NumPy lacks comes as float32."""
    if isinstance(value, Tensor):
        return np.asarray(value.detach())
    detach = getattr(value, "detach", None)
    value = detach() if callable(detach) else value
    try:
        return np.asarray(value)
    except TypeError:
        return np.asarray(value.float())


def load_into(module: Module, state: Mapping[str, Any], strict: bool) -> LoadResult:
    """Write the values of a state dict into a module's state, all or nothing."""
    own = named_state(module)
    missing = [name for name in own if name not in state]
    unexpected = [name for name in state if name not in own]
    arrays = {name: as_array(state[name]) for name in own if name in state}
    misshapen = [
        f"{name}: {list(array.shape)} for {list(own[name].shape)}"
        for name, array in arrays.items()
        if tuple(array.shape) != tuple(own[name].shape)
    ]
    problems = [f"shape {text}" for text in misshapen]
    if strict:
        problems += [f"missing {name}" for name in missing] + [f"unexpected {name}" for name in unexpected]
    if problems:
        raise StateDictError(
            f"load_state_dict: the state dict does not fit {type(module).__name__}",
            got="; ".join(problems),
            hint="strict=False loads the names that match"
            if not misshapen
            else "the module was built with other sizes",
        )
    with no_grad():
        for name, array in arrays.items():
            own[name].copy_(array)
    return LoadResult(missing, unexpected)
