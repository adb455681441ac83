"""Functions that are run again in the backward pass, so that it keeps less."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from stratal.base.errors import CaptureError
from stratal.graph.node import Input, make
from stratal.ops.control.call import Checkpoint
from stratal.tensor.arguments import check_function
from stratal.tensor.build import where_now
from stratal.tensor.tensor import Tensor
from stratal.tensor.transformations.regions import Operands, Slots, captured, closed, finished, trace_bodies
from stratal.tensor.values.binding import node_and_track
from stratal.tensor.values.state import MODE


def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: Any = None, **kwargs: Any) -> Any:
    """Return function(*args, **kwargs), to be run again in the backward pass rather than keep its values.

    What reverse mode keeps is the arguments, and what the function reads from around it. Without arguments it
    returns such a function, as a decorator. Random numbers are the same both times. `use_reentrant` is
    PyTorch's, and says nothing here. Raises: CaptureError for a function with effects (`st.host_call`).
    Source: Chen et al., "Training deep nets with sublinear memory cost", 2016.
    """
    check_function("checkpoint", function)
    if args or kwargs:
        return _run_twice(function, args, kwargs)

    @functools.wraps(function)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        return _run_twice(function, args, kwargs)

    return checkpointed


def _run_twice(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not MODE.grad:
        return function(*args, **kwargs)
    given = Slots((args, kwargs))

    def body(fresh: list[Tensor]) -> tuple[list[Tensor], Any]:
        own, named = given.filled(fresh)
        found = Slots(function(*own, **named))
        return found.tensors, found

    (region,) = trace_bodies(("checkpoint",), given.types, (body,))
    if region.tokens:
        raise CaptureError("checkpoint: a function with effects cannot be run twice", got="st.host_call",
                           hint="call it outside, or pass pure=True")  # fmt: skip
    roots = [*region.results, *region.threaded_results]
    outer = captured(roots, region.all_inputs)
    outer.sort(key=lambda n: isinstance(n.op, Input))  # parameters come last: they are there anyway
    graph = closed(region.name, region.all_inputs, outer, roots)
    states = [node_and_track(t)[0] for t in region.threaded]
    ops = Operands().tensors(given.tensors).outer([*states, *outer], [region])
    hidden = len(ops.nodes) - sum(isinstance(n.op, Input) for n in outer)
    node = make(Checkpoint(graph, hidden), *ops.nodes, where=where_now())
    results = finished(node, ops.track, [region], len(region.results), 0)
    return region.extra.filled(results[: len(region.results)])
