"""Memory seen by NumPy: whoever writes there changes the tensor, and nothing that was built before."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
from interpreted import interpreted

import stratal as st
from stratal.base.errors import NotDifferentiableError
from stratal.runtime.storage import Storage

VIEWS = {
    "numpy": lambda x: x.numpy(),
    "asarray": np.asarray,
    "detach": lambda x: x.detach().numpy(),
    "dlpack": np.from_dlpack,
}
each_view = pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)


def from_zeros():
    return st.zeros(4)


def from_outside():
    return st.from_dlpack(np.zeros(4, np.float32))


@each_view
@pytest.mark.parametrize("made", [from_zeros, from_outside])
@pytest.mark.parametrize("exported_first", [True, False])
def test_a_value_is_that_of_when_it_was_built(view, made, exported_first):
    x = made()
    if view is np.from_dlpack and made is from_outside:
        pytest.skip("one view of it is out already")
    seen = view(x) if exported_first else None
    built = {
        "op": x + 1, "view": x[1:] + 1, "shape": x.reshape(2, 2) + 1, "clone": x.clone() + 1,
        "copy": st.tensor(x) + 1, "deepcopy": copy.deepcopy(x) + 1,
    }  # fmt: skip
    copies = [x.clone(), st.tensor(x), copy.deepcopy(x)]
    seen = view(x) if seen is None else seen
    if not seen.flags.writeable:  # NumPy's own choice
        seen = x.numpy()
    seen[:] = 5
    assert all(t.numpy().ravel().tolist() == [1.0] * t.numel() for t in built.values())
    assert all(t.tolist() == [0.0] * 4 for t in copies)
    assert x.tolist() == [5.0] * 4
    assert (x + 1).tolist() == [6.0] * 4


def test_what_another_library_wrote_shows_from_then_on():
    memory = np.zeros(4)
    x = st.from_dlpack(memory)
    y = x + 1
    memory[:] = 5
    z = x + 1
    memory[:] = 7
    assert (y.tolist(), z.tolist(), x.tolist()) == ([1.0] * 4, [6.0] * 4, [7.0] * 4)


def test_gradients_are_those_of_the_values_that_were_used():
    w = st.ones(2).requires_grad_(True)
    seen = w.detach().numpy()
    first = (w * w).sum()
    seen[:] = 3.0
    (first + (w * w).sum()).backward()
    assert w.grad.tolist() == [8.0, 8.0]
    assert w.tolist() == [3.0, 3.0]
    with st.no_grad():
        w.add_(1.0)
    assert w.tolist() == [4.0, 4.0]
    assert seen.tolist() == [3.0, 3.0]


def test_a_tensor_with_a_history_that_was_overwritten_outside_takes_part_in_no_gradient():
    w = st.ones(2).requires_grad_(True)
    h = w * 2.0
    seen = h.numpy()
    assert (h * 3.0).tolist() == [6.0, 6.0]
    seen[:] = 0.0
    with pytest.raises(NotDifferentiableError, match="outside"):
        h * 3.0
    assert h.detach().tolist() == [0.0, 0.0]


def test_nothing_is_copied_where_nobody_else_needs_the_value(monkeypatch):
    x = st.ones(1000)
    total = x.sum()
    total.item()
    del total
    w = st.ones(1000).requires_grad_(True)
    (w * w).sum().item()
    copies = []
    monkeypatch.setattr(Storage, "in_layout", copies.append)
    for t in (x, w):
        t.detach().numpy()
        np.asarray(t)
        t.numpy()
    y = x * 2.0
    y.numpy()
    assert not copies


def test_a_view_nobody_writes_to_costs_one_copy_for_all_ops_built_beside_it():
    w = st.ones(1000).requires_grad_(True)
    seen = w.detach().numpy()
    nodes = {id((w * float(k))._node.inputs[0]) for k in range(5)}
    assert len(nodes) == 1
    del seen
    (w * 2.0).sum().backward()
    assert w.grad.tolist() == [2.0] * 1000


class Meaning:
    """A tensor as NumPy has it: a value in memory that views share until the tensor is changed in place."""

    def __init__(self, memory):
        self.memory = memory


def test_random_programs_with_writes_from_outside_mean_what_they_say():
    for seed in range(150):
        with interpreted():
            _random_program(random.Random(seed))


def _random_program(rng):
    pairs = [(st.tensor(np.full(3, k + 1.0)), Meaning(np.full(3, k + 1.0))) for k in range(3)]
    seen = []
    for _ in range(rng.randrange(5, 40)):
        (x, mx), (y, my) = rng.choice(pairs), rng.choice(pairs)
        match rng.randrange(10):
            case 0 | 1:
                pairs.append((x * 0.5 + y, Meaning(mx.memory * 0.5 + my.memory)))
            case 2 | 3:
                view = rng.choice(list(VIEWS.values()))
                seen.append((view(x), mx.memory))
            case 4 | 5 if seen:
                view, memory = rng.choice(seen)
                number = rng.uniform(-1, 1)
                if view.flags.writeable:
                    view[1] = memory[1] = number
            case 6:
                x.add_(y, alpha=0.25)
                mx.memory = mx.memory + 0.25 * my.memory
            case 7:
                made = rng.choice([st.Tensor.clone, st.tensor, copy.deepcopy])
                pairs.append((made(x), Meaning(mx.memory.copy())))
            case 8 if seen:
                seen.pop(rng.randrange(len(seen)))
            case 9:
                np.testing.assert_allclose(x.tolist(), mx.memory)
    for x, mx in reversed(pairs):
        np.testing.assert_allclose(x.tolist(), mx.memory)
    for view, memory in seen:
        np.testing.assert_allclose(view, memory)
