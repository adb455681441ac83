"""Small programs at many sizes, also 1, 0 and one beyond the bound: each call equals an uncompiled one.

What lies beyond the sizes of a call is NaN or an absurd number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sized_calls import difference, poisoned

import stratal as st
from stratal import nn
from stratal.base import tree
from stratal.base.errors import CaptureError
from stratal.tensor.capture.replay import FromPart

F = nn.functional
SIZES = (3, 4, 7, 1, 2, 17, 0, 5, 3)
PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int], Any]]] = {}


def drawn(n: int, *rest: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(n).standard_normal((n, *rest)).astype(np.float32)


def matrix(n: int) -> Any:
    return (drawn(n, 4),)


def images(n: int) -> Any:
    return (drawn(n, 4, n + 3, 6),)


def program(draw: Callable[[int], Any] = matrix) -> Callable[[Any], Any]:
    """Register a function of what is drawn for a size."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[function.__name__] = function, draw
        return function

    return register


# -- what Python asks of a size ------------------------------------------------------------------------------
@program()
def is_one(x):
    return x * 100 if x.shape[0] == 1 else x


@program()
def is_not_four(x):
    return x * 100 if x.shape[0] != 4 else x


@program()
def is_a_shape(x):
    return x * 100 if x.shape == (4, 4) else x


@program()
def is_one_of_some(x):
    return x * 100 if x.shape[0] in (2, 5) else x


@program()
def is_less(x):
    return x * 2 if x.shape[0] < 4 else x.sum(0)


@program()
def is_less_than_a_float(x):
    return x * 2 if x.shape[0] < 2.5 else x.sum(0)


@program()
def is_even(x):
    return x * 2 if x.shape[0] % 2 == 0 else x


@program()
def is_anything(x):
    return x * 2 if x.shape[0] - 3 else x


@program(lambda n: (drawn(n, 4), drawn(n + n % 2, 4)))
def are_equal(x, y):
    return x.sum(0) + y.sum(0) if x.shape[0] == y.shape[0] else x.sum(0)


@program()
def squeezed(x):
    return x.reshape(x.shape[0], 1, 4).squeeze(), x.reshape(x.shape[0], 1, 4).squeeze(0)


@program()
def least_and_greatest_number(x):
    return x * max(x.shape[0], 4), x * min(x.shape[0], 4)


@program()
def covariances(x):
    return st.cov(x), st.cov(x.T)


@program()
def rows_in_a_loop(x):
    return [row * 2 for row in x]


# -- a size as a number --------------------------------------------------------------------------------------
@program()
def divided(x):
    return x.sum() / x.shape[0], x / (1 / x.shape[0]) if x.shape[0] else x


def _arithmetic(x):
    n = x.shape[0]
    plain = x - n, n - x, x * n, x * n**0.5, x * n**2, x + np.prod(x.shape), x * (n / 3), x * (0.5 * n - 1.5)
    chosen = st.where(x > 1, x, n), st.maximum(x, n), x.clamp(0, n), x.masked_fill(x > 1, n), x < n
    made = st.full((2,), n / 2), st.full_like(x, n), st.tensor(n), -(n / 2) * x, abs(1.5 - n / 2) * x
    return *plain, *chosen, *made


for _dtype in ("float32", "float16", "float64", "int32", "int64"):
    PROGRAMS[f"arithmetic of {_dtype}"] = _arithmetic, lambda n, d=_dtype: ((np.arange(n) % 3 + 1).astype(d),)


@program()
def filled(x):
    n = x.shape[0]
    return st.ones(n), st.zeros((n, 2)), st.full((n,), n), st.full((3,), n), st.eye(n), st.tril(st.ones(n, n))


@program()
def ranges(x):
    n = x.shape[0]
    return st.arange(n), st.arange(0, n, 2), st.arange(n, 0, -1), st.arange(n, dtype="float32")


@program()
def a_range_that_may_be_empty(x):
    return st.arange(0, x.shape[0] - 3)


@program()
def spaced(x):
    return st.linspace(0, 1, x.shape[0])


