"""Memory seen by NumPy: whoever writes there changes the tensor, and nothing that was built before."""

from __future__ import annotations

import copy
import itertools
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


@pytest.mark.sampled(4)
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


PARTS = {
    "row": lambda x: x[1],
    "column": lambda x: x[:, 1],
    "part": lambda x: x[1:, :2],
    "rest": lambda x: x[:1],
    "steps": lambda x: x[::2, ::2],
    "back": lambda x: x[::-1, ::-2],
    "transpose": lambda x: x.T,
    "element": lambda x: x[1, 2, ...],
    "flat": lambda x: x.reshape(-1),
    "groups": lambda x: x.reshape(3, 2, 2)[:, 1],
    "all": lambda x: x[:],
}
READS = {
    "value": lambda x: x.tolist(),
    "op": lambda x: (x * 1.0).tolist(),
    "compiled": lambda x: st.compile(lambda y: y + 0.0)(x),
    "clone": lambda x: x.clone().tolist(),
    "shape": lambda x: x[None].tolist()[0],
}
each_part = pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)


def plain(value):
    return value.tolist() if isinstance(value, st.Tensor) else value


@pytest.mark.sampled(24)
@each_part
@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bfloat16", "complex64"])
def test_a_tensor_and_its_views_are_one_memory_to_those_outside(part, read, dtype):
    model = np.arange(12.0).reshape(3, 4)
    x = st.tensor(model).to(getattr(st, dtype))
    early = part(x)
    whole = x.numpy()
    late = part(x)
    whole[:] = model[:] = 20 - model
    for t in (early, late, part(x)):
        assert plain(read(t)) == part(model).tolist()
    for t in (early, late, part(x)):
        seen = t.numpy()
        part(model)[...] = part(whole)[...] = 7
        assert seen.tolist() == part(model).tolist()
        seen[...] = 3
        part(model)[...] = 3
        assert plain(read(x)) == model.tolist()
        assert plain(read(early)) == plain(read(late)) == part(model).tolist()
    del whole, seen
    early += 1
    part(model)[...] += 1
    assert plain(read(x)) == model.tolist()
    assert plain(read(late)) == part(model).tolist()


@each_part
@pytest.mark.parametrize("other", PARTS.values(), ids=PARTS)
def test_views_whose_origin_is_gone_are_one_memory_to_those_outside(part, other):
    model = np.arange(12.0).reshape(3, 4)
    x = st.tensor(model)
    a, b = part(x), other(x)
    del x
    seen = a.numpy()
    seen[...] = 50
    part(model)[...] = 50
    assert b.tolist() == other(model).tolist()
    also = b.numpy()
    also[...] = 60
    other(model)[...] = 60
    assert a.tolist() == seen.tolist() == part(model).tolist()


def test_a_parameter_seen_through_its_views():
    w = st.zeros(2, 3).requires_grad_()
    v = w.detach()[0]
    v.numpy()[:] = 2
    assert w.tolist() == [[2.0] * 3, [0.0] * 3]
    (w * w).sum().backward()
    assert w.grad.tolist() == [[4.0] * 3, [0.0] * 3]
    seen = w.detach().numpy()
    with st.no_grad():
        w -= 1
    assert v.tolist() == [1.0] * 3
    assert seen.tolist() == [[2.0] * 3, [0.0] * 3]  # as it was when the tensor was changed


class Shown:
    """A memory as NumPy has it; tensors show parts of it, and part with it when one is changed in place."""

    def __init__(self, array):
        self.array = array


class Added(dict):
    """Compiled functions that add in place, one for each shape."""

    def __missing__(self, shape):
        self[shape] = st.compile(lambda x, k: x.add_(k))
        return self[shape]


_ADD = Added()


@pytest.mark.sampled(8)
def test_random_programs_of_views_written_from_outside_mean_what_they_say():
    for seed in range(400):
        rng = random.Random(seed)
        with interpreted():
            _program_of_views(rng)


def _program_of_views(rng):
    def start():
        array = np.array([[rng.randrange(9) for _ in range(4)] for _ in range(3)], np.float64)
        return st.tensor(array), Shown(array), lambda a: a

    known, seen = [start(), start()], []
    for _ in range(rng.randrange(5, 40)):
        x, memory, where = rng.choice(known)
        number = rng.randrange(1, 9)
        match rng.randrange(9):
            case 0 | 1:
                part = rng.choice(list(PARTS.values()))
                if where(memory.array).shape == (3, 4):
                    known.append((part(x), memory, lambda a, part=part: part(a)))
            case 2 | 3:
                seen.append((x.numpy(), where(memory.array)))
            case 4 | 5 if seen:
                array, same = rng.choice(seen)
                array[...] += number
                same[...] += number
            case 6:
                memory.array = memory.array.copy()
                where(memory.array)[...] += number
                x.add_(number) if rng.random() < 0.7 else _ADD[where(memory.array).shape](
                    x, st.tensor(number)
                )
            case 7 if rng.random() < 0.5:
                known.pop(rng.randrange(len(known)))
                known.append(start())
            case 8 if seen:
                seen.pop(rng.randrange(len(seen)))
        for t, m, w in known if rng.random() < 0.2 else ():
            assert t.tolist() == w(m.array).tolist()
    for t, m, w in known:
        np.testing.assert_array_equal((t + 0.0).tolist(), w(m.array))
        assert t.tolist() == w(m.array).tolist()
    for array, same in seen:
        assert array.tolist() == same.tolist()


