"""Tensors that wait in a file, so that a model may be larger than the memory it is trained in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from stratal.base.errors import CaptureError, DTypeError
from stratal.nn.module import Module
from stratal.runtime import far_memory
from stratal.runtime.pool import LOCK
from stratal.tensor.lazy import flushing
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.state import MODE

T = TypeVar("T", bound="Tensor | Module")


def offload(what: T) -> T:
    """Let a tensor, or the parameters and buffers of a module, lie in a file, and return it.

    The file is in `settings.offload_dir`, else in the system's folder for temporary files; it has no name and
    goes with the last of its tensors, or with the process. Everything works on such tensors as before: the
    system reads pages when they are touched, and takes them back under pressure. What NumPy sees (`numpy()`)
    stays in memory. Build a model larger than memory block by block:

        net = nn.Sequential(*[st.offload(Block()) for _ in range(48)])

    Raises: OffloadError where the file cannot be made; then all stay where they were.
    """
    if MODE.trace is not None:
        raise CaptureError("offload: memory is not moved inside a function that is being captured")
    tensors = list(_tensors(what))
    flushing.flush(tensors)
    with LOCK:
        far_memory.move([t._storage for t in tensors if t._storage is not None])
    return what


def _tensors(what: object) -> Iterable[Tensor]:
    if isinstance(what, Tensor):
        return [what]
    if isinstance(what, Module):
        return [*what.parameters(), *what.buffers()]
    raise DTypeError("offload: takes a tensor or a module", got=type(what).__name__)


__all__ = ["offload"]
