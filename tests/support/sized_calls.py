"""Calls of the whole public surface with sizes that change: each entry along each axis of its operands.

An entry's call comes from the surface list; an axis of its first array, or two, and the axes of other arrays
that have the same number and size, take five sizes. What a call gives is its values, the gradients of its
operands and parameters, and its buffers.
"""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from benchmarks.surface.draws import Call, Draws
from benchmarks.surface.entries import Entry, entries
from benchmarks.surface.layers import LAYERS, call_of

import stratal as st
from stratal.base import tree
from stratal.base.errors import CaptureError

SIZES = (3, 4, 7, 2, 5)
OTHERS = (5, 2, 4, 6, 3)  # of a second axis
Axes = set[tuple[int, int]]  # an array's number and one of its axes
FAMILIES = ("math", "special", "linalg", "fft", "random", "functional", "layers")
_ELEMENTS = 64  # of an operand in the surface's call


class Case(NamedTuple):
    """A function, its calls at several sizes, and the module whose parameters and buffers count."""

    name: str
    function: Callable[..., Any]
    calls: tuple[Call, ...]
    module: Any = None

    def step(self) -> Callable[..., dict[str, Any]]:
        """Return a function of tensors in place of the arrays, on a module of its own in the same state.

        It gives the values of a call, the gradients of a loss of them, and the module's buffers.
        """
        module = copy.deepcopy(self.module)
        function = self.function if module is None else module
        parameters = [] if module is None else list(module.parameters())
        buffers = [] if module is None else list(module.buffers())
        operands, structure = tree.flatten((self.calls[0].args, dict(self.calls[0].kwargs)))
        places = [k for k, x in enumerate(operands) if isinstance(x, np.ndarray)]
        plain = [None if k in places else x for k, x in enumerate(operands)]

        def step(*tensors: st.Tensor) -> dict[str, Any]:
            for p in parameters:
                p.grad = None
            given = list(plain)
            leaves = [x.clone().requires_grad_() if x.dtype.is_float else x for x in tensors]
            for k, x in zip(places, leaves, strict=True):
                given[k] = x
            args, kwargs = tree.unflatten(structure, given)
            result = [t for t in tree.leaves(function(*args, **kwargs)) if isinstance(t, st.Tensor)]
            loss = total(result)
            if loss is not None:
                loss.backward()
            return {
                "value": [t.detach() for t in result],
                "gradient": [x.grad for x in leaves if x.dtype.is_float],
                "parameters": [p.grad for p in parameters],
                "buffers": [b.detach() for b in buffers],
            }

        return step


def total(results: Sequence[st.Tensor]) -> Any:
    """Return a loss that weighs every element by its own value; None where nothing takes gradients."""
    parts = [((t * t + t) / 2).sum() for t in results if t.dtype.is_float and t.requires_grad]
    return sum(parts[1:], parts[0]) if parts else None


def arrays_of(call: Call) -> list[np.ndarray[Any, Any]]:
    """Return the arrays of a call in order."""
    return [x for x in tree.leaves((call.args, dict(call.kwargs))) if isinstance(x, np.ndarray)]


