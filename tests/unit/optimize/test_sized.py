"""Graphs for every size up to a bound: what a program gives at any sizes is what one made for them gives.

Places that do not count are filled with NaN and absurd indices, so that nothing can read them unnoticed.
"""

from __future__ import annotations

import numpy as np
import pytest

import stratal as st
from stratal import nn
from stratal.base.dims import Sym, evaluate
from stratal.base.dtypes import as_dtype
from stratal.base.errors import ShapeError, UndecidedError
from stratal.base.types import TensorType
from stratal.graph.graph import Graph, verify
from stratal.graph.interpret import interpret
from stratal.optimize.sized import bounded
from stratal.tensor.tensor import wrap
from stratal.tensor.values import node_values
from stratal.tensor.values.state import tracing
from stratal.tensor.values.trace import Trace

F = nn.functional
BOUNDS = {"b": (1, 6), "t": (2, 7), "l": (1, 20), "m": (1, 24)}
SYMBOLS = {name: Sym.named(name, *bounds) for name, bounds in BOUNDS.items()}
AT = (
    {"b": 3, "t": 5, "l": 17, "m": 19},
    {"b": 6, "t": 7, "l": 20, "m": 24},
    {"b": 1, "t": 2, "l": 1, "m": 2},
)
Q, K = ("float32", ("b", "l", 8)), ("float32", ("b", "m", 8))
X, Y, V = ("float32", ("b", "t", 8)), ("int64", ("b", "t")), ("float32", ("b", 8))

st.manual_seed(0)
LINEAR, NORM, TABLE = nn.Linear(8, 8), nn.LayerNorm(8), nn.Embedding(50, 8)
LSTM, MHA = nn.LSTM(8, 4, batch_first=True), nn.MultiheadAttention(8, 2, batch_first=True)
ENCODER = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
CONV = nn.Conv1d(8, 4, 3, padding=1)


def heads(x):
    return x.reshape(x.shape[0], x.shape[1], 4, 2).transpose(1, 2)


def loss(x, y):
    return F.cross_entropy(LINEAR(x).reshape(-1, 8), y.reshape(-1))


CASES = {
    "linear": (LINEAR, X),
    "layer norm": (NORM, X),
    "embedding": (TABLE, Y),
    "mean": (lambda x: x.mean(), X),
    "mean of an axis": (lambda x: x.mean(1), X),
    "variance": (lambda x: x.var(1, unbiased=False), X),
    "softmax": (lambda x: x.softmax(1), X),
    "log sum exp": (lambda x: st.logsumexp(x, axis=(0, 1)), X),
    "merged axes": (lambda x: x.reshape(-1, 8), X),
    "all in a row": (lambda x: (x.reshape(-1) + 1).sum(), X),
    "cut from a row": (lambda x: x.reshape(-1)[3:], X),
    "merged the other way": (lambda x: x.transpose(0, 1).reshape(-1, 8), X),
    "axes in each other's place": (lambda x: x.reshape(x.shape[1], x.shape[0], 8) * 2, X),
    "heads": (heads, X),
    "dropout": (lambda x: F.dropout(x, 0.4), X),
    "normal numbers": (lambda x: x + st.randn_like(x), X),
    "dropped channels": (lambda x: F.dropout1d(x, 0.4) * 2, X),
    "attention": (lambda x: F.scaled_dot_product_attention(*[heads(x)] * 3, is_causal=True), X),
    "multi-head attention": (lambda x: MHA(x, x, x)[0], X),
    "encoder layer": (ENCODER, X),
    "lstm": (lambda x: LSTM(x)[0], X),
    "last state": (lambda x: LSTM(x)[1][0], X),
    "cross entropy": (loss, X, Y),
    "all but the first": (lambda x: x[:, 1:], X),
    "all but the last": (lambda x: x[:, :-1], X),
    "the last": (lambda x: x[:, -1], X),
    "the first": (lambda x: x[0], X),
    "backwards": (lambda x: x[:, ::-1], X),
    "numbers": (lambda x: st.arange(x.shape[1]), X),
    "attention by blocks": (lambda q, k: F.scaled_dot_product_attention(q, k, k), Q, K),
    "causal attention by blocks": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), Q),
    "masked attention by blocks": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, (k.sum(-1) > -4)[:, None]), Q, K,
    ),
    "gradient of attention by blocks": (
        st.grad(lambda q, k: (F.scaled_dot_product_attention(q, k, k) ** 2).sum(), (0, 1)), Q, K,
    ),
    "gradient of causal attention by blocks": (
        st.grad(lambda q: (F.scaled_dot_product_attention(q, q, q, is_causal=True) ** 2).sum()), Q,
    ),
    "positions": (lambda y: TABLE(y) + TABLE.weight[: y.shape[1]], Y),
    "divided by a size": (lambda x: x.sum() / x.shape[0], X),
    "a size in arithmetic": (lambda x: x * (3 - x.shape[1]) + (x.shape[0] + x.shape[1]), X),
    "convolution": (lambda x: CONV(x.transpose(1, 2)), X),
    "joined": (lambda x: st.cat([x, x * 2, x[:, :1]], 1), X),
    "joined batches": (lambda x: st.cat([x, x * 2], 0), X),
    "flip": (lambda x: x.flip(1), X),
    "running sums both ways": (lambda x: x.cumsum(1).flip(1).cumsum(1), X),
    "padded": (lambda x: F.pad(x, (0, 0, 2, 1), value=3.0), X),
    "argmax": (lambda x: x.argmax(1), X),
    "extremes": (lambda x: x.amax(1) - x.amin((0, 1)), X),
    "any and all": (lambda x: (x > 0).any(1) & (x < 1).all(0).any(), X),
    "sorted": (lambda x: st.sort(x, 1), X),
    "sorted downwards, with ties and NaN": (lambda x: st.sort((x * 2).round().log(), 0, True), X),
    "places of equal numbers": (lambda y: st.argsort(y.reshape(-1), stable=True), Y),
    "the two greatest": (lambda x: st.topk(x, 2, dim=1), X),
    "the two least of all": (lambda x: st.topk(x.round().reshape(-1), 2, largest=False), X),
    "masked": (lambda x, y: x.masked_fill((y == 0)[..., None], -1.0).softmax(1), X, Y),
    "taken at places": (lambda x: x[:, st.tensor([0, 0])], X),
    "one hot": (lambda y: F.one_hot(y, 8), Y),
    "taken along an axis": (lambda x, y: st.take_along_axis(x, y[..., None], axis=2), X, Y),
    "added at places": (
        lambda x, y: st.zeros(8, 8).index_add(0, y.reshape(-1), x.reshape(-1, 8)), X, Y,
    ),
    "multiplied at places": (
        lambda x, y: st.scatter_reduce(x, 2, y[..., None], x[..., :1], "prod"), X, Y,
    ),
    "set at places": (lambda y: st.zeros(8).at[y.reshape(-1)].max(2.0), Y),
    "gradient of a mean": (st.grad(lambda x: NORM(x).square().mean()), X),
    "gradient of cross entropy": (st.grad(loss), X, Y),
    "gradient through an encoder layer": (st.grad(lambda x: ENCODER(x).square().mean()), X),
    "gradient of the last": (st.grad(lambda x: (x[:, -1] ** 2).sum()), X),
    "gradient of an lstm": (st.grad(lambda x: (LSTM(x)[0] ** 2).sum()), X),
    "gradient of a convolution": (st.grad(lambda x: (CONV(x.transpose(1, 2)) ** 2).sum()), X),
}  # fmt: skip