@program()
def rounded_up(x):
    return st.ones(-(-x.shape[0] // 2)), st.ones(-(x.shape[0] // -2))


@program()
def sizes_returned(x):
    return x.shape, x.shape[0] * 2, x.numel(), len(x), x.sum()


@program()
def a_quotient_returned(x):
    return x.shape[0] / 2 if x.shape[0] else 0.0, x.sum()


# -- parts ---------------------------------------------------------------------------------------------------
@program()
def halves(x):
    return x[: x.shape[0] // 2], x[x.shape[0] // 2 :]


@program()
def pieces(x):
    return st.chunk(x, 2), st.split(x, 2)


@program()
def every_second(x):
    return x[::2], x[1::2], x[::-1], x[::-2]


@program()
def ends(x):
    return x[:3], x[3:], x[-3:], x[:-1], x[1:], x[1:-1]


@program()
def the_last(x):
    return x[-1], x[-1:]


@program()
def sums_of_what_may_be_nothing(x):
    return x[1:].sum(0), x[1:].mean(0), x[1:].prod(0), (x[1:] > 0).any(0), (x[1:] > 0).all()


@program()
def extremes_of_what_may_be_nothing(x):
    return x[1:].amax(0), x[1:].argmin(0)


@program()
def written(x):
    y, z = x.clone(), x.clone()
    y[1:] = y[1:] * 2
    z[z > 0] = 7
    return y, z


@program()
def written_by_number(x):
    y, z = x.clone(), x.clone()
    y[-1] = 5
    z[st.arange(x.shape[0]), 0] = 1
    return y, z


@program()
def moved(x):
    return st.roll(x, 1, 0), st.tile(x, (3, 1)), st.repeat_interleave(x, 2, 0), x.flip(0)


@program()
def shaped(x):
    n = x.shape[0]
    return x.view(-1), x.view(n, 2, 2), x.flatten(), x.unsqueeze(0), x.expand(2, n, 4), x.expand(2, -1, -1)


@program()
def padded_to_a_length(x):
    return F.pad(x, (0, 0, 0, 50 - x.shape[0]))


# -- arguments -----------------------------------------------------------------------------------------------
@program(lambda n: (lambda x: (x, x))(st.tensor(drawn(n, 4))))
def one_tensor_twice(x, y):
    return x - y * 2


@program(lambda n: (lambda x: (x, x if n % 2 else st.tensor(drawn(n, 4) + 1)))(st.tensor(drawn(n, 4))))
def one_tensor_twice_at_times(x, y):
    return x - y * 2


@program(lambda n: (st.tensor(drawn(n + 2, 4))[2:], st.tensor(drawn(4, n)).T if n else st.zeros(0, 4)))
def views(x, y):
    return x * 2 + y, y.sum(0)


@program(lambda n: ({"a": drawn(n, 4), "b": [drawn(n, 2)]},))
def a_dict(batch):
    return {"sum": batch["a"].sum(1) + batch["b"][0].sum(1)}


@program(lambda n: (drawn(n, 4), drawn(n if n < 5 else n - 1, 4)))
def sizes_that_were_equal(x, y):
    return st.cat([x, y], 0), x.sum(0) - y.sum(0)


@program(lambda n: (drawn(n, 4), drawn(n if n % 2 else 1, 4)))
def a_size_that_stretches_at_times(x, y):
    return x + y


@program(lambda n: (drawn(n, 4), drawn(1, 4), drawn(4)))
def sizes_that_stretch(x, y, z):
    return x + y, x * z


@program()
def as_it_is(x):
    return x


@program()
def as_it_is_beside_another(x):
    return x + 1, x


@program()
def changed_in_place(x):
    x.add_(1)
    return x.sum()


# -- layers --------------------------------------------------------------------------------------------------
@program(images)
def windows(x):
    pooled = F.max_pool2d(x, 2), F.avg_pool2d(x, 2, 1, 1), F.adaptive_avg_pool2d(x, 2)
    return *pooled, F.interpolate(x, scale_factor=2)


@program(lambda n: (drawn(n, 4, n + 3),))
def borders(x):
    modes = [F.pad(x, (1, 2), mode=mode) for mode in ("reflect", "circular", "replicate")]
    return *modes, F.pad(x, (-1, 2)), F.pad(x, (0, 0, 1, 1))


def _trained(convolution: Callable[..., Any], dims: int, groups: int) -> Callable[[Any], Any]:
    def function(x):
        w = (st.arange(8 * 4 // groups * 3**dims).reshape(8, 4 // groups, *(3,) * dims) / 50).requires_grad_()
        v = x.clone().requires_grad_()
        y = convolution(v, w, padding=1, stride=groups % 3 + 1, groups=groups)
        (y * y).sum().backward()
        return y.detach(), w.grad, v.grad

    return function


for _groups in (1, 2, 4):
    for _dims, _convolution in ((1, F.conv1d), (2, F.conv2d)):
        _step = _trained(_convolution, _dims, _groups)
        _name = f"convolution of {_dims} axes in {_groups} groups"
        PROGRAMS[_name + ", batches"] = _step, lambda n, d=_dims: (drawn(n, 4, *(5, 6)[:d]),)
        PROGRAMS[_name + ", lengths"] = _step, lambda n, d=_dims: (drawn(2, 4, *(n + 3, 6)[:d]),)


@program()
def gradients_of_what_is_made_inside(x):
    w = st.ones(4, requires_grad=True)
    (x * w).sum().backward()
    return w.grad


ENCODER = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), 2)
DECODER = nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0, batch_first=True), 2)


@program(lambda n: (drawn(n, n + 2, 4), drawn(n, 5, 4)))
def stacks_of_layers(x, y):
    for p in (*ENCODER.parameters(), *DECODER.parameters()):
        p.grad = None
    out = DECODER(y, ENCODER(x))
    (out * out).sum().backward()
    return out.detach(), [p.grad for p in (*ENCODER.parameters(), *DECODER.parameters())]


WIDE = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0)  # as wide as both bounds


