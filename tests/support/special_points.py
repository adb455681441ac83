"""Calls at ties, bounds, zeros, infinities, NaN and of nothing, and their results beside PyTorch's.

A draw of the surface tables (`benchmarks/surface`) takes its elements from a pool of special points here, so
every call those tables know is one at special points, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.surface.draws import Array, Call, Draws
from benchmarks.surface.entries import Entry, entries
from benchmarks.surface.layers import LAYERS, call_of, made_and_called
from benchmarks.surface.twins import OTHERS, SPACES, _function

import stratal as st

INF, NAN = math.inf, math.nan
# Every constant at which a public function has a bound, a kink or a tie, and what lies around them.
POINTS = (
    0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2, -2, 2.5, 3, -3, 6, 20, -20, 100, -100, INF, -INF, NAN, 1e-40, -1e-40,
)  # fmt: skip
POOLS: dict[str, tuple[float, ...]] = {
    "points": POINTS,
    "ties": (1, 1, -1, 0, 1, -1, 2),
    "zeros": (0.0, -0.0, 0.0, 1.0),
    "zero": (0.0,),
    "constant": (1.0,),
    "infinite": (INF, -INF, 1.0, 0.0),
    "masked": (-INF,),
    "nan": (NAN, 1.0, 2.0, 2.0),
    "all nan": (NAN,),
    "mixed": (2, 0, NAN, INF, -1, -INF, 1, 2),
}
FINITE = ("ties", "zeros", "zero", "constant")


class SpecialDraws(Draws):
    """Draws whose floats are points of a pool: the first and the second operand meet in every pair."""

    def __init__(self, pool: tuple[float, ...], n: int, shares: bool) -> None:
        super().__init__(n)
        self.pool, self.shares, self.made = np.array(pool, np.float32), shares, 0

    def x(self, *shape: int) -> Array:
        shape = self.shape(*shape)
        count, size = math.prod(shape), len(self.pool)
        order = np.arange(count)
        self.made += 1
        if self.made == 1:
            order = order // size if count >= size * size else order
        elif self.made > 2 or count < size * size:
            order = self.rng.integers(0, size, count)
        return self.pool[order % size].reshape(shape)

    def between(self, low: float, high: float, *shape: int) -> Array:
        return self.x(*shape)

    def holes(self, *shape: int) -> Array:
        return self.x(*shape)

    def inside(self, *shape: int) -> Array:
        """Return shares of 1 where calls take no others; functions have the points outside, too."""
        shares = np.array([0, 1, 0.5, 1, 0, 0.25], np.float32)
        return np.resize(shares, self.shape(*shape)) if self.shares else self.x(*shape)

    def positive(self, *shape: int) -> Array:
        return self.inside(*shape)

    def complexes(self, *shape: int) -> Array:
        parts = (np.clip(np.nan_to_num(self.x(*shape)), -3, 3) for _ in range(2))
        re, im = (np.where(np.abs(p) < 1e-30, 0 * p, p) for p in parts)
        return (re + 1j * im).astype(np.complex64)

    def stack(self) -> Array:
        return self.x(max(1, self.n // 16), 4, 4)


@dataclass(frozen=True)
class Case:
    """One function of both libraries, and how it is called on each pool of points."""

    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    call: Callable[[SpecialDraws], Call | None]
    pools: tuple[str, ...] = tuple(POOLS)
    shares: bool = False

    def on(self, pool: str) -> Call | None:
        n = len(POINTS) ** 2 if pool == "points" else 64
        return self.call(SpecialDraws(POOLS[pool], n, self.shares))


# -- where cases come from -----------------------------------------------------------------------------------
def of_functions(family: str) -> Iterator[Case]:
    """Yield a case for every function whose name PyTorch has in the same place."""
    for entry in entries((family,)):
        theirs = _twin(entry)
        if theirs is not None:
            made = lambda d, e=entry: call_of(e, d)  # noqa: E731
            yield Case(entry.path, entry.value, theirs, made, _pools(entry), family == "functional")


def _pools(entry: Entry) -> tuple[str, ...]:
    """Return the pools a function is compared on; sums of products add up infinities in their own order."""
    sums = entry.family in ("linalg", "fft") or entry.name.startswith("conv") or entry.name in PRODUCTS
    return FINITE if sums else tuple(POOLS)


PRODUCTS = {
    "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "cross", "dot", "gradient", "matmul", "mm", "mv",
    "tensordot", "vander", "bilinear", "linear",
}  # fmt: skip


def _twin(entry: Entry) -> Callable[..., Any] | None:
    for space in SPACES[entry.family]:
        for name in (entry.name, *entry.aliases) if space.startswith("torch") else ():
            if name not in OTHERS.get(space, ()) and (found := _function(space, name)) is not None:
                return found
    return None


def of_methods() -> Iterator[Case]:
    """Yield a case for every method of tensors that the tables call as a function; in place, too."""
    import torch

    known = {name: e for e in entries(("math",)) for name in (e.name, *e.aliases)}
    for name in sorted(set(dir(st.Tensor)) & set(dir(torch.Tensor))):
        entry = known.get(name.removesuffix("_"))
        if entry is not None and not name.startswith("_"):
            made = lambda d, e=entry: call_of(e, d)  # noqa: E731
            yield Case(f"x.{name}", _method(name), _method(name), made, _pools(entry))




def _method(name: str) -> Callable[..., Any]:
    def of(x: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(x.clone() if name.endswith("_") else x, name)(*args, **kwargs)

    return of


def of_layers() -> Iterator[Case]:
    """Yield a case for every layer of the tables, with the parameters of ours in both."""
    import torch

    for entry in entries(("layers",)):
        theirs = getattr(torch.nn, entry.name, None)
        if entry.name in LAYERS and theirs is not None and entry.name not in DRAWN:
            made = lambda d, e=entry: made_and_called(e, d)[1]  # noqa: E731
            pools = FINITE if entry.name.startswith(("Conv", "Adaptive")) else FEW
            yield Case(f"nn.{entry.name}", *_layer(entry, theirs), made, pools, True)


DRAWN = {  # by chance
    "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "RReLU", "AlphaDropout", "FeatureAlphaDropout",
    "FractionalMaxPool2d", "FractionalMaxPool3d",
}  # fmt: skip


def _layer(entry: Entry, theirs: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    import torch

    st.manual_seed(0)
    ours = LAYERS[entry.name].made.of(entry.value)
    state = {k: torch.from_numpy(np.array(v)) for k, v in ours.state_dict().items()}

    def run(*args: Any) -> Any:
        other = LAYERS[entry.name].made.of(theirs)
        other.load_state_dict(state)
        return other(*args)

    return ours, run


def of_modes() -> Iterator[Case]:
    """Yield the calls that the tables leave out, as expressions in which `t` and `F` are either library."""
    import torch

    for pools, text in EXPRESSIONS:
        for line in filter(None, map(str.strip, text.strip().split("\n"))):
            for code in _filled(line):
                yield _expression(code, pools, (st, torch))


def _filled(line: str) -> list[str]:
    """Return a line with each of the words that stand in its first `<a|b>`, and so on."""
    before, found, rest = line.partition("<")
    if not found:
        return [line]
    words, _, after = rest.partition(">")
    return [code for word in words.split("|") for code in _filled(before + word + after)]


def _expression(code: str, pools: tuple[str, ...], libraries: tuple[Any, Any]) -> Case:
    compiled = compile(code, code, "eval")
    names = [name for name in OPERANDS if name in compiled.co_names]

    def of(t: Any) -> Callable[..., Any]:
        def array(dtype: Any) -> Callable[..., Any]:
            return lambda *values: t.tensor(np.array(values, dtype))

        known = {
            "t": t, "F": t.nn.functional, "inf": INF, "neg": -INF,
            "i": array(np.int64), "f": array(np.float32), "b": array(bool),
            "first": lambda x: array(np.int64)(*[0] * int(x.shape[0])),
            "rows": lambda x: t.tensor(np.arange(x.numel()).reshape(tuple(x.shape)) % 3),
        }  # fmt: skip
        return lambda *operands: eval(compiled, known | dict(zip(names, operands, strict=True)))  # noqa: S307

    ours, theirs = map(of, libraries)
    return Case(code, ours, theirs, lambda d: Call(tuple(OPERANDS[n](d) for n in names)), pools, True)


OPERANDS: dict[str, Callable[[SpecialDraws], Array]] = {
    "x": lambda d: d.x(),
    "y": lambda d: d.x(),
    "z": lambda d: d.x(),
    "p": lambda d: d.inside(),
    "q": lambda d: d.inside(),
    "c": lambda d: d.x(4, 3),  # scores of three classes
    "w": lambda d: d.x(3, 4),  # a table
    "s": lambda d: d.x(1, 2, 4),  # short and long sequences
    "l": lambda d: d.x(1, 20, 4),
    "n1": lambda d: d.images(2, 1),
    "n2": lambda d: d.images(2, 2),
    "n3": lambda d: d.images(2, 3),
    "e": lambda d: np.zeros(0, np.float32),
    "e1": lambda d: np.zeros((2, 0), np.float32),
    "e2": lambda d: np.zeros((0, 3), np.float32),
}
FEW, ONE = (*FINITE, "nan"), ("ties",)
EXPRESSIONS: tuple[tuple[tuple[str, ...], str], ...] = (
    (tuple(POOLS), """
        x.clamp(<-1, 1|0|1, -1|min=y|max=y|y, z>)
        x.clone().clamp_(-1, 1)
        F.hardtanh(x, -0.5, 2.0)
        F.leaky_relu(x, 0.0)
        F.threshold(x, 0.0, 0.0)
        F.softplus(x, 2.0, 1.0)
        F.<elu|celu>(x, 2.0)
        F.gelu(x, approximate="tanh")
        x.nan_to_num(1.0, 2.0, 3.0)
        x.<max|min|amax|amin|median|nanmedian|std|var|norm|prod|mean|sum|nanmean|nansum>()
        x.<max|min|amax|amin|std|var|prod|mean|sum|logsumexp|softmax|log_softmax|nansum|nanmean>(<0|-1>)
        x.<cummax|cummin|cumprod|cumsum|logcumsumexp|argmax|argmin>(<0|-1>)
        x.<max|min|amax|std>(1, keepdim=True)
        x.<median|nanmedian|mode|sort|argsort|topk|kthvalue>(1)
        x.sort(dim=1, stable=True)
        tuple(x.aminmax(<|dim=1>))
        t.<max|min>(x, y)
        x.where(x > 0, y)
        x ** <0|0.5|1|1.5|2|3|-0.5|-1|-2>
        <0.0|0.5|1.0|2.0> ** x
        <x / 0|0 / x|x % 2|(x // 2).detach()>
        F.<l1_loss|mse_loss|smooth_l1_loss|huber_loss>(x, y, reduction="none")
        F.smooth_l1_loss(x, y, reduction="none", beta=0.0)
        F.huber_loss(x, y, reduction="none", delta=2.0)
        F.<binary_cross_entropy_with_logits|kl_div|poisson_nll_loss>(x, p, reduction="none")
        F.kl_div(x, y, reduction="none", log_target=True)
        F.<hinge_embedding|soft_margin>_loss(x, t.sign(t.nan_to_num(y.detach()) + 0.5), reduction="none")
        F.margin_ranking_loss(x, y, t.ones_like(x), margin=1.0, reduction="none")
        F.multi_margin_loss(c, i(0, 1, 2, 0), p=<1|2>, reduction="none")
        F.multilabel_margin_loss(c, i([0, -1, 1], [0, 1, -1], [2, 1, 0], [-1, 0, 0]), reduction="none")
        F.gaussian_nll_loss(x, y, p, reduction="none")
        F.cross_entropy(c, i(0, 1, 2, 0), reduction="none")
        F.embedding_bag(i([0, 1, 2], [2, 2, 0]), w, mode="<sum|mean|max>")
        F.embedding_bag(i(0, 1, 2, 2), w, i(0, 0, 3), mode="<sum|mean|max>")
        F.embedding_bag(i([1, 1], [2, 1]), w, mode="<sum|mean|max>", padding_idx=1)
        F.embedding(i(1, 1, 2), w, padding_idx=1)
    """),
    (FEW, """
        x.norm(<0|0.5|1|1.5|2|3|inf|neg><|, 1>)
        t.linalg.vector_norm(x, <0|0.5|1|2|3|inf|neg>, dim=1)
        t.linalg.matrix_norm(x, <"fro"|1|-1|inf|neg>)
        F.normalize(x, <1.0|2.0|inf>, 1)
        F.pairwise_distance(x, y, <1.0|2.0|3.0|inf>, 0.0)
        t.renorm(x, <1|2>, 0, 1.0)
        F.cosine_similarity(x, y)
        F.batch_norm(c, None, None, training=True)
        F.group_norm(c, 1)
        F.<layer_norm|rms_norm>(c, (3,))
    """),
    (FINITE, """
        t.cdist(x, y, p=<0.0|1.0|2.0|3.0|inf>)
        t.dist(x, <x|y>)
        t.<std_mean|var_mean>(x, dim=1)
        x.scatter_reduce(0, rows(x), y, "<sum|prod|mean|amax|amin>")
        x.index_add(0, first(x), y<|, alpha=2>)
        F.binary_cross_entropy(p, q.detach(), reduction="none")
        F.triplet_margin_loss(x, <y, z|x, x>, reduction="none", eps=0.0)
        F.cosine_embedding_loss(x, y, t.ones_like(x)[0], reduction="none")
        F.cross_entropy(c, t.softmax(c, 1).detach(), reduction="none")
        F.cross_entropy(c, i(<-100, -100, -100, -100|-100, 0, 2, -100>), reduction="<mean|sum|none>")
        F.cross_entropy(c, i(<-100, -100, -100, -100|-100, 0, 2, -100|1, 1, 1, 1>), f(1.0, 0.0, 2.0))
        F.cross_entropy(c, i(<-100, -100, -100, -100|-100, 0, 2, -100>), label_smoothing=0.1)
        F.cross_entropy(c, i(<-100, -100, -100, -100|1, 1, 1, 1>), f(1.0, 0.0, 2.0), label_smoothing=0.1)
        F.nll_loss(c, i(<-100, -100, -100, -100|-100, 0, 2, -100>), reduction="<mean|sum|none>")
        F.nll_loss(c, i(<-100, -100, -100, -100|-100, 0, 2, -100|1, 1, 1, 1>), f(1.0, 0.0, 2.0))
        F.ctc_loss(F.log_softmax(w.reshape(3, 1, 4), -1), i([1, 2]), i(3), i(2), reduction="none")
        F.ctc_loss(F.log_softmax(w.reshape(3, 1, 4), -1), i([1, 1]), i(2), i(2), reduction="none")
        F.ctc_loss(F.log_softmax(w.reshape(3, 1, 4), -1), i([1, 1]), i(2), i(2), zero_infinity=True)
        F.softmax(x.masked_fill(t.ones_like(x) > 0, neg), -1)
        F.scaled_dot_product_attention(s, s * 0.5, s + 1, attn_mask=b([True, True], [False, False]))
        F.scaled_dot_product_attention(s, s * 0.5, s + 1, attn_mask=f([0, 0], [neg, neg]))
        F.scaled_dot_product_attention(l, l * 0.5, l + 1, attn_mask=t.zeros(20, 20) > 0)
        x.masked_select(x != x)
        F.max_pool<1d(n1|2d(n2|3d(n3>, 3, 2, 1)
        F.avg_pool<1d(n1|2d(n2|3d(n3>, 3, 2, 1, count_include_pad=False)
        F.adaptive_<max|avg>_pool2d(n2, 3)
        F.lp_pool2d(n2, 2.0, 2)
    """),
    (ONE, """
        e.<sum|prod|mean|std|var|norm|max|min|amax|median|argmax|all|any|sort|nansum|nanmean>()
        e1.<sum|prod|mean|std|var|max|amax|median|argmax|mode|sort|all|any|nansum|nanmean|logsumexp>(1)
        e1.<cumsum|cumprod|cummax|logcumsumexp|softmax|log_softmax>(1)
        e1.norm(2, 1)
        F.<mse_loss|l1_loss|smooth_l1_loss|huber_loss|kl_div>(e2, e2.detach())
        F.<binary_cross_entropy|binary_cross_entropy_with_logits>(e2, e2.detach())
        F.cross_entropy(e2, t.zeros(0, dtype=t.int64))
        e1 @ e1.T
    """),
)  # fmt: skip


# -- what both make of them ----------------------------------------------------------------------------------
Found = tuple[list[Array], list[Array | None]]  # values, and gradients of operands


def of_torch(function: Callable[..., Any], made: Call, differentiate: bool = True) -> Found:
    """Return PyTorch's values and gradients."""
    import torch

    given: list[Any] = []

    def tensor(array: Array) -> Any:
        x = torch.from_numpy(array.copy())
        if array.dtype.kind in "fc" and differentiate:
            given.append(x.requires_grad_(True))
        return x

    found = _leaves(made.mapped(tensor).of(function))
    results = [r if torch.is_tensor(r) else torch.as_tensor(r) for r in found]
    roots = [r for r in results if r.requires_grad]
    grads: Any = [None] * len(given)
    if roots and given:
        weights = [torch.from_numpy(_weights(r.shape)).to(r.dtype) for r in roots]
        grads = torch.autograd.grad(roots, given, weights, allow_unused=True)
    return [_array(r) for r in results], [None if g is None else _array(g) for g in grads]


def _array(x: Any) -> Array:
    return np.asarray(x.detach().resolve_conj().resolve_neg().numpy(force=True))


def of_ours(function: Callable[..., Any], made: Call, eager: bool) -> Found:
    """Return Stratal's values and gradients: by the references, or as compiled."""
    given: list[st.Tensor] = []

    def tensor(array: Array) -> st.Tensor:
        x = st.tensor(array.copy())
        if array.dtype.kind in "fc":
            given.append(x.requires_grad_(True))
        return x

    with st.eager() if eager else nullcontext():
        found = _leaves(made.mapped(tensor).of(function))
        results = [r if isinstance(r, st.Tensor) else st.tensor(r) for r in found]
        terms = [_term(r) for r in results if r.requires_grad]
        if terms:
            sum(terms[1:], terms[0]).backward()
        values = [np.asarray(r.detach().numpy()) for r in results]
        return values, [None if x.grad is None else np.asarray(x.grad.numpy()) for x in given]


def _term(x: st.Tensor) -> st.Tensor:
    weighted = (x * st.tensor(_weights(tuple(map(int, x.shape)))).astype(x.dtype)).sum()
    return (st.real(weighted) if x.dtype.is_complex else weighted).astype("float64")


def _weights(shape: tuple[int, ...]) -> Array:
    """Return cotangents of 1, 2 and 3, so that what goes to another element is seen."""
    return (1 + np.arange(math.prod(shape)) % 3).reshape(tuple(shape)).astype(np.float64)


def _leaves(result: Any) -> list[Any]:
    if isinstance(result, Mapping):
        result = list(result.values())
    if not isinstance(result, (list, tuple)):
        return [result]
    return [leaf for part in result for leaf in _leaves(part)]


def unlike_in_none(case: Case, pool: str) -> str:
    """Return which operands have a gradient in one of the libraries only; "" where they agree."""
    made = case.on(pool)
    theirs = None if made is None else _if_it_can(of_torch, case.theirs, made)
    if made is None or theirs is None or theirs[1] is None:
        return ""
    try:
        ours = of_ours(case.ours, made, eager=True)
    except Exception:  # `difference` tells of it
        return ""
    absent, wanted = ([g is None for g in found[1]] for found in (ours, theirs))
    return "" if absent == wanted else f"without a gradient: {absent} for {wanted}"


def difference(case: Case, pool: str, eager: bool = True) -> str | None:
    """Return how both differ on a pool: in values, gradients, or that Stratal alone refuses; "" where they do
    not, None where PyTorch refuses.
    """
    made = case.on(pool)
    theirs = None if made is None else _if_it_can(of_torch, case.theirs, made)
    if made is None or theirs is None:
        return None
    try:
        ours = of_ours(case.ours, made, eager)
    except Exception as error:  # whatever it is, it is no number
        return f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
    for what, a, b in zip(("value", "gradient"), ours, theirs, strict=True):
        if b is None:  # PyTorch has no derivative of it
            continue
        if len(a) != len(b):
            return f"{len(a)} for {len(b)} results"
        for k, (x, y) in enumerate(zip(a, b, strict=True)):
            text = _unlike(x, y)
            if text:
                return f"{what} {k}: {text}"
    return ""


def _if_it_can(run: Callable[..., Found], function: Callable[..., Any], made: Call) -> Any:
    """Return PyTorch's values and gradients; the values alone, or None, where it refuses."""
    try:
        return run(function, made)
    except Exception:
        try:
            return run(function, made, differentiate=False)[0], None
        except Exception:
            return None


def _unlike(x: Array | None, y: Array | None) -> str:
    x, y = (np.zeros_like(b) if a is None and b is not None else a for a, b in ((x, y), (y, x)))
    if x is None or y is None:  # no gradient is one of zeros
        return ""
    if x.shape != y.shape or x.dtype.kind != y.dtype.kind:
        return f"{x.dtype}{list(x.shape)} for {y.dtype}{list(y.shape)}"
    near = np.isclose(x.astype(np.complex128), y.astype(np.complex128), rtol=1e-3, atol=2e-4, equal_nan=True)
    if near.all():
        return ""
    at = tuple(int(k) for k in np.argwhere(~near)[0])
    return f"{x[at]} for {y[at]} at {list(at)}, {int((~near).sum())} of {x.size}"
