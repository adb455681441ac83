"""In-place operators on views write to what they were taken of, as NumPy's and PyTorch's do."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as s

import stratal as st
from stratal import nn, optim
from stratal.base.errors import NotDifferentiableError

Taking = Callable[[Any], Any]

TAKEN: dict[str, Taking] = {
    "row": lambda x: x[0],
    "column": lambda x: x[:, 1],
    "element of a row": lambda x: x[1][2],
    "steps back": lambda x: x[::-1, ::2],
    "new axis": lambda x: x[None, ..., 1:],
    "reshaped": lambda x: x.reshape(2, 6),
    "flat": lambda x: x.ravel(),
    "squeezed": lambda x: x[:1].squeeze(),
    "transposed": lambda x: x.T,
    "axes swapped": lambda x: x.swapaxes(0, 1),
    "row of the transposed": lambda x: x.T[1],
    "part of a part of a part": lambda x: x[1:].reshape(4, 2).T[1:][0],
}
"""Views both NumPy and we have, of an array [3, 4]."""


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", TAKEN)
def test_what_is_done_to_a_view_is_done_to_what_it_was_taken_of(name: str, compiled: bool) -> None:
    theirs = np.arange(12.0).reshape(3, 4)
    ours = st.tensor(theirs)

    def change(x: Any) -> Any:
        part = TAKEN[name](x)
        part *= 3.0
        part[..., :1] = -1.0
        return part

    def change_scalar(x: Any) -> Any:
        part = TAKEN[name](x)
        part.fill_(-1.0)
        return part

    if name == "element of a row":
        theirs[1, 2] = -1.0
        want, change = theirs[1, 2], change_scalar
    else:
        want = change(theirs)
    got = (st.compile(change) if compiled else change)(ours)
    np.testing.assert_array_equal(got.numpy(), want)
    np.testing.assert_array_equal(ours.numpy(), theirs)


def _numbers(draw: Any, shape: tuple[int, ...], count: int) -> list[tuple[str, Any]]:
    """Return ways to take a view of an array, and of what that gives."""
    steps: list[tuple[str, Any]] = []
    for _ in range(count):
        kind = draw(s.sampled_from(["index", "slice", "turn", "shape"]))
        if kind == "index" and len(shape) > 1:
            k = draw(s.integers(-shape[0], shape[0] - 1))
            steps.append((kind, k))
            shape = shape[1:]
        elif kind == "slice" and shape[0] > 1:
            start, step = draw(s.integers(0, shape[0] - 1)), draw(s.sampled_from([1, 2, -1]))
            steps.append((kind, slice(start, None, step)))
            shape = (len(range(*steps[-1][1].indices(shape[0]))), *shape[1:])
        elif kind == "turn" and len(shape) > 1:
            steps.append((kind, (0, len(shape) - 1)))
            shape = (shape[-1], *shape[1:-1], shape[0])
        elif kind == "shape":
            steps.append((kind, None))
            shape = (1, *shape)
    return steps


def _take(x: Any, step: tuple[str, Any]) -> Any:
    kind, what = step
    if kind in ("index", "slice"):
        return x[what]
    return x.swapaxes(*what) if kind == "turn" else x.reshape((1, *x.shape))


@pytest.mark.sampled(5)
@given(s.data())
def test_views_of_views_agree_with_numpys(data: Any) -> None:
    shape = tuple(data.draw(s.lists(s.integers(1, 4), min_size=1, max_size=3)))
    theirs = np.arange(float(np.prod(shape))).reshape(shape)
    ours = st.tensor(theirs)
    for turn in range(2):
        steps = _numbers(data.draw, shape, 4)
        part, want = ours, theirs
        for step in steps:
            part = _take(part, step)
            new = _take(want, step)
            want = new if np.shares_memory(new, theirs) else want[...]  # reshape of what is turned may copy
            if want is not new:
                return
        part += 10.0 * (turn + 1)
        want += 10.0 * (turn + 1)
        np.testing.assert_array_equal(part.numpy(), want)
        np.testing.assert_array_equal(ours.numpy(), theirs)


def test_rows_in_a_loop_and_pieces() -> None:
    x = st.zeros(4, 3)
    for k, row in enumerate(x):
        row += k
    first, second = x.chunk(2)
    first.zero_()
    second[0][0] = 7.0
    x.diagonal().fill_(-1.0)
    assert x.tolist() == [[-1, 0, 0], [0, -1, 0], [7, 2, -1], [3, 3, 3]]


def test_data_and_detach_are_the_parameter_without_history() -> None:
    net = nn.Linear(2, 2)
    before = net.weight.numpy().copy()
    net(st.ones(1, 2)).sum().backward()
    for p in net.parameters():
        p.data.add_(-0.5 * p.grad)
        p.grad.data.zero_()
    np.testing.assert_array_equal(net.weight.numpy(), before - 0.5)
    assert net.weight.requires_grad and net.weight.is_leaf and net.weight.grad.tolist() == [[0, 0], [0, 0]]
    nn.init.ones_(net.weight.data)
    net.bias.detach()[0] = 3.0
    assert net.weight.tolist() == [[1, 1], [1, 1]] and net.bias.tolist()[0] == 3.0


def test_training_by_data_alone_is_training_by_sgd() -> None:
    st.manual_seed(0)
    ours, theirs = (nn.Linear(3, 1) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    opt = optim.SGD(theirs.parameters(), 0.1)
    x, y = st.randn(16, 3), st.randn(16, 1)
    for _ in range(5):
        for net in (ours, theirs):
            net.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
        opt.step()
        for p in ours.parameters():
            p.data.sub_(0.1 * p.grad)
    np.testing.assert_allclose(ours.weight.numpy(), theirs.weight.numpy(), 1e-6)


def test_gradients_flow_through_what_was_written_by_a_view() -> None:
    def total(w: Any) -> Any:
        x = w * w
        x[0].mul_(3.0)
        x.T[1].add_(w[0])
        return (x * x).sum()

    st.check_grad(total, st.tensor(np.arange(1.0, 5.0).reshape(2, 2)), order=2)


def test_a_view_of_a_leaf_that_takes_gradients_is_refused() -> None:
    w = st.ones(2, 2).requires_grad_()
    with pytest.raises(NotDifferentiableError, match="leaf"):
        w[0].add_(1.0)
    assert w.tolist() == [[1, 1], [1, 1]]
    with st.no_grad():
        w[0].add_(1.0)
    assert w.tolist() == [[2, 2], [1, 1]]


def test_a_view_shows_what_is_done_to_what_it_was_taken_of() -> None:
    x = st.zeros(2, 2)
    row, flat = x[0], x.view(-1)
    x += 1.0
    assert row.tolist() == [1, 1]
    row += 5.0
    assert row.tolist() == [6, 6] and x.tolist() == [[6, 6], [1, 1]] and flat.tolist() == [6, 6, 1, 1]


def test_copies_are_no_views() -> None:
    x = st.ones(3)
    for made in (
        x.clone(),
        st.tensor(x),
        copy.deepcopy(x),
        x[[0, 1, 2]],
        x[x > 0],
        x + 0,
        x.flip(0),
    ):
        made.zero_()
        assert x.tolist() == [1, 1, 1]
    kept = nn.Parameter(x)
    with st.no_grad():
        kept.zero_()
    assert x.tolist() == [1, 1, 1]


def test_a_view_does_not_keep_what_it_was_taken_of() -> None:
    row = (st.ones(2, 2) + 1.0)[0]
    row += 1.0
    assert row.tolist() == [3, 3]


def test_a_view_holds_no_tensor_but_its_value() -> None:
    like = st.ones(4)
    gone = weakref.ref(like)
    row = st.zeros(2, 2).view_as(like)
    del like
    assert gone() is None and row.shape == (4,)


def test_assigning_to_an_index_in_place_writes_once() -> None:
    x = st.zeros(4)

    @st.compile
    def step(x: Any) -> Any:
        x[1:] += 2.0
        return x.sum()

    assert float(step(x)) == 6.0 and x.tolist() == [0, 2, 2, 2]
    assert str(step.graph).count("select") <= 1
    x[0] = x.narrow(0, 1, 1)[0]
    assert x.tolist() == [2, 2, 2, 2]


def test_an_assignment_of_another_view_is_not_taken_for_what_was_written() -> None:
    x = st.tensor([[1.0, 2.0], [3.0, 4.0]])
    x[0] = x.narrow(0, 1, 1)
    assert x.tolist() == [[3, 4], [3, 4]]


def test_a_tensor_given_data_of_another_type_has_parted_from_its_views() -> None:
    x = st.zeros(2)
    row = x[:1]
    x.data = st.zeros(3, 3)
    row += 1.0
    assert row.tolist() == [1] and x.tolist() == [[0] * 3] * 3


def test_a_clone_made_under_no_grad_has_no_history():
    w = st.ones(3).requires_grad_()
    with st.no_grad():
        copies = [w.clone(), st.cat([w]), st.compile(lambda x: x.clone())(w)]
    assert not any(c.requires_grad for c in copies)


DIAGONALS = {
    "transposed": lambda a: a.T.diagonal(),
    "of swapped axes": lambda a: a.diagonal(0, 1, 0),
    "above": lambda a: a.diagonal(1, 1, 0),
    "below": lambda a: a.T.diagonal(-1),
    "far axes": lambda a: a.reshape(3, 1, 3).diagonal(0, 2, 0),
    "of a part": lambda a: a[:, 1:].T.diagonal(),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("diagonal", DIAGONALS.values(), ids=DIAGONALS)
def test_writes_reach_diagonals_wherever_what_they_are_of_begins(diagonal, compiled):
    x, model = st.zeros(6, 3), np.zeros((6, 3))
    taken = st.compile(diagonal) if compiled else diagonal
    for k in (0, 3, 0, 3, 1, 2, 3):
        early, row = taken(x[k : k + 3]), x[k + 2]
        early += 1.0
        _numpy_diagonal(diagonal, model[k : k + 3])[...] += 1.0
        late = taken(x[k : k + 3])
        row += 10.0
        model[k + 2] += 10.0
        assert x.tolist() == model.tolist()
        assert early.tolist() == late.tolist() == _numpy_diagonal(diagonal, model[k : k + 3]).tolist()


def _numpy_diagonal(diagonal, array):
    class Writeable(np.ndarray):
        def diagonal(self, *given):
            found = super().diagonal(*given)
            found.flags.writeable = True
            return found

    return diagonal(array.view(Writeable))