# -- every export of every view, written by whom it may be, as in PyTorch ----------------------------------
SHARED = PARTS | {
    "view": lambda x: x.view(2, 6),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "view of a view": lambda x: x[1:][:, 1:][0],
    "part of a transpose": lambda x: x.T[1:].T,
    "diagonal": lambda x: x.diagonal(),
    "split": lambda x: x.split(2, 1)[1],
    "unbind": lambda x: x.unbind(1)[2],
    "unsqueeze": lambda x: x.unsqueeze(1),
}  # fmt: skip
del SHARED["back"]  # PyTorch steps forwards only
EXPORTS = {
    "numpy": lambda t: t.numpy(),
    "detach": lambda t: t.detach().numpy(),
    "data": lambda t: t.data.numpy(),
    "asarray": lambda t: np.asarray(t.detach()),
    "memoryview": lambda t: np.asarray(memoryview(t.numpy())),
    "dlpack": lambda t: pytest.importorskip("torch").from_dlpack(t.detach()).numpy(),
}
MADE = {
    "tensor": lambda lib, a: lib.tensor(a),
    "computed": lambda lib, a: lib.tensor(a) * 1.0,
    "parameter": lambda lib, a: lib.nn.Parameter(lib.tensor(a)),
    "dlpack": lambda lib, a: lib.from_dlpack(a),
    "part": lambda lib, a: lib.tensor(np.concatenate([a, a]))[3:],
}
_PLUS_0, _ADD_3 = st.compile(lambda t: t + 0.0), st.compile(lambda t: t.add_(3.0))


@pytest.mark.torch
@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("part", SHARED)
def test_what_numpy_writes_shows_wherever_it_does_in_pytorch(made, part):
    torch = pytest.importorskip("torch")
    if (made, part) == ("parameter", "all"):
        pytest.skip("a write to what has the history of a leaf is refused")
    ways = list(itertools.product(EXPORTS, *[(False, True)] * 3))
    for how in random.Random(made + part).sample(ways, 16):
        assert _seen(st, made, part, *how) == _seen(torch, made, part, *how), how


def _seen(lib, made, part, export, of_view, late, compiled):
    """Return what a tensor, a view of it and an array show while NumPy, and then the library, writes."""
    a = np.arange(12.0).reshape(3, 4)
    x = MADE[made](lib, a)
    read = _PLUS_0 if compiled and lib is st else lambda t: t + 0.0
    with lib.no_grad():
        early = SHARED[part](x)
        array = EXPORTS[export](SHARED[part](x) if of_view else x)
        view = SHARED[part](x) if late else early
        found = [read(t).tolist() for t in (x, early, view)]
        for k in (1.0, 2.0):
            array[...] = array * 2 + k
            found += [t.tolist() for t in (x, early, view)] + [read(t).tolist() for t in (view, early, x)]
        a[...] += 1  # of `from_dlpack` alone
        found += [array.tolist(), view.tolist(), x.tolist()]
        (_ADD_3 if compiled and lib is st else lambda t: t.add_(3.0))(view)
        return found + [t.tolist() for t in (x, early, view)]


TAKEN = {
    "slice": lambda x: x[1:], "steps": lambda x: x[:, ::-1], "transpose": lambda x: x.transpose(0, 2),
    "reshape": lambda x: x.reshape(6, 4), "columns": lambda x: x[:, 0], "row": lambda x: x[1, 2],
    "diagonal": lambda x: x.diagonal(0, 0, 1), "across": lambda x: x.diagonal(0, 2, 0),
    "lower": lambda x: x.diagonal(-1, 1, 2), "upper": lambda x: x.diagonal(2, 0, 2),
    "of a transpose": lambda x: x.transpose(0, 1).diagonal(1, 2, 1),
    "of a part": lambda x: x[1:, 1:].diagonal(), "split": lambda x: x.transpose(0, 1).split(2, 0)[1],
    "flat": lambda x: x.transpose(1, 2)[:, :1].flatten(1),
}  # fmt: skip


@pytest.mark.parametrize("taken", TAKEN.values(), ids=TAKEN)
@pytest.mark.parametrize("origin_lives", [True, False])
def test_a_write_by_numpy_shows_in_all_aliases_of_a_view(taken, origin_lives):
    whole = np.arange(24.0).reshape(2, 3, 4)
    x = st.tensor(whole)
    view = taken(x)
    alias, part = view[...], view[0]
    if not origin_lives:
        x = None
    seen = np.asarray(view)
    before = seen.copy()
    seen[...] = -seen - 1
    want = seen.copy()
    assert (want != before).any()
    assert np.array_equal(view.tolist(), want)
    assert np.array_equal(alias.tolist(), want)
    assert np.array_equal(part.tolist(), want[0])
    if x is not None:
        assert np.array_equal(taken(x).tolist(), want)


@pytest.mark.parametrize("taken", [lambda x: x.conj(), lambda x: x.T.conj(), lambda x: x.conj().diagonal()])
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_numpy_sees_the_values_of_views_that_compute(taken, dtype):
    whole = (np.arange(9.0) + 2j).reshape(3, 3).astype(dtype)
    x = st.tensor(whole)
    seen = taken(x).numpy()
    assert np.array_equal(seen, taken(whole))
    assert np.array_equal(x.numpy(), whole)
