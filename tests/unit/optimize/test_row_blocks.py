"""Linear layers followed by losses over many classes: blocks of rows, no value of rows x classes."""

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
from stratal.optimize.online import use_online_forms
from stratal.optimize.online.row_blocks import in_row_blocks
from stratal.optimize.simplify import simplify
from stratal.runtime.storage import Storage

Array = np.ndarray[Any, Any]
F = nn.functional
ROWS, WIDTH, CLASSES = 1024, 12, 100
LEAST = ROWS * CLASSES // 2  # bytes: an eighth of the products


def by_hand(logits: Any, labels: Any) -> Any:
    return F.nll_loss(st.log_softmax(logits, -1), labels)


def picked(logits: Any, labels: Any) -> Any:
    own = st.take_along_axis(logits, labels[:, None], 1)[:, 0]
    return (st.logsumexp(logits, -1) - own).mean()


def indexed(logits: Any, labels: Any) -> Any:
    return (st.logsumexp(logits, -1) - logits[st.arange(ROWS), labels]).mean()


def one_hot(logits: Any, labels: Any) -> Any:
    hot = (labels[:, None] == st.arange(CLASSES)).astype(logits.dtype)
    return -(hot * st.log_softmax(logits, -1)).sum() / ROWS


def with_penalty(logits: Any, labels: Any) -> Any:
    """A penalty on the logarithm of the sum, as large language models have it."""
    return F.cross_entropy(logits, labels) + 1e-2 * st.logsumexp(logits, -1).square().mean()


def soft_cap(logits: Any, labels: Any) -> Any:
    return F.cross_entropy(3 * st.tanh(logits / 3), labels)


def of_probabilities(logits: Any, labels: Any) -> Any:
    like = st.softmax(st.sin((labels[:, None] * st.arange(CLASSES)).astype(logits.dtype)), -1)
    return F.cross_entropy(logits, like)


def weighted(logits: Any, labels: Any) -> Any:
    weights = 1 + st.sin(st.arange(CLASSES).astype(logits.dtype)).square()
    return F.cross_entropy(logits, labels, weight=weights, label_smoothing=0.1)


