"""Attention written by hand becomes passes over blocks: the same numbers, no N x N value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as hs

import stratal as st
from stratal import nn
from stratal.base import settings
from stratal.compiler import compile_graph, planned
from stratal.graph.graph import Graph, verify
from stratal.graph.interpret import interpret
from stratal.optimize.online import LEAST_BYTES, use_online_forms
from stratal.optimize.simplify import simplify
from stratal.runtime.storage import Storage

Array = np.ndarray[Any, Any]
Score = Callable[..., Any]


def softmax_by_hand(s: Any) -> Any:
    e = st.exp(s - s.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def attention(q: Any, k: Any, v: Any, score: Score = lambda s: s, softmax: Score = softmax_by_hand) -> Any:
    return softmax(score(q @ k.mT * 0.3)) @ v


def positions(s: Any) -> tuple[Any, Any]:
    return st.arange(s.shape[-2])[:, None], st.arange(s.shape[-1])[None, :]


def causal(s: Any) -> Any:
    i, j = positions(s)
    return st.where(j <= i, s, float("-inf"))


def window(s: Any) -> Any:
    i, j = positions(s)
    return st.where((j <= i) & (i - j < 9), s, -1e9)


def alibi(s: Any) -> Any:
    i, j = positions(s)
    slopes = st.tensor([0.5, 0.25], dtype=s.dtype).reshape(2, 1, 1)
    return s + slopes * (j - i).astype(s.dtype)


def grouped(q: Any, k: Any, v: Any) -> Any:
    one, two = (st.concatenate([x[:, :1]] * 2, 1) for x in (k, v))
    return attention(q, one, two)


def grouped_by_einsum(q: Any, k: Any, v: Any) -> Any:
    s = st.einsum("bhld,bsd->bhls", q, k[:, 0]) * 0.3
    return st.einsum("bhls,bse->bhle", st.softmax(s, -1), v[:, 0])


def with_sink(q: Any, k: Any, v: Any) -> Any:
    s = q @ k.mT * 0.3
    extra = st.tensor([0.3, -0.2], dtype=q.dtype).reshape(1, 2, 1, 1)
    top = st.maximum(s.amax(-1, keepdim=True), extra).detach()
    e = st.exp(s - top)
    return (e / (e.sum(-1, keepdim=True) + st.exp(extra - top))) @ v


def without_maximum(q: Any, k: Any, v: Any) -> Any:
    e = st.exp(q @ k.mT * 0.3)
    return (e / e.sum(-1, keepdim=True)) @ v


def by_logarithms(q: Any, k: Any, v: Any) -> Any:
    return st.exp(st.log_softmax(q @ k.mT * 0.3, -1)) @ v


def by_logsumexp(q: Any, k: Any, v: Any) -> Any:
    s = q @ k.mT * 0.3
    return st.exp(s - st.logsumexp(s, -1, keepdim=True)) @ v


def heads_folded(q: Any, k: Any, v: Any) -> Any:
    """Products of three axes, scores of four."""
    one, two, three = (x.reshape(-1, *x.shape[-2:]) for x in (q, k, v))
    s = alibi((one @ two.mT).reshape(*q.shape[:-1], -1) * 0.3)
    return (st.softmax(s, -1).reshape(-1, *s.shape[-2:]) @ three).reshape(q.shape)


def float_mask(q: Any) -> Any:
    """Return numbers to add to scores; the first query sees no key."""
    i, j = st.arange(q.shape[-2])[:, None], st.arange(72)[None, :]
    return st.where((i == 0) | (j % 5 == i % 5), float("-inf"), st.sin((i * j).astype(q.dtype)))


def biased(q: Any, k: Any, v: Any) -> Any:
    return attention(q, k, v, lambda s: s + st.sin(st.arange(s.shape[-1]).astype(s.dtype)))


VARIANTS: dict[str, Callable[..., Any]] = {
    "plain": attention,
    "st.softmax": lambda q, k, v: attention(q, k, v, softmax=lambda s: st.softmax(s, -1)),
    "causal": lambda q, k, v: attention(q, k, v, causal),
    "sliding window": lambda q, k, v: attention(q, k, v, window),
    "ALiBi": lambda q, k, v: attention(q, k, v, alibi),
    "soft cap": lambda q, k, v: attention(q, k, v, lambda s: 2 * st.tanh(s / 2)),
    "bias of keys": biased,
    "scale of queries": lambda q, k, v: st.softmax((q * 0.2) @ k.mT, -1) @ v,
    "grouped heads": grouped,
    "grouped heads by einsum": grouped_by_einsum,
    "sink": with_sink,
    "no maximum": without_maximum,
    "exp(log_softmax)": by_logarithms,
    "exp(s - logsumexp)": by_logsumexp,
    "heads folded": heads_folded,
    "attn_mask": lambda q, k, v: nn.functional.scaled_dot_product_attention(q, k, v, float_mask(q)),
    "enable_gqa": lambda q, k, v: nn.functional.scaled_dot_product_attention(
        q, k[:, :1], v[:, :1], float_mask(q), enable_gqa=True
    ),
}  # fmt: skip

class Case(NamedTuple):
    graph: Graph
    arrays: list[Array]


def trained(
    function: Callable[..., Any], rows: int = 40, columns: int = 72, d: int = 8, dtype: Any = "f4"
) -> Case:
    """Return the graph of a result and gradients of q, k and v, and arrays for it."""
    rng = np.random.default_rng(rows)
    shapes = (2, 2, rows, d), (2, 2, columns, d), (2, 2, columns, d)
    arrays = [rng.standard_normal(shape).astype("f4").astype(dtype) for shape in shapes]

    def step(*operands: Any) -> Any:
        def loss(*operands: Any) -> Any:
            result = function(*operands)
            return (result * st.cos(result)).sum(), result

        gradients, result = st.grad(loss, (0, 1, 2), has_aux=True)(*operands)
        return result, *gradients

    with settings.online(None):
        compiled = st.compile(step)
        compiled(*map(st.tensor, arrays))
    return Case(compiled.graph, arrays)


def largest(graph: Graph) -> int:
    return max(n.aval.nbytes for n in graph.nodes if not hasattr(n.type, "elements"))


def in_blocks(case: Case) -> Graph:
    with settings.online(1):
        return use_online_forms(simplify(verify(case.graph)))


def passes(graph: Graph) -> int:
    return sum(node.op.name == "blockwise" for node in graph.nodes)


@pytest.mark.row("C11")
@pytest.mark.quick
@pytest.mark.parametrize("name", VARIANTS)
def test_attention_by_hand_is_two_passes_that_store_no_scores(name: str) -> None:
    case = trained(VARIANTS[name])
    rewritten = verify(in_blocks(case))
    assert passes(rewritten) == 2
    assert largest(rewritten) < 2 * 2 * 40 * 72 * 4 <= largest(simplify(case.graph))
    want, got = (interpret(graph, case.arrays)[0] for graph in (case.graph, rewritten))
    for w, g in zip(want, got, strict=True):
        np.testing.assert_allclose(g, w, rtol=0, atol=2e-5 * np.abs(w).max())


def stored(case: Case) -> list[Storage]:
    return [Storage.copy_of(a, node.aval) for a, node in zip(case.arrays, case.graph.inputs, strict=True)]


def errors(graph: Graph, case: Case, want: list[Array], least: int | None) -> list[float]:
    """Return the largest error of each result, relative to its largest value, of native code."""
    with settings.online(least), settings.strict(True):
        program = compile_graph(graph)
        got = [np.array(s.array) for s in program.run(stored(case))]
    return [float(np.abs(g - w).max() / np.abs(w).max()) for g, w in zip(got, want, strict=True)]


@pytest.mark.parametrize("name", VARIANTS)
def test_errors_against_float64_are_those_of_stored_scores(name: str) -> None:
    case, exact = trained(VARIANTS[name]), trained(VARIANTS[name], dtype="f8")
    want = interpret(exact.graph, exact.arrays)[0]
    whole, blocks = (errors(case.graph, case, want, least) for least in (None, 1))
    for one, other in zip(whole, blocks, strict=True):
        assert other <= 3 * one + 2e-7


@pytest.mark.parametrize("name", ["causal", "ALiBi", "sink", "enable_gqa"])
def test_the_planned_peak_is_linear_in_the_number_of_keys(name: str) -> None:
    peaks = []
    for n in (144, 288):
        graph = trained(VARIANTS[name], rows=n, columns=n if name != "enable_gqa" else 72).graph
        with settings.online(1):
            peaks.append(planned(graph)[1].planned_peak_bytes)
    assert peaks[1] < 2.2 * peaks[0]


def returned(q: Any, k: Any, v: Any) -> Any:
    s = q @ k.mT
    return (st.softmax(s, -1) @ v).sum() + s[0, 0, 0, 0]


def sorted_scores(q: Any, k: Any, v: Any) -> Any:
    return st.softmax(st.sort(q @ k.mT, -1).values, -1) @ v


def of_two_softmaxes(q: Any, k: Any, v: Any) -> Any:
    """Weights that sum to 1 over queries, too: along rows no sum of products is left."""
    return (st.softmax(q @ k.mT, -2) * st.softmax(q @ k.mT, -1)) @ v


@pytest.mark.parametrize("function", [returned, sorted_scores, of_two_softmaxes])
def test_scores_that_something_needs_as_a_whole_are_stored(function: Callable[..., Any]) -> None:
    case = trained(function)
    assert passes(in_blocks(case)) == 0


def drawn(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [st.tensor(rng.standard_normal(shape, dtype=np.float32)) for shape in shapes]


QUERIES, ALL = (2, 3, 40, 8), (0, 1, 2, 3)


@pytest.mark.parametrize("shape", [(40, 40), (1, 3, 40, 40), (2, 3, 40, 40)], ids=str)
def test_gradients_of_biases_are_summed_over_heads_in_a_pass_of_their_own(shape: tuple[int, ...]) -> None:
    """One that every score has for itself is a value of the size of the scores: they are stored."""

    @st.compile
    def step(*operands: Any) -> Any:
        def loss(q: Any, k: Any, v: Any, bias: Any) -> Any:
            return (st.softmax(q @ k.mT + bias, -1) @ v).square().sum()

        return st.grad(loss, ALL)(*operands)

    operands = drawn(QUERIES, QUERIES, QUERIES, shape)
    with settings.online(None):
        want = step(*operands)
    assert passes(in_blocks(Case(step.graph, []))) == (0 if shape == (2, 3, 40, 40) else 3)
    with settings.online(1), settings.strict(True):
        got = step(*operands)
    for w, g in zip(want, got, strict=True):
        np.testing.assert_allclose(g.numpy(), w.numpy(), rtol=0, atol=3e-6 * np.abs(w.numpy()).max())


def test_a_learned_table_of_relative_positions_is_three_passes() -> None:
    far = np.abs(np.arange(40)[:, None] - np.arange(40)).clip(0, 9)

    @st.compile
    def step(q: Any, k: Any, v: Any, table: Any) -> Any:
        def loss(q: Any, k: Any, v: Any, table: Any) -> Any:
            bias = table[st.tensor(far)].permute(2, 0, 1)
            return (st.softmax(q @ k.mT + bias, -1) @ v).square().sum()

        return st.grad(loss, ALL)(q, k, v, table)

    operands = drawn(QUERIES, QUERIES, QUERIES, (10, 3))
    with settings.online(None):
        want = step(*operands)
    assert passes(in_blocks(Case(step.graph, []))) == 3
    with settings.online(1), settings.strict(True):
        got = step(*operands)
    for w, g in zip(want, got, strict=True):
        np.testing.assert_allclose(g.numpy(), w.numpy(), rtol=0, atol=3e-6 * np.abs(w.numpy()).max())


@pytest.mark.torch
@pytest.mark.parametrize("name", ["causal", "ALiBi", "soft cap", "sink", "sliding window", "plain"])
def test_results_and_gradients_are_those_of_pytorch(name: str) -> None:
    torch = pytest.importorskip("torch")
    case = trained(VARIANTS[name])
    q, k, v = (torch.tensor(a, requires_grad=True) for a in case.arrays)
    s = q @ k.mT * 0.3
    i, j = torch.arange(40)[:, None], torch.arange(72)
    e = None
    if name == "causal":
        s = s.masked_fill(j > i, -torch.inf)
    elif name == "sliding window":
        s = s.masked_fill((j > i) | (i - j >= 9), -1e9)
    elif name == "ALiBi":
        s = s + torch.tensor([0.5, 0.25]).reshape(2, 1, 1) * (j - i)
    elif name == "soft cap":
        s = 2 * torch.tanh(s / 2)
    elif name == "sink":
        extra = torch.tensor([0.3, -0.2]).reshape(1, 2, 1, 1).expand(2, 2, 40, 1)
        e = torch.softmax(torch.cat([s, extra], -1), -1)[..., :-1]
    result = (torch.softmax(s, -1) if e is None else e) @ v
    gradients = torch.autograd.grad((result * torch.cos(result)).sum(), (q, k, v))
    with settings.online(1), settings.strict(True):
        program = compile_graph(case.graph)
        got = [np.array(x.array) for x in program.run(stored(case))]
    for g, w in zip(got, [result.detach(), *gradients], strict=True):
        np.testing.assert_allclose(g, w.numpy(), rtol=0, atol=3e-6 * float(w.abs().max()))


def test_small_scores_and_those_of_who_says_so_are_stored() -> None:
    graph = simplify(verify(trained(attention).graph))
    for least in (None, "16MiB", 2 * 2 * 40 * 72 * 4 + 1):
        with settings.online(least):
            assert use_online_forms(graph) is graph


def test_scores_are_in_blocks_where_arithmetic_is_real_and_programs_exact_by_default() -> None:
    def scores(q: Any, k: Any, v: Any) -> Any:
        return nn.functional.softmax(q @ k.mT, -1) @ v

    rng = np.random.default_rng(0)
    shapes = (1, 2, 1024, 4), (1, 2, 2048, 4), (1, 2, 2048, 4)
    arrays = [st.tensor(rng.standard_normal(s).astype("f4")) for s in shapes]
    exact, real = st.compile(scores), st.compile(scores, math="real")
    exact(*arrays), real(*arrays)
    assert exact.plan.planned_peak_bytes > LEAST_BYTES > 4 * real.plan.planned_peak_bytes
    said = "scores [1, 2, 1024, 2048] in 1 passes over blocks, 1 with a running maximum"
    assert f'math="real" would compute {said}' in exact.explain("rewrites").splitlines()
    assert said in real.explain("rewrites").splitlines()


def test_layers_whose_gradients_are_sums_over_rows_alone_are_left() -> None:
    """An expanding layer is no attention: nothing of a row comes back to it."""

    def layer(q: Any, k: Any, v: Any) -> Any:
        return nn.functional.gelu(q @ k.mT + k.sum(-1)[..., None, :]) @ v

    assert passes(in_blocks(trained(layer))) == 0


def test_explain_names_the_passes() -> None:
    case = trained(attention)
    with settings.online(1):
        text = str(compile_graph(case.graph).explain())
    assert "scores in blocks" in text
    assert "2 passes over blocks, 1 with a running maximum" in text


CHAIN: dict[str, Callable[[Any], Any]] = {
    "scale": lambda s: s * 0.7,
    "shift": lambda s: s - 0.4,
    "cap": lambda s: 3 * st.tanh(s / 3),
    "square": lambda s: s * s * 0.1,
    "rows": lambda s: s + st.cos(st.arange(s.shape[-2]).astype(s.dtype))[:, None],
    "columns": lambda s: s * st.cos(st.arange(s.shape[-1]).astype(s.dtype)),
    "causal": causal,
    "sigmoid": st.sigmoid,
    "clip": lambda s: st.clip(s, -1.5, 1.5),
}


CHAINS = {"chain": hs.lists(hs.sampled_from(sorted(CHAIN)), max_size=4), "shifted": hs.booleans()}


@pytest.mark.row("C11")
@examples(max_examples=6)
@given(**CHAINS)
def test_any_chain_of_element_wise_functions_is_two_passes(chain: list[str], shifted: bool) -> None:
    two_passes(chain, shifted)


@pytest.mark.slow
@examples(max_examples=100)
@given(**CHAINS)
def test_a_hundred_chains_of_element_wise_functions_are_two_passes(chain: list[str], shifted: bool) -> None:
    two_passes(chain, shifted)


def two_passes(chain: list[str], shifted: bool) -> None:
    def score(s: Any) -> Any:
        for name in chain:
            s = CHAIN[name](s)
        return s

    def weights(s: Any) -> Any:
        return softmax_by_hand(s) if shifted else st.softmax(s, -1)

    case = trained(lambda q, k, v: attention(q, k, v, score, weights), rows=17, columns=18, d=4)
    rewritten = verify(in_blocks(case))
    assert passes(rewritten) == 2
    want, got = (interpret(graph, case.arrays)[0] for graph in (case.graph, rewritten))
    for w, g in zip(want, got, strict=True):
        np.testing.assert_allclose(g, w, rtol=0, atol=2e-5 * max(1e-3, np.abs(w).max()))
