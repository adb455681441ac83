"""`freeze`: a module's forward pass with its weights as they are now, one inference program a batch size."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from stratal.base.errors import AttributeValueError, CaptureError, FormatError, ShapeError
from stratal.formats.artifact import MAX_BATCH, MAX_SIZES, FrozenModel
from stratal.formats.signature import NAME, Signature, TensorSpec
from stratal.formats.traced import detached, evaluating, graph_of
from stratal.formats.training_sample import training_sample
from stratal.graph.graph import Graph
from stratal.graph.node import label_of
from stratal.tensor.tensor import tensor

Array = np.ndarray[Any, Any]
SIZES: Final = (1, 2, 4, 8, 16, 32)


def freeze(
    module: Callable[..., Any], sample: Any, *, batch_sizes: Sequence[int] | None = SIZES, name: str = "",
    training: Any = None,
) -> FrozenModel:  # fmt: skip
    """Return the forward pass of a module in evaluation mode, for inference: a `FrozenModel`.

    `sample` is an input (or a tuple of several) whose axis 0 counts rows. A program is made for each of
    `batch_sizes`; with `None` the sample's own shapes are the only ones. Weights are copied: training goes on
    without changing what was frozen. What only training needs (dropout, batch statistics, gradients) is not
    in the program, and what depends on weights alone is computed once, not per call.

    Rows must not depend on each other, since a server puts rows of different requests into one batch: that is
    tried on the sample with its other rows changed.

    `training` is an input (or a tuple of several) of training data, 50 rows or more: features of at most 1000
    of them are stored in the artefact, and a server tells where requests differ from them.

    Raises: ShapeError where outputs have no batch axis or rows depend on each other, FormatError for what is
    no module, CaptureError for what has no graph.
    """
    if not callable(module) or not hasattr(module, "state_dict"):
        raise FormatError("freeze: a module", got=type(module).__name__, hint="st.freeze(net, example)")
    examples = _arrays(sample)
    sizes = _checked_sizes(batch_sizes, examples)
    weights = {key: np.array(detached(value)) for key, value in module.state_dict(keep_vars=True).items()}
    graphs = {}
    with evaluating(module):
        for size in sizes:
            types = [tensor(x).type for x in examples]
            if batch_sizes is not None:
                types = [t.with_shape((size, *t.shape[1:])) for t in types]
            graphs[size] = graph_of(module, types, dict(module.state_dict(keep_vars=True)))
    used = {label_of(node) for graph in graphs.values() for node in graph.inputs}
    signature = _signature(module, examples, graphs, batched=batch_sizes is not None)
    kept = {key: array for key, array in weights.items() if key in used}
    known = None if training is None else training_sample(_arrays(training), signature)
    frozen = FrozenModel(name or type(module).__name__, signature, graphs, kept, training=known)
    if signature.batched:
        _check_rows(frozen, examples)
    return frozen


def _arrays(given: Any) -> list[Array]:
    return [np.asarray(tensor(x)) for x in (given if isinstance(given, tuple) else (given,))]


def _checked_sizes(batch_sizes: Sequence[int] | None, examples: Sequence[Array]) -> list[int]:
    if not examples:
        raise ShapeError("freeze: a sample of at least one input", got="none")
    if batch_sizes is None:
        return [1]
    sizes = sorted(set(batch_sizes))
    if not 0 < len(sizes) <= MAX_SIZES or not all(type(n) is int and 0 < n <= MAX_BATCH for n in sizes):
        raise AttributeValueError(
            "freeze: batch sizes are positive counts of rows", got=repr(batch_sizes)[:80]
        )
    if any(x.ndim == 0 for x in examples) or len({len(x) for x in examples}) != 1 or not len(examples[0]):
        shapes = ", ".join(str(list(x.shape)) for x in examples)
        raise ShapeError(
            "freeze: axis 0 of every input counts the rows of the sample", got=shapes,
            hint="batch_sizes=None freezes these shapes alone, without a batch axis",
        )  # fmt: skip
    return sizes


def _rows(example: Array, size: int) -> Array:
    """Return `size` rows, those of the example in turn."""
    return example[np.arange(size) % len(example)]


def _signature(
    module: Any, examples: Sequence[Array], graphs: Mapping[int, Graph], batched: bool
) -> Signature:
    names = _input_names(module, len(examples))
    graph = next(iter(graphs.values()))
    inputs = tuple(
        TensorSpec(name, tensor(x[:1]).dtype if batched else tensor(x).dtype,
                   x.shape[1:] if batched else x.shape, batched)
        for name, x in zip(names, examples, strict=True)
    )  # fmt: skip
    types = graph.output_types
    labels = ["output"] if len(types) == 1 else [f"output_{k}" for k in range(len(types))]
    for size, other in graphs.items() if batched else ():
        shapes = [t.ints for t in other.output_types]
        wanted = [(size, *t.ints[1:]) for t in types]
        if shapes != wanted or len(shapes) != len(types):
            raise ShapeError(
                "freeze: axis 0 of an output does not count the rows of the input",
                got=f"{', '.join(str(list(s)) for s in shapes)} for {size} rows",
                hint="batch_sizes=None freezes the sample's shapes alone, without a batch axis",
            )
    outputs = tuple(
        TensorSpec(label, t.dtype, t.ints[1:] if batched else t.ints, batched)
        for label, t in zip(labels, types, strict=True)
    )
    return Signature(inputs, outputs, batched)


def _input_names(module: Any, count: int) -> list[str]:
    """Return the names of forward's parameters, or numbered ones where it does not name so many."""
    try:
        found = [
            p.name for p in inspect.signature(getattr(module, "forward", module)).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]  # fmt: skip
    except (TypeError, ValueError):
        found = []
    named = len(found) >= count and all(NAME.fullmatch(name) for name in found[:count])
    return found[:count] if named else [f"input_{k}" for k in range(count)]


def _check_rows(frozen: FrozenModel, examples: Sequence[Array]) -> None:
    """Refuse a model one row of which changes with another: run once more with every other row changed."""
    size = next((n for n in frozen.batch_sizes if n > 1), 1)
    if size == 1:
        return
    inputs = [_rows(x[:1], size) for x in examples]
    others = [np.concatenate([x[:1], _other_rows(x[:1], x, size - 1)]) for x in examples]
    if all(np.array_equal(x, y) for x, y in zip(inputs, others, strict=True)):
        raise CaptureError(
            "freeze: whether rows depend on each other cannot be tried on this sample",
            got="integers that are all equal", hint="give a sample of two different rows",
        )  # fmt: skip
    before, after = frozen.run_size(size, inputs), frozen.run_size(size, others)
    if any(x[0].tobytes() != y[0].tobytes() for x, y in zip(before, after, strict=True)):
        raise ShapeError(
            "freeze: a row of the output changes with other rows of the input", got=f"a batch of {size}",
            hint="batch_sizes=None freezes the sample's shapes alone, without a batch axis",
        )  # fmt: skip


def _other_rows(first: Array, example: Array, count: int) -> Array:
    """Return rows that differ from the first: others of the sample, or its values in another order."""
    different = next((row for row in example if row.tobytes() != first[0].tobytes()), None)
    row = np.roll(first[0].ravel(), 1).reshape(first[0].shape) if different is None else different
    if different is None and np.issubdtype(first.dtype, np.floating):
        row = (row * 0.5 + 0.25).astype(first.dtype)
    return np.repeat(row[None], count, 0)
