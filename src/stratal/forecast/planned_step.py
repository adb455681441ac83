"""The memory of a training step, from its plan: captured and planned as a compiled one is, and never run.

    capture -> Graph -> every decision of the compiler -> offsets of the arena; no code, no arena
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.base.tree import leaves as leaves_of
from stratal.base.types import TensorType
from stratal.compiler import planned
from stratal.forecast.subject import Subject, give_state
from stratal.plan.build import memory_of
from stratal.tensor.capture import Compiled
from stratal.tensor.capture.ahead import captured_ahead
from stratal.tensor.capture.replay import Entry, FromHandle
from stratal.tensor.tensor import Tensor, tensor
from stratal.tensor.values.state import enable_grad, no_grad


class StepBytes(NamedTuple):
    """Bytes a step needs beside parameters, gradients and the optimizer's state."""

    inputs: int  # the batch, buffers of the model, numbers such as the learning rate
    activations: int  # the arena, which activations and temporaries share, and results
    workspace: int  # scratch of kernels, constants

    @property
    def total(self) -> int:
        return sum(self)


class Step:
    """Plans the step of a model for batches of any size, one plan per size."""

    def __init__(self, subject: Subject, batch: Any, loss: Callable[..., Any] | None) -> None:
        """Raises: AttributeValueError, DTypeError."""
        if loss is not None and not callable(loss):
            raise DTypeError("estimate: loss is a function of the model's result and the rest of the batch",
                             got=repr(loss)[:80])  # fmt: skip
        if subject.optimizer is not None and not subject.optimizer._managed:
            raise AttributeValueError(
                "estimate: the step of this optimizer cannot be planned",
                got=type(subject.optimizer).__name__,
                hint="leave batch out, for the state alone; one that defines update() is planned",
            )  # fmt: skip
        self._subject = subject
        self._names = list(batch) if isinstance(batch, Mapping) else None
        self._types, self._same = batch_types(batch, subject)
        self._loss = loss
        self._planned: dict[int | None, StepBytes] = {}

    @property
    def batch_size(self) -> int:
        """The size of axis 0, which all tensors of the batch have in common. Raises: ShapeError."""
        sizes = {t.ints[0] for t in self._types if t.ndim}
        if len(sizes) != 1:
            raise ShapeError(
                "estimate: the tensors of a batch have one size of axis 0 in common",
                got=", ".join(map(str, self._types)), hint="the largest batch is looked for along axis 0",
            )  # fmt: skip
        return sizes.pop()

    def bytes(self, batch_size: int | None = None) -> StepBytes:
        """Return what a step needs, of the batch as given or of another size."""
        if batch_size is not None and batch_size == self.batch_size:
            batch_size = None
        found = self._planned.get(batch_size)
        if found is None:
            types = self._types
            if batch_size is not None:
                types = [t.with_shape((batch_size, *t.shape[1:])) if t.ndim else t for t in types]
            found = self._planned[batch_size] = self._plan(types)
        return found

    def _plan(self, types: Sequence[TensorType]) -> StepBytes:
        subject = self._subject
        assert subject.region is not None
        if subject.optimizer is not None:
            give_state(subject.optimizer, subject.region)
        made = [subject.region.tensor(t) for t in types]
        entry = self._captured([made[k] for k in self._same])
        executable, _, _ = planned(entry.graph)
        memory = memory_of(executable)
        given = [v.aval.nbytes for v in entry.graph.inputs]
        state = sum(given[k] for k in self._positions_of_state(entry))
        return StepBytes(
            inputs=sum(given) - state,
            activations=memory["arena_bytes"] + memory["output_bytes"],
            workspace=memory["scratch_bytes"] + memory["constant_bytes"] + memory.get("persistent_bytes", 0),
        )

    def _captured(self, batch: list[Tensor]) -> Entry:
        model, optimizer, loss = self._subject.model, self._subject.optimizer, self._loss
        names = self._names
        assert model is not None

        def forward(*batch: Tensor) -> Any:
            if names is not None:
                result = model(**dict(zip(names, batch, strict=True)))
                return result if loss is None else loss(result)
            return model(*batch) if loss is None else loss(model(batch[0]), *batch[1:])

        def training_step(*batch: Tensor) -> Tensor:
            assert optimizer is not None
            found = scalar_of(forward(*batch))
            optimizer.zero_grad()
            found.backward()
            optimizer.step()
            return found

        with no_grad() if optimizer is None else enable_grad():
            step = Compiled(forward if optimizer is None else training_step, "step", dynamic=False)
            return captured_ahead(step, *batch)

    def _positions_of_state(self, entry: Entry) -> set[int]:
        """Return which inputs of a captured step are parameters, gradients, or the optimizer's slots."""
        subject = self._subject
        assert subject.model is not None
        known = {id(p) for p in subject.model.parameters()}
        if subject.optimizer is not None:
            known |= {id(x) for s in subject.optimizer.state.values() for x in s.entries.values()}
        found = {k for k, r in enumerate(entry.reads) if isinstance(r, FromHandle) and id(r.handle) in known}
        return found | {position for _, position in entry.grads}


def batch_types(batch: Any, subject: Subject) -> tuple[list[TensorType], list[int]]:
    """Return the types of a batch's tensors, and for each which one of them it is: the first that is the same
    object. Floats are of the precision of the model.
    """
    given = list(batch) if isinstance(batch, (tuple, list)) else [batch]
    given = list(batch.values()) if isinstance(batch, Mapping) else given
    try:
        types = [x.type if isinstance(x, Tensor) else tensor(x).type for x in given]
    except (TypeError, ValueError) as error:
        raise DTypeError(
            "estimate: a batch is a tensor, several in a tuple, or a dict of named ones",
            got=str(error).splitlines()[0][:80],
        ) from None  # fmt: skip
    assert subject.model is not None
    dtypes = {p.dtype for p in subject.model.parameters() if p.dtype.is_float}
    if len(dtypes) == 1:
        (dtype,) = dtypes
        types = [t.with_dtype(dtype) if t.dtype.is_float else t for t in types]
    first: dict[int, int] = {}
    return types, [first.setdefault(id(x), k) for k, x in enumerate(given)]


def scalar_of(result: Any) -> Tensor:
    """Return what a step takes the gradient of: a result of one element, or the mean of the first result."""
    floats = [x for x in leaves_of(result) if isinstance(x, Tensor) and x.dtype.is_float]
    if not floats:
        raise DTypeError("estimate: the model, or the loss, returns a float tensor",
                         got=type(result).__name__)  # fmt: skip
    first = floats[0]
    return first if first.ndim == 0 else first.float().mean()