def cut(array: np.ndarray[Any, Any], axis: int, size: int) -> np.ndarray[Any, Any]:
    """Return an array with another size of an axis: cut, or repeated with values a little nearer to 0."""
    have = array.shape[axis]
    taken = np.take(array, np.arange(size) % have, axis)
    if size > have and array.dtype.kind in "fc":
        shape = [1] * array.ndim
        shape[axis] = size
        taken = taken * (1 - 0.03 * (np.arange(size) // have)).astype(array.real.dtype).reshape(shape)
    return np.ascontiguousarray(taken.astype(array.dtype))


def axes_of(call: Call) -> list[list[Axes]]:
    """Return for each axis of the first array sets of axes that may change with it, in the order to try."""
    given = arrays_of(call)
    first = next((a for a in given if a.ndim), None)
    if first is None:
        return []
    found = []
    lead = next(k for k, a in enumerate(given) if a is first)
    for axis, size in enumerate(first.shape):
        front = {(k, axis) for k, a in enumerate(given) if a.ndim > axis and a.shape[axis] == size}
        back = axis - first.ndim
        deep = ((k, a) for k, a in enumerate(given) if a.ndim >= -back)
        behind = {(k, a.ndim + back) for k, a in deep if a.shape[back] == size}
        every = {(k, x) for k, a in enumerate(given) for x in range(a.ndim) if a.shape[x] == size}
        found.append([front, behind, {(lead, axis)}, every])
    return found


def resized(call: Call, axes: Axes, size: int) -> Call:
    """Return a call whose arrays have another size along some axes."""
    number = iter(range(1 << 20))

    def made(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        k = next(number)
        for _, axis in sorted(x for x in axes if x[0] == k):
            a = cut(a, axis, size)
        return a

    return call.mapped(made)


class Variant(NamedTuple):
    """An entry with one option set, the axes that change, and whether in training."""

    entry: Entry
    option: tuple[tuple[str, Any], ...]
    axes: tuple[int, ...]
    training: bool

    def __str__(self) -> str:
        options = "".join(f" {k}={v}" for k, v in self.option)
        mode = (" train" if self.training else " eval") * (self.entry.family == "layers")
        return f"{self.entry.path}{options} axes {self.axes}{mode}"


OPTIONS: dict[str, tuple[Any, ...]] = {
    "groups": (2, 8), "stride": (2,), "dilation": (2,), "padding": (1, "same"), "output_padding": (1,),
    "padding_mode": ("circular", "reflect", "replicate"), "reduction": ("sum", "none", "mean", "batchmean"),
    "mode": ("sum", "max", "nearest", "bilinear", "bicubic", "reflect", "circular", "replicate", "full"),
    "dim": (0, 1, -1), "axis": (0, 1, -1), "num_layers": (2,), "proj_size": (3,), "dropout": (0.3,),
    "momentum": (None,), "label_smoothing": (0.1,), "ignore_index": (1,), "p": (1.0, 3.0), "offset": (1, -1),
    "correction": (0,), "n": (2, 5), "shifts": (1,), "diagonal": (1,), "k": (1, -1), "decimals": (1,),
}  # fmt: skip
"""Values to try for parameters of a name, where the entry has one; bools are turned over."""


def variants(families: Sequence[str] = FAMILIES) -> Iterator[Variant]:
    """Yield every entry as in the list, along each axis of its first array and along the first and another;
    and with each of its options, along each axis.
    """
    for entry in entries(tuple(families)):
        for option in ((), *_options(entry)):
            found = _prepared(entry, option)
            if found is None:
                continue
            rank = len(axes_of(found[1]))
            for axes in [(k,) for k in range(rank)] + [(0, k) for k in range(1, rank) if not option]:
                yield Variant(entry, option, axes, True)
                if entry.family == "layers" and not option:
                    yield Variant(entry, option, axes, False)


def _options(entry: Entry) -> Iterator[tuple[tuple[str, Any], ...]]:
    try:
        parameters = inspect.signature(entry.value).parameters.values()
    except (TypeError, ValueError):
        return
    for p in parameters:
        if isinstance(p.default, bool):
            yield ((p.name, not p.default),)
        elif p.default is not p.empty:
            yield from (((p.name, value),) for value in OPTIONS.get(p.name, ()) if value != p.default)


def _prepared(entry: Entry, option: tuple[tuple[str, Any], ...]) -> tuple[Any, Call] | None:
    st.manual_seed(0)
    try:
        if entry.family == "layers":
            layer = LAYERS.get(entry.name)
            if layer is None:
                return None
            made = Call(layer.made.args, {**layer.made.kwargs, **dict(option)})
            return made.of(entry.value), layer.called(Draws(_ELEMENTS))
        call = call_of(entry, Draws(_ELEMENTS))
        if call is None:
            return None
        call = Call(call.args, {**call.kwargs, **dict(option)})
        return (entry.value, call) if arrays_of(call) else _of_a_size(entry.value, call)
    except Exception:
        if not option:
            raise
        return None  # not an option of this entry


def _of_a_size(function: Callable[..., Any], call: Call) -> tuple[Any, Call]:
    """Return a function of a tensor that hands its length over in place of the sizes in a call."""

    def sized(value: Any, n: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(sized(v, n) for v in value)
        return n if type(value) is int and value > 1 else value

    def made(x: st.Tensor) -> Any:
        kwargs = {k: sized(v, x.shape[0]) for k, v in call.kwargs.items()}
        return function(*sized(call.args, x.shape[0]), **kwargs)

    return made, Call((np.zeros(_ELEMENTS, np.float32),))


def case_of(variant: Variant) -> Case | None:
    """Return an entry's calls along axes at sizes it takes; None where it takes but one."""
    found = _prepared(variant.entry, variant.option)
    assert found is not None
    function, call = found
    module = function if variant.entry.family == "layers" else None
    if module is not None:
        module.train(variant.training)
    ways = axes_of(call)
    for chosen in itertools.product(*(ways[k] for k in variant.axes)):
        calls = [call] * len(SIZES)
        for axes, sizes in zip(chosen, (SIZES, OTHERS), strict=False):
            calls = [resized(c, axes, n) for c, n in zip(calls, sizes, strict=True)]
        taken = [c for c in calls if _works(Case(str(variant), function, (c,), module), c)]
        if len(taken) > 1:
            return Case(str(variant), function, tuple(taken), module)
    return None


def _works(case: Case, call: Call) -> bool:
    try:
        uncompiled(case.step(), call, 0)
    except Exception:
        return False
    return True


def uncompiled(step: Callable[..., Any], call: Call, seed: int) -> Any:
    """Return what a call gives op by op."""
    with st.eager():
        return compiled(step, call, seed)


def compiled(step: Callable[..., Any], call: Call, seed: int) -> Any:
    """Return what a call gives."""
    st.manual_seed(seed)
    return tree.map(_array, step(*map(st.tensor, arrays_of(call))))


def _array(leaf: Any) -> Any:
    return np.array(leaf.numpy()) if isinstance(leaf, st.Tensor) else leaf


def poisoned(read: Any, arguments: Sequence[Any], storage: Callable[..., Any]) -> Any:
    """Fill the room for an argument with NaN or an absurd number before the argument is put there."""
    room = read.room.array
    if room.dtype.kind in "fc":
        room[...] = np.nan
    else:
        room[...] = True if room.dtype.kind == "b" else np.iinfo(room.dtype).max
    return storage(read, arguments)


def fault_of(case: Case, dynamic: bool | None = None) -> str | None:
    """Return how one compiled function differs from the uncompiled one at the sizes; None if it does not.

    What cannot be captured at known sizes either need not be at others.
    """
    ours, theirs = st.compile(case.step(), dynamic=dynamic), case.step()
    for k, call in enumerate(case.calls):
        want = uncompiled(theirs, call, k)
        try:
            got = compiled(ours, call, k)
        except CaptureError as error:
            return None if _refused(case, call) == error.rule else f"{type(error).__name__}: {error}"
        for what, values in want.items():
            for number, (g, w) in enumerate(zip(got[what], values, strict=True)):
                if (g is None) != (w is None):
                    return f"{what} {number} at call {k}: {g} instead of {w}"
                if w is not None and (fault := difference(g, w)):
                    shapes = [a.shape for a in arrays_of(call)]
                    return f"{what} {number} of {shapes} (call {k}, capture {ours.captures}): {fault}"
    return None


def _refused(case: Case, call: Call) -> str:
    try:
        compiled(st.compile(case.step(), dynamic=False), call, 0)
    except CaptureError as error:
        return error.rule
    return ""


def difference(got: Any, want: Any) -> str:
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    finite = np.abs(want[np.isfinite(want)]) if want.dtype.kind in "fc" else np.zeros(0)
    scale = max(1.0, float(finite.max(initial=0)))
    near = {"float64": 1e-9, "float16": 1e-3}.get(want.dtype.name, 1e-4)
    if np.allclose(got, want, near, near / 10 * scale, equal_nan=True):
        return ""
    return f"{np.ravel(got)[:5]} instead of {np.ravel(want)[:5]}"