def capture(function, types):
    """Return the graph of a function of tensors of such types, and the values of what else it reads."""
    trace = Trace("f")
    with tracing(trace):
        given = [wrap(node_values.placeholder("x", t, "f")) for t in types]
        for x in given:
            for axis, n in enumerate(x.type.shape):
                if isinstance(n, Sym):
                    trace.symbols.setdefault(str(n), (x, axis))
        result = function(*given)
        outputs = [t._node for t in (result if isinstance(result, (tuple, list)) else [result])]
    cells = list(trace.cells.values())
    inputs = [*(x._node for x in given), *(c.placeholder for c in cells)]
    return Graph(inputs, outputs), [c.tensor.numpy() for c in cells]


def filled(array, shape):
    room = np.full(shape, np.nan if array.dtype.kind == "f" else 10**6, array.dtype)
    room[tuple(map(slice, array.shape))] = array
    return room


@pytest.mark.parametrize("name", CASES)
def test_a_bounded_graph_gives_what_one_made_for_the_sizes_gives(name):
    function, *specs = CASES[name]
    types = [TensorType(as_dtype(d), [SYMBOLS.get(n, n) for n in shape]) for d, shape in specs]
    graph, held = capture(function, types)
    made, names = bounded(verify(graph))
    verify(made)
    for sizes in AT:
        rng = np.random.default_rng(0)
        arrays = []
        for dtype, shape in specs:
            drawn = [sizes.get(n, n) for n in shape]
            arrays.append(
                rng.standard_normal(drawn).astype(dtype) if dtype == "float32" else rng.integers(0, 5, drawn)
            )
        own, own_held = capture(function, [TensorType(as_dtype(a.dtype), a.shape) for a in arrays])
        want, _ = interpret(own, [*arrays, *own_held])
        rooms = [filled(a, i.aval.shape) for a, i in zip(arrays, made.inputs[len(names) :], strict=False)]
        counts = [np.asarray(sizes[n], np.int64) for n in names]
        got, _ = interpret(made, [*counts, *rooms, *held])
        for w, g in zip(want, got, strict=True):
            np.testing.assert_allclose(g[tuple(map(slice, w.shape))], w, 1e-4, 1e-5, err_msg=str(sizes))


def test_what_depends_on_an_undecided_question_says_so():
    t = SYMBOLS["t"]
    questions = (
        lambda: t > 3, lambda: t == 3, lambda: t != SYMBOLS["b"], lambda: t in (1, 7), lambda: t < 2.5,
        lambda: int(t), lambda: float(t), lambda: range(t), lambda: bool(t - 2), lambda: t % 2 == 0,
    )  # fmt: skip
    for question in questions:
        with pytest.raises(UndecidedError):
            question()
    assert t <= 7 and not t > 7 and t + 1 > 1
    assert t == t and t != 8 and t != 1 and t * 2 == t + t and t - t == 0 and t != "t"


def test_bounds_hold_for_negative_factors_and_divisors():
    n, m = Sym.named("n", 2, 7), Sym.named("m", 1, 5)
    cases = (n // -2, -n // 3, (n - m) * (n - m), (n - 5) // 2 * m, n % 3, n - n // 2, (n - 5) * (m - 3) * n)
    for size in cases:
        low, high = size.range()
        for v in range(2, 8):
            for w in range(1, 6):
                assert low <= evaluate(size, {"n": v, "m": w}) <= high, size
    assert evaluate(n // -2, {"n": 7}) == 7 // -2


def test_an_op_without_a_rule_is_refused():
    x = TensorType(as_dtype("float32"), (SYMBOLS["t"],))
    graph, _ = capture(lambda x: st.fft.rfft(x), [x])
    with pytest.raises(ShapeError, match="rfft"):
        bounded(graph)