@program(lambda n: (drawn(n, max(n - 1, 1), 16),))
def a_layer_over_lengths_and_batches(x):
    for p in WIDE.parameters():
        p.grad = None
    out = WIDE(x)
    (out * out * out).sum().backward()
    return out.detach(), [p.grad for p in WIDE.parameters()]


@program()
def drawn_numbers(x):
    return st.rand(x.shape[0], 3), st.randn_like(x), F.dropout(x, 0.5), st.randint(0, 9, (x.shape[0],))


@program()
def running(x):
    return x.cumsum(0), x.flip(0).cumprod(0), st.scan(lambda c, row: (c + row, c * row), st.zeros(4), x)


@program()
def by_rows(x):
    return st.vmap(lambda row: row / row.sum())(x), st.einsum("ij,kj->ik", x, x), x[:, None] - x[None]


@program()
def matrices(x):
    return st.linalg.inv(x.T @ x + st.eye(4)), x.norm(), st.fft.rfft(x, dim=1).abs(), st.sort(x, 0)


def result_of(function: Callable[..., Any], args: Any, seed: int) -> Any:
    """Return the leaves of a call, or the name of the error it raises."""
    st.manual_seed(seed)
    given = tree.map(lambda x: st.tensor(x) if isinstance(x, np.ndarray) else x, args)
    try:
        found = tree.leaves((function(*given), [x for x in tree.leaves(given) if isinstance(x, st.Tensor)]))
    except Exception as error:
        return type(error)
    return [np.array(x.numpy()) if isinstance(x, st.Tensor) else x for x in found]


@pytest.mark.sampled(28)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n == "stacks_of_layers" else []) for n in PROGRAMS]
)
def test_a_program_at_each_size_equals_itself_uncompiled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = FromPart.storage
    monkeypatch.setattr(FromPart, "storage", lambda self, given: poisoned(self, given, storage))
    function, draw = PROGRAMS[name]
    compiled = st.compile(function)
    for k, n in enumerate(SIZES):
        with st.eager():
            want = result_of(function, draw(n), k)
        got = result_of(compiled, draw(n), k)
        if isinstance(want, type) or isinstance(got, type):
            assert got is want or (isinstance(want, type) and got is CaptureError), f"{n}: {got} for {want}"
            continue
        for g, w in zip(got, want, strict=True):
            assert type(g) is type(w), f"{n}: {g!r} for {w!r}"
            if isinstance(w, np.ndarray):
                assert not (fault := difference(g, w)), f"{n}: {fault}"
            else:
                assert g == w, str(n)