def in_sequences(loss: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Give a loss logits [B, T, classes] and labels [B, T]."""
    return lambda x, y: loss(x.reshape(16, -1, CLASSES), y.reshape(16, -1))


def flat(logits: Any, labels: Any) -> Any:
    return F.cross_entropy(logits.reshape(-1, CLASSES), labels.reshape(-1))


def next_token(logits: Any, labels: Any) -> Any:
    return flat(logits[:, :-1], labels[:, 1:])


def along_the_last(logits: Any, labels: Any) -> Any:
    return -st.take_along_axis(st.log_softmax(logits, -1), labels[..., None], -1).mean()


def classes_second(logits: Any, labels: Any) -> Any:
    return F.cross_entropy(logits.movedim(-1, 1), labels)


LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "cross_entropy": F.cross_entropy,
    "ignored": lambda x, y: F.cross_entropy(x, st.where(y % 3 != 0, y, -100)),
    "sum": lambda x, y: F.cross_entropy(x, y, reduction="sum"),
    "each": lambda x, y: (F.cross_entropy(x, y, reduction="none") * st.arange(ROWS).astype(x.dtype)).mean(),
    "smoothing": lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
    "weights": weighted,
    "log_softmax, nll_loss": by_hand,
    "logsumexp less picked": picked,
    "logsumexp less indexed": indexed,
    "one hot": one_hot,
    "penalty": with_penalty,
    "soft cap": soft_cap,
    "flat": in_sequences(flat),
    "next token": in_sequences(next_token),
    "along the last axis": in_sequences(along_the_last),
    "classes second": in_sequences(classes_second),
    "probabilities": of_probabilities,
}


class Case(NamedTuple):
    graph: Graph
    arrays: list[Array]


def trained(loss: Callable[[Any, Any], Any], dtype: Any = "f4") -> Case:
    """Return the graph of a loss and the gradients of x, W and b, and arrays for it."""
    rng = np.random.default_rng(0)
    shapes = (ROWS, WIDTH), (CLASSES, WIDTH), (CLASSES,)
    arrays = [rng.standard_normal(shape).astype("f4").astype(dtype) for shape in shapes]
    arrays.append(rng.integers(0, CLASSES, ROWS))

    def step(x: Any, w: Any, b: Any, labels: Any) -> Any:
        return st.value_and_grad(lambda x, w, b: loss(x @ w.T + b, labels), (0, 1, 2))(x, w, b)

    return captured(step, arrays)


def captured(step: Callable[..., Any], arrays: list[Array]) -> Case:
    with settings.online(None):
        compiled = st.compile(step)
        compiled(*map(st.tensor, arrays))
    return Case(compiled.graph, arrays)


def in_blocks(graph: Graph) -> Graph:
    with settings.online(LEAST):
        return verify(use_online_forms(simplify(verify(graph))))


def assert_equal_values(graph: Graph, rewritten: Graph, arrays: Any) -> None:
    want, got = (interpret(g, arrays)[0] for g in (graph, rewritten))
    for w, g in zip(want, got, strict=True):
        np.testing.assert_allclose(g, w, rtol=0, atol=1e-5 * np.abs(w).max())


def loops(graph: Graph) -> int:
    return sum(node.op.name == "scan" for node in graph.nodes)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_over_many_classes_and_its_gradients_are_one_loop(name: str) -> None:
    case = trained(LOSSES[name])
    rewritten = in_blocks(case.graph)
    assert loops(rewritten) == 1
    assert_equal_values(case.graph, rewritten, case.arrays)


CHAIN: dict[str, Callable[[Any], Any]] = {
    "scale": lambda s: s * 0.7,
    "cap": lambda s: 3 * st.tanh(s / 3),
    "rows": lambda s: s + st.cos(st.arange(ROWS).astype(s.dtype))[:, None],
    "columns": lambda s: s * st.cos(st.arange(CLASSES).astype(s.dtype)),
    "mask": lambda s: st.where((st.arange(ROWS)[:, None] + st.arange(CLASSES)) % 7 == 0, 0.0, s),
    "normalised": lambda s: (s - s.mean(-1, keepdim=True)) / (1 + s.std(-1, keepdim=True)),
    "softmax": lambda s: st.softmax(s, -1) * 5,
    "cumulative": lambda s: st.cumsum(s, -1) / 10,
    "shifted": lambda s: st.roll(s, 1, -1),
}
CHAINS = {
    "chain": hs.lists(hs.sampled_from(sorted(CHAIN)), max_size=4),
    "name": hs.sampled_from(sorted(LOSSES)),
}


@examples(max_examples=3)
@given(**CHAINS)
def test_any_chain_of_functions_of_rows_is_one_loop(chain: list[str], name: str) -> None:
    one_loop(chain, name)


@pytest.mark.slow
@examples(max_examples=100)
@given(**CHAINS)
def test_a_hundred_chains_of_functions_of_rows_are_one_loop(chain: list[str], name: str) -> None:
    one_loop(chain, name)


def one_loop(chain: list[str], name: str) -> None:
    def loss(logits: Any, labels: Any) -> Any:
        for step in chain:
            logits = CHAIN[step](logits)
        return LOSSES[name](logits, labels)

    case = trained(loss)
    rewritten = in_blocks(case.graph)
    assert loops(rewritten) == 1
    want, got = (interpret(graph, case.arrays)[0] for graph in (case.graph, rewritten))
    for w, g in zip(want, got, strict=True):
        np.testing.assert_allclose(g, w, rtol=0, atol=2e-5 * max(1e-3, np.abs(w).max()))


def stored(case: Case) -> list[Storage]:
    return [Storage.copy_of(a, node.aval) for a, node in zip(case.arrays, case.graph.inputs, strict=True)]


def errors(case: Case, want: list[Array], least: int | None) -> list[float]:
    """Return the largest error of each result, relative to its largest value, of native code."""
    with settings.online(least), settings.strict(True):
        got = [np.array(s.array) for s in compile_graph(case.graph).run(stored(case))]
    return [float(np.abs(g - w).max() / np.abs(w).max()) for g, w in zip(got, want, strict=True)]


@pytest.mark.parametrize("name", LOSSES)
def test_errors_against_float64_are_those_of_stored_products(name: str) -> None:
    case, exact = trained(LOSSES[name]), trained(LOSSES[name], "f8")
    want = interpret(exact.graph, exact.arrays)[0]
    for one, other in zip(errors(case, want, None), errors(case, want, LEAST), strict=True):
        assert other <= 3 * one + 2e-7


@pytest.mark.parametrize("name", LOSSES)
def test_the_planned_peak_has_no_value_of_rows_by_classes(name: str) -> None:
    case = trained(LOSSES[name])
    with settings.online(LEAST):
        peak = planned(case.graph)[1].planned_peak_bytes
    given = sum(i.aval.nbytes for i in case.graph.inputs)
    assert peak - 2 * given < ROWS * CLASSES * 4  # gradients are as large as what is given


def returned(logits: Any, labels: Any) -> Any:
    return F.cross_entropy(logits, labels) + st.sort(logits, 0)[0][0].sum()


def of_the_batch(logits: Any, labels: Any) -> Any:
    """Statistics over rows that come back to them."""
    return F.cross_entropy(logits - logits.mean(0), labels)


@pytest.mark.quick
def test_a_loss_without_gradients_is_a_loop_too() -> None:
    case = trained(F.cross_entropy)
    forward = captured(lambda x, w, b, labels: F.cross_entropy(x @ w.T + b, labels), case.arrays)
    rewritten = in_blocks(forward.graph)
    assert loops(rewritten) == 1
    want, got = (interpret(graph, case.arrays)[0] for graph in (forward.graph, rewritten))
    np.testing.assert_allclose(got[0], want[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("loss", "sequences"), [(next_token, 16), (flat, 1), (along_the_last, 1), (classes_second, 1)]
)
def test_a_product_of_three_axes_is_a_loop_over_sequences_or_one(loss: Any, sequences: int) -> None:
    x, w, b, labels = trained(F.cross_entropy).arrays
    arrays = [x.reshape(sequences, -1, WIDTH), w, b, labels.reshape(sequences, -1)]

    def step(x: Any, w: Any, b: Any, labels: Any) -> Any:
        return st.grad(lambda x, w, b: loss(x @ w.T + b, labels), (0, 1, 2))(x, w, b)

    whole = captured(step, arrays)
    rewritten = in_blocks(whole.graph)
    assert loops(rewritten) == 1
    assert_equal_values(whole.graph, rewritten, arrays)


def test_products_within_a_loop_are_loops_over_blocks() -> None:
    """Gradients that a scan adds up over parts of a batch."""
    x, w, b, labels = trained(F.cross_entropy).arrays
    arrays = [np.stack([x, x[::-1]]), w, b, np.stack([labels, labels])]

    def step(xs: Any, w: Any, b: Any, labels: Any) -> Any:
        def part(total: Any, row: Any) -> Any:
            x, y = row
            loss, gradient = st.value_and_grad(lambda w: F.cross_entropy(x @ w.T + b, y))(w)
            return total + gradient, loss

        return st.scan(part, st.zeros_like(w), (xs, labels))

    case = captured(step, arrays)
    rewritten = in_blocks(case.graph)
    (outer,) = (n for n in rewritten.nodes if n.op.name == "scan")
    assert loops(outer.op.attributes["body"]) == 1
    want = interpret(case.graph, arrays)[0]
    case = Case(case.graph, arrays)
    assert max(errors(case, want, LEAST)) < 1e-5


def test_attention_of_a_single_head_is_a_loop_over_queries() -> None:
    """A gradient that a pass over blocks of columns would leave to one thread."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((1024, 8), dtype=np.float32) for _ in range(3)]

    def attention(q: Any, k: Any, v: Any) -> Any:
        return (st.softmax(q @ k.T, -1) @ v).square().sum()

    case = captured(lambda *qkv: st.grad(attention, (0, 1, 2))(*qkv), arrays)
    rewritten = in_blocks(case.graph)
    assert loops(rewritten) == 1
    assert_equal_values(case.graph, rewritten, arrays)


def test_what_a_gradient_needs_of_the_result_is_in_the_loop_too() -> None:
    """The gradient of v alone is a product of weights with what follows from their product with v."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((1024, 8), dtype=np.float32) for _ in range(3)]
    case = captured(
        lambda q, k, v: st.grad(lambda v: (st.softmax(q @ k.T, -1) @ v).square().sum())(v), arrays
    )
    rewritten = in_blocks(case.graph)
    assert loops(rewritten) == 1
    assert not any(n.op.name == "contract" for n in rewritten.nodes)
    want, got = (interpret(graph, arrays)[0] for graph in (case.graph, rewritten))
    np.testing.assert_allclose(got[0], want[0], rtol=0, atol=1e-5 * np.abs(want[0]).max())


def test_rows_may_be_compared_with_each_other() -> None:
    """One operand is read by rows and as a whole."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((1024, 8), dtype=np.float32)]

    def contrast(x: Any) -> Any:
        s = st.where(st.eye(1024) > 0, -1e9, x @ x.T)
        return F.cross_entropy(s, (st.arange(1024) + 512) % 1024)

    case = captured(lambda x: st.value_and_grad(contrast)(x), arrays)
    rewritten = in_blocks(case.graph)
    assert loops(rewritten) == 1
    assert_equal_values(case.graph, rewritten, arrays)


def test_a_loop_reads_what_another_one_makes() -> None:
    """Two layers of attention of a single head, without gradients."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((1024, 8), dtype=np.float32) for _ in range(3)]

    def twice(q: Any, k: Any, v: Any) -> Any:
        h = st.softmax(q @ k.T, -1) @ v
        return st.softmax(h @ st.sin(k).T, -1) @ v

    case = captured(twice, arrays)
    with settings.online(LEAST):
        rewritten = in_row_blocks(simplify(verify(case.graph)), LEAST)
    assert loops(rewritten) == 2
    assert not any(n.op.name == "contract" for n in rewritten.nodes)
    want, got = (interpret(graph, arrays)[0] for graph in (case.graph, rewritten))
    np.testing.assert_allclose(got[0], want[0], rtol=0, atol=1e-5)


def test_a_language_model_with_tied_weights_trains_as_before() -> None:
    tokens = np.random.default_rng(0).integers(0, CLASSES, (8, 129))

    def trained_losses(least: int | None) -> tuple[list[float], str]:
        st.manual_seed(0)
        embedding = nn.Embedding(CLASSES, WIDTH)
        inner = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU())
        optimizer = st.optim.AdamW([*embedding.parameters(), *inner.parameters()], lr=1e-2)

        @st.compile
        def step(tokens: Any) -> Any:
            optimizer.zero_grad()
            logits = inner(embedding(tokens[:, :-1])) @ embedding.weight.T
            loss = flat(logits, tokens[:, 1:])
            loss.backward()
            optimizer.step()
            return loss

        with settings.online(least), settings.strict(True):
            return [step(st.tensor(tokens)).item() for _ in range(3)], str(step.explain())

    want, _ = trained_losses(None)
    got, text = trained_losses(LEAST)
    assert "8 blocks of 128 rows" in text
    np.testing.assert_allclose(got, want, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_other_dtypes_are_in_blocks_too(dtype: str) -> None:
    case = trained(F.cross_entropy)
    operands = [st.tensor(a).to(dtype) for a in case.arrays[:3]]
    labels = st.tensor(case.arrays[3])

    def results(least: int | None) -> list[Array]:
        step = st.compile(st.value_and_grad(lambda x, w, b: F.cross_entropy(x @ w.T + b, labels), (0, 1, 2)))
        with settings.online(least), settings.strict(True):
            loss, gradients = step(*operands)
        assert ("sums over rows are added up" in str(step.explain())) == (least is not None)
        return [t.to("float32").numpy() for t in (loss, *gradients)]

    for want, got in zip(results(None), results(LEAST), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-2 * np.abs(want).max())


@pytest.mark.parametrize("wrong", [CLASSES, -CLASSES - 1])
def test_labels_out_of_range_are_refused_as_before(wrong: int) -> None:
    case = trained(indexed)
    case.arrays[3][5] = wrong
    for least in (None, LEAST):
        with settings.online(least), pytest.raises(IndexError, match="out of"):
            compile_graph(case.graph).run(stored(case))


def test_labels_may_count_from_the_end() -> None:
    case = trained(indexed)
    case.arrays[3][::2] -= CLASSES
    want = interpret(case.graph, case.arrays)[0]
    assert max(errors(case, want, LEAST)) < 1e-5


@pytest.mark.parametrize("loss", [returned, of_the_batch])
def test_products_that_something_needs_as_a_whole_are_stored(loss: Callable[[Any, Any], Any]) -> None:
    assert loops(in_blocks(trained(loss).graph)) == 0


@pytest.mark.slow
def test_the_loss_of_a_language_model_takes_no_more_memory_than_its_weights() -> None:
    """4,096 tokens of 50,257 classes: the products would take 823 MB."""
    rng = np.random.default_rng(0)
    rows, width, classes = 4096, 512, 50257
    shapes = (rows, width), (classes, width), (classes,)
    operands = [st.tensor(rng.standard_normal(shape, dtype=np.float32) / 8) for shape in shapes]
    labels = rng.integers(0, classes, rows)

    @st.compile
    def step(x: Any, w: Any, b: Any, labels: Any) -> Any:
        return st.value_and_grad(lambda x, w, b: F.cross_entropy(x @ w.T + b, labels), (0, 1, 2))(x, w, b)

    with settings.online("16MiB"), settings.strict(True):
        loss, gradients = step(*operands, st.tensor(labels))
    weights = classes * width * 4
    assert step.plan.planned_peak_bytes < 8 * weights  # its gradient, packed copies, two blocks
    x, w, b = (t.numpy().astype(np.float64) for t in operands)
    some = slice(0, 256)
    logits = x[some] @ w.T + b
    softmax = np.exp(logits - logits.max(1, keepdims=True))
    softmax /= softmax.sum(1, keepdims=True)
    softmax[np.arange(256), labels[some]] -= 1
    want = softmax @ w / rows
    np.testing.assert_allclose(gradients[0].numpy()[some], want, rtol=0, atol=1e-5 * np.abs(want).max())
    assert abs(loss.item() - np.log(classes)) < 2
