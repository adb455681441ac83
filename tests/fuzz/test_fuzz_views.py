"""Programs of views, written by a generator, agree with PyTorch and with NumPy: lazy, compiled, eager."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from benchmarks.surface.draws import Call, Draws
from benchmarks.surface.entries import Entry, entries
from benchmarks.surface.layers import call_of
from benchmarks.surface.twins import _function
from fuzz_views import judged, written

import stratal as st
from stratal.base import tree

HAS_TORCH = importlib.util.find_spec("torch") is not None
SPACES = ("torch", "torch.special", "torch.linalg", "torch.nn.functional", "torch.fft")
# Results that are stretched: `fill_` writes to them in PyTorch, and is refused here.
STRETCHED = {"broadcast_arrays", "broadcast_to", "meshgrid"}


def _torch() -> ModuleType:
    return pytest.importorskip("torch")  # type: ignore[no-any-return]


@pytest.mark.parametrize("mode", ["lazy", "compiled", "eager"])
def test_views_agree_with_numpys(mode: str) -> None:
    for seed in range(1, 6 if mode == "compiled" else 13):
        assert judged(written(seed, gradients=False), st, None, mode) is None, seed


@pytest.mark.torch
@pytest.mark.parametrize("mode", ["lazy", "compiled", "eager"])
def test_views_and_their_gradients_agree_with_pytorchs(mode: str) -> None:
    torch = _torch()
    for seed in range(100, 105 if mode == "compiled" else 110):
        assert judged(written(seed, gradients=True), st, torch, mode) is None, seed


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["lazy", "compiled", "eager"])
@pytest.mark.parametrize("start", range(0, 2000, 100))
def test_many_programs_of_views_agree(mode: str, start: int) -> None:
    torch: Any = _torch() if HAS_TORCH else None
    for seed in range(start, start + 100):
        program = written(seed, torch is not None and seed % 2 == 0, length=8)
        assert judged(program, st, torch, mode) is None, seed


def _twin(entry: Entry) -> Any:
    found = (_function(space, name) for space in SPACES for name in (entry.name, *entry.aliases))
    return next((f for f in found if f is not None), None)


def _written_arguments(make: Any, kind: type, call: Call, function: Any) -> list[tuple[bool, ...]]:
    """Return which arguments change where each result of a call is overwritten."""
    given: list[Any] = []

    def argument(array: Any) -> Any:
        given.append(make(array))
        return given[-1]

    results = call.mapped(argument).of(function)
    found = []
    for result in (x for x in _leaves(results) if isinstance(x, kind)):
        before = [np.array(t.tolist()) for t in given]
        result.logical_not_() if str(result.dtype).endswith("bool") else result.fill_(77)
        now = [np.array(t.tolist()) for t in given]
        found.append(tuple(not np.array_equal(a, b, a.dtype.kind in "fc") for a, b in zip(before, now)))  # noqa: B905
    return found


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _leaves(part)
    else:
        yield from tree.leaves(value)


@pytest.mark.torch
@pytest.mark.slow
def test_results_of_functions_are_views_where_pytorchs_are() -> None:
    torch = _torch()
    wrong, compared = [], 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for entry in entries():
            call, theirs = call_of(entry, Draws(6)), _twin(entry)
            if call is None or theirs is None or entry.name in STRETCHED:
                continue
            try:
                want = _written_arguments(torch.tensor, torch.Tensor, call, theirs)
            except Exception:  # it takes other arguments there
                continue
            got = _written_arguments(st.tensor, st.Tensor, call, entry.value)
            compared += 1
            if got != want and len(got) == len(want):
                wrong.append(f"{entry.path}: {got} for {want}")
    assert not wrong, "\n".join(wrong)
    assert compared > 400


# -- single contracts ----------------------------------------------------------------------------------------
def test_a_recorded_call_that_gives_views_and_a_value_keeps_every_write() -> None:
    for k in range(4):
        x = st.full((2, 3), float(k))
        row, value, turned = x[0], x * 1, x.T
        row.add_(5)
        turned.mul_(2)
        assert x.tolist() == [[2.0 * (k + 5)] * 3, [2.0 * k] * 3]
        assert row.tolist() == x[0].tolist() and value.tolist() == [[float(k)] * 3] * 2


def test_views_of_what_is_gone_still_show_each_other() -> None:
    x = st.zeros(3, 3)
    row, column, block = x[1], x[:, 1], x[:2, :2]
    del x
    row.add_(1.0)
    column.mul_(3.0)
    assert row.tolist() == [1, 3, 1] and column.tolist() == [0, 3, 0] and block.tolist() == [[0, 0], [1, 3]]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_write_that_no_gradient_sees_leaves_history(compiled: bool) -> None:
    def write(y: st.Tensor) -> None:
        with st.no_grad():
            y[0].mul_(3.0)
        y.detach().add_(1.0)

    w = st.tensor([2.0, 5.0]).requires_grad_()
    y = w * 2
    (st.compile(write) if compiled else write)(y)
    assert y.tolist() == [13, 11] and y.requires_grad
    (y * y).sum().backward()
    assert w.grad is not None and w.grad.tolist() == [52, 44]


def test_a_compiled_write_shows_in_views_taken_outside() -> None:
    x = st.zeros(2, 3)
    row, copy = x[0], x.T.reshape(-1)
    double = st.compile(lambda a: a.add_(1.0))
    for k in range(1, 5):
        double(x)
        assert row.tolist() == [float(k)] * 3 and copy.tolist() == [0.0] * 6
    double(row)
    assert x.tolist() == [[5.0] * 3, [4.0] * 3]


def test_a_stretched_view_is_not_written_and_a_shape_that_needs_a_copy_is_no_view() -> None:
    x = st.zeros(1, 3)
    with pytest.raises(st.StratalError, match="stretched"):
        x.expand(2, 3).add_(1.0)
    y = st.zeros(2, 3)
    with pytest.raises(st.StratalError, match="needs a copy"):
        y.T.view(-1)
    y.T.reshape(-1).add_(1.0)
    y.T.contiguous().add_(1.0)
    assert y.sum().item() == 0.0 and not y.T.is_contiguous() and y.T.T.is_contiguous()


def test_a_recorded_reshape_copies_what_lies_otherwise() -> None:
    for k in range(6):
        x = st.zeros(2, 3, 2)
        base = x.permute(2, 1, 0) if k > 2 else x
        base.reshape(2, -1).fill_(1.0)
        assert x.sum().item() == (0.0 if k > 2 else 12.0)
