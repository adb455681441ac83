"""Sequences of different lengths against PyTorch: packed, padded, and run through recurrent layers."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch_twins import compare, draw  # noqa: E402

import stratal as st  # noqa: E402
from stratal import nn  # noqa: E402

pytestmark = pytest.mark.torch

LENGTHS = [2, 5, 1, 5]
ours, theirs = nn.utils.rnn, torch.nn.utils.rnn


def same(a, b):
    np.testing.assert_allclose(np.asarray(a.detach()), np.asarray(b.detach()), rtol=1e-12)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("lengths", [LENGTHS, [3, 3, 3, 3], [1, 1, 1, 1]])
def test_packing_and_padding_agree_with_pytorch(batch_first, lengths):
    x = draw(4, 5, 3) if batch_first else draw(5, 4, 3)
    a = ours.pack_padded_sequence(st.tensor(x), lengths, batch_first, enforce_sorted=False)
    b = theirs.pack_padded_sequence(torch.tensor(x), lengths, batch_first, enforce_sorted=False)
    same(a.data, b.data)
    assert list(a.batch_sizes) == b.batch_sizes.tolist()
    padded = ours.pad_packed_sequence(a, batch_first, -1.0, total_length=7)
    wanted = theirs.pad_packed_sequence(b, batch_first, -1.0, total_length=7)
    same(padded[0], wanted[0])
    assert padded[1].tolist() == wanted[1].tolist() == lengths
    if lengths is LENGTHS:  # equal lengths may be sorted in any order
        for k, n in enumerate(lengths):
            same(ours.unpack_sequence(a)[k], st.tensor(x[k, :n] if batch_first else x[:n, k]))


@pytest.mark.parametrize("side", ["right", "left"])
def test_lists_of_sequences_agree_with_pytorch(side):
    rows = [draw(n, 3, seed=n) for n in (5, 3, 2)]
    a, b = [st.tensor(r) for r in rows], [torch.tensor(r) for r in rows]
    same(ours.pad_sequence(a, True, 0.5, side), theirs.pad_sequence(b, True, 0.5, side))
    same(ours.pack_sequence(a).data, theirs.pack_sequence(b).data)
    padded = ours.pad_sequence(a)
    for k, piece in enumerate(ours.unpad_sequence(padded, [5, 3, 2])):
        same(piece, b[k])


def run_packed(lengths, which, enforce=False, hx=False):
    def forward(module, x):
        mine = isinstance(module, nn.Module)
        library = ours if mine else theirs
        packed = library.pack_padded_sequence(x, lengths, enforce_sorted=enforce)
        start = ()
        if hx:
            tensor = st.tensor if mine else torch.tensor
            states = [tensor(draw(2, 4, n, dtype=np.float64, seed=n)) for n in (module.proj_size or 4, 4)]
            start = (tuple(states),) if isinstance(module, (nn.LSTM, torch.nn.LSTM)) else (states[1],)
        y, last = module(packed, *start)
        last = last if isinstance(last, tuple) else (last,)
        return [library.pad_packed_sequence(y)[0], *last][which]

    return forward


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}])
def test_a_layer_runs_over_packed_sequences_as_pytorch_does(kind, options):
    def make(library):
        return getattr(library, kind)(3, 4, **options)

    x = draw(5, 4, 3, dtype=np.float64)
    compare(make(nn), make(torch.nn), x, forward=run_packed(LENGTHS, 0))
    with st.eager():
        for which in range(1, 3 if kind == "LSTM" else 2):
            compare(make(nn), make(torch.nn), x, forward=run_packed(LENGTHS, which))


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_packed_sequences_take_states_in_the_callers_order(kind):
    def make(library):
        return getattr(library, kind)(3, 4, bidirectional=True)

    x = draw(5, 4, 3, dtype=np.float64)
    with st.eager():
        for which in (0, 1):
            compare(make(nn), make(torch.nn), x, forward=run_packed(LENGTHS, which, hx=True))
        compare(make(nn), make(torch.nn), x, forward=run_packed([5, 4, 4, 2], 1, enforce=True))


@pytest.mark.parametrize("options", [
    {}, {"num_layers": 2, "bidirectional": True}, {"bias": False, "batch_first": True},
])  # fmt: skip
def test_an_lstm_projects_its_hidden_state_as_pytorch_does(options):
    def make(library):
        return library.LSTM(3, 5, proj_size=2, **options)

    x = draw(4, 2, 3, dtype=np.float64)
    compare(make(nn), make(torch.nn), x, forward=lambda m, x: m(x)[0])
    with st.eager():
        for which in (0, 1):
            compare(make(nn), make(torch.nn), x, forward=lambda m, x, k=which: m(x)[1][k])
    assert repr(make(nn)) == repr(make(torch.nn))


def test_a_compiled_step_takes_packed_sequences_and_is_another_program_for_other_sizes():
    layer = nn.GRU(3, 4)

    @st.compile
    def total(packed):
        y, h = layer(packed)
        return y.data.sum() + h.sum()

    x = st.tensor(draw(5, 4, 3))
    for lengths in (LENGTHS, LENGTHS, [1, 2, 3, 4]):
        packed = ours.pack_padded_sequence(x, lengths, enforce_sorted=False)
        y, h = layer(packed)
        assert float(total(packed)) == pytest.approx(float(y.data.sum() + h.sum()), rel=1e-5)
    assert total.captures == 2


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x: ours.pack_padded_sequence(x, LENGTHS), "must not increase"),
        (lambda x: ours.pack_padded_sequence(x, [6, 5, 5, 1]), "between 1 and 5"),
        (lambda x: ours.pack_padded_sequence(x, [5, 5, 1]), "takes 4 lengths"),
        (lambda x: ours.pack_padded_sequence(x, [5, 5, 1, 0]), "between 1 and 5"),
        (lambda x: ours.pack_padded_sequence(x, [5.0, 5.0, 1.0, 1.0]), "vector of ints"),
        (lambda x: ours.pad_packed_sequence(x), "takes a PackedSequence"),
        (lambda x: ours.pad_packed_sequence(ours.pack_sequence([x]), total_length=4), "at least"),
        (lambda x: ours.pad_sequence([]), "first size only"),
        (lambda x: ours.pad_sequence([x, x[:, :2]]), "first size only"),
        (lambda x: ours.pad_sequence([x], padding_side="top"), "padding_side"),
        (lambda x: nn.LSTM(2, 4)(ours.pack_padded_sequence(x, [5] * 4)), "takes 2 axes"),
        (lambda x: nn.LSTM(3, 4, proj_size=4), "smaller than hidden_size"),
        (lambda x: nn.GRU(3, 0), "are positive"),
        (lambda x: nn.GRU(3, 4, dropout=2.0), "dropout lies"),
        (lambda x: st.compile(lambda x, n: ours.pack_padded_sequence(x, n).data)(x, st.tensor([5] * 4)),
         "lengths decide shapes"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_refused(call, says):
    with pytest.raises(st.StratalError, match=says) as info:
        call(st.tensor(draw(5, 4, 3)))
    assert "test_nn_sequences.py" in str(info.value)


def test_sequences_of_lengths_in_a_list_are_packed_in_a_compiled_function():
    lengths, layer = [3, 5], nn.LSTM(4, 5, batch_first=True)

    def run(x):
        packed = ours.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return ours.pad_packed_sequence(layer(packed)[0], batch_first=True)[0]

    f = st.compile(run)
    for swapped in (False, True):
        x = st.randn(2, 6, 4)
        np.testing.assert_allclose(f(x).numpy(), run(x).numpy(), rtol=1e-5, atol=1e-6)
        lengths.reverse()
        assert f.captures == 1 + swapped
