"""Tables of vectors, products with weights, and distances, against PyTorch."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch_twins import compare, compare_functions, draw  # noqa: E402

import stratal as st  # noqa: E402
from stratal import nn  # noqa: E402

pytestmark = pytest.mark.torch

TOKENS = np.array([[1, 2, 0], [4, 1, 1]])
FLAT = np.array([1, 2, 4, 5, 4, 3, 2, 9, 1])

TABLES = {
    "plain": (lambda nn: nn.Embedding(5, 3), TOKENS),
    "padding": (lambda nn: nn.Embedding(5, 3, padding_idx=1), TOKENS),
    "padding from the end": (lambda nn: nn.Embedding(5, 3, padding_idx=-1), TOKENS),
    "longest norm": (lambda nn: nn.Embedding(5, 3, max_norm=0.7), TOKENS),
    "longest 1-norm": (lambda nn: nn.Embedding(5, 3, max_norm=0.9, norm_type=1.0), TOKENS),
    "gradient by frequency": (lambda nn: nn.Embedding(5, 3, scale_grad_by_freq=True), TOKENS),
    "no indices": (lambda nn: nn.Embedding(5, 3), np.zeros((0,), np.int64)),
    "bags of means": (lambda nn: nn.EmbeddingBag(5, 3), TOKENS),
    "bags of sums": (lambda nn: nn.EmbeddingBag(5, 3, mode="sum", padding_idx=1), TOKENS),
    "bags of maxima": (lambda nn: nn.EmbeddingBag(5, 3, mode="max"), TOKENS),
    "bags of means with padding": (lambda nn: nn.EmbeddingBag(5, 3, padding_idx=1), TOKENS),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_agrees_with_pytorch_and_prints_like_it(name):
    make, tokens = TABLES[name]
    compare(make(nn), make(torch.nn), tokens)
    if "bags" not in name:  # PyTorch's bags print their padding row twice
        assert repr(make(nn)) == repr(make(torch.nn))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize(
    "options", [{}, {"padding_idx": 4}, {"include_last_offset": True}, {"max_norm": 1.0}]
)
def test_bags_between_offsets_agree_with_pytorch(mode, options):
    offsets = np.array([0, 4, 4, 6] + [9] * ("include_last_offset" in options))

    def make(nn):
        return nn.EmbeddingBag(10, 3, mode=mode, **options)

    def forward(module, tokens):
        return module(tokens, (st.tensor if isinstance(module, nn.Module) else torch.tensor)(offsets))

    compare(make(nn), make(torch.nn), FLAT, forward=forward)


def test_gradients_of_bags_are_divided_by_how_often_a_row_is_read():
    """PyTorch 2.13 divides by the counts of other rows here, so the reference is the definition."""
    layer = nn.EmbeddingBag(10, 3, mode="sum", scale_grad_by_freq=True)
    layer(st.tensor(FLAT), st.tensor([0, 4, 4, 6])).sum().backward()
    read = np.isin(np.arange(10), FLAT).astype(np.float32)
    np.testing.assert_allclose(layer.weight.grad.numpy(), np.tile(read[:, None], 3), rtol=1e-6)


@pytest.mark.parametrize("padding", [None, 1])
def test_weights_of_samples_scale_rows_and_get_gradients(padding):
    table = draw(5, 3, dtype=np.float64)
    compare_functions(
        lambda f, t, w, table: f.embedding_bag(
            t(TOKENS), table, mode="sum", per_sample_weights=w, padding_idx=padding
        ),
        draw(2, 3, dtype=np.float64, seed=1), table,
    )  # fmt: skip


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_a_table_made_of_a_matrix_is_frozen_unless_told(kind):
    rows = draw(4, 2)
    layer = kind.from_pretrained(st.tensor(rows))
    assert not layer.weight.requires_grad and np.array_equal(layer.weight.numpy(), rows)
    assert kind.from_pretrained(st.tensor(rows), freeze=False).weight.requires_grad


def test_a_table_shortens_its_rows_inside_a_compiled_step_too():
    layer = nn.Embedding(5, 3, max_norm=0.5)
    forward = st.compile(layer)
    tokens = st.tensor(np.array([0, 3]))
    for _ in range(2):
        lengths = np.linalg.norm(forward(tokens).numpy(), axis=1)
        assert np.all(lengths <= 0.5 + 1e-6)
    kept = np.linalg.norm(layer.weight.numpy(), axis=1)
    assert np.all(kept[[0, 3]] <= 0.5 + 1e-6) and np.any(kept[[1, 2, 4]] > 0.5)


PAIRS = {
    "cosine": (lambda nn: nn.CosineSimilarity(), (4, 5)),
    "cosine along the last of three": (lambda nn: nn.CosineSimilarity(dim=2, eps=1e-4), (2, 3, 4)),
    "distance": (lambda nn: nn.PairwiseDistance(), (4, 5)),
    "distance of norm 1": (lambda nn: nn.PairwiseDistance(p=1.0, keepdim=True), (4, 5)),
    "distance of norm 3": (lambda nn: nn.PairwiseDistance(p=3.0, eps=1e-3), (4, 5)),
    "largest distance": (lambda nn: nn.PairwiseDistance(p=float("inf")), (5,)),
    "bilinear": (lambda nn: nn.Bilinear(5, 5, 3), (4, 5)),
    "bilinear without bias, 3 axes": (lambda nn: nn.Bilinear(5, 5, 2, bias=False), (2, 4, 5)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_layer_of_two_inputs_agrees_with_pytorch(name):
    make, shape = PAIRS[name]
    arrays = [draw(*shape, dtype=np.float64, seed=k) for k in (0, 1)]
    compare(make(nn), make(torch.nn), *arrays)
    assert repr(make(nn)) == repr(make(torch.nn))


FUNCTIONS = {
    "cosine_similarity": lambda f, t, x: f.cosine_similarity(x, x.detach() * 2 + 1, dim=0),
    "pairwise_distance": lambda f, t, x: f.pairwise_distance(x, t(np.ones(5))),
    "pdist": lambda f, t, x: f.pdist(x),
    "pdist of norm 1": lambda f, t, x: f.pdist(x, p=1.0),
    "one_hot": lambda f, t, x: f.one_hot(t(TOKENS), 6),
    "bilinear": lambda f, t, x: f.bilinear(x, x, t(draw(2, 5, 5, dtype=np.float64)), t(np.ones(2))),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_agrees_with_pytorch(name):
    compare_functions(FUNCTIONS[name], draw(4, 5, dtype=np.float64))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: nn.Embedding(4, 2, padding_idx=4), "row of the table"),
        (lambda: nn.Embedding(4, 2, sparse=True), "gradients are dense"),
        (lambda: nn.Embedding(4, 2, _weight=np.ones((3, 2), np.float32)), "another shape"),
        (lambda: nn.functional.embedding(st.tensor([1]), st.ones(3)), "two axes"),
        (lambda: nn.EmbeddingBag(4, 2, mode="median"), "mode"),
        (lambda: nn.EmbeddingBag(4, 2)(st.tensor([1, 2])), "a vector and offsets"),
        (lambda: nn.EmbeddingBag(4, 2)(st.tensor([[1]]), st.tensor([0])), "rows of a matrix"),
        (lambda: nn.EmbeddingBag(4, 2)(st.tensor([[1]]), None, st.ones((1, 1))), "go with mode"),
        (lambda: nn.EmbeddingBag(4, 2, mode="sum")(st.tensor([[1]]), None, st.ones(1)), "one weight per"),
        (lambda: nn.functional.one_hot(st.ones(3)), "integers"),
        (lambda: nn.EmbeddingBag(4, 2)(st.tensor([1, 2]), st.tensor([1])).numpy(), "out of|range|index"),
        (lambda: nn.functional.pdist(st.ones(3)), "two axes"),
        (lambda: nn.Bilinear(0, 2, 2), "positive"),
        (lambda: float(nn.Embedding(4, 2)(st.tensor([4])).sum()), "index|range|out"),
    ],
)
def test_a_wrong_call_is_refused(call, says):
    with pytest.raises(st.StratalError, match=says) as info:
        call()
    assert "test_nn_embedding.py" in str(info.value)


# -- dropout: PyTorch draws otherwise, so what holds of any draws is checked
@pytest.mark.parametrize(
    ("kind", "shape", "lead"),
    [("Dropout1d", (40, 50, 7), 2), ("Dropout1d", (2000, 7), 1), ("Dropout2d", (40, 50, 3, 3), 2),
     ("Dropout2d", (40, 50, 3), 2), ("Dropout3d", (40, 50, 2, 2, 2), 2), ("Dropout3d", (2000, 2, 2, 2), 1)],
)  # fmt: skip
def test_dropout_of_channels_zeroes_whole_ones_and_scales_the_rest(kind, shape, lead):
    st.manual_seed(0)
    layer = getattr(nn, kind)(0.25)
    x = st.ones(shape)
    y = layer(x).numpy()
    channels = y.reshape(int(np.prod(shape[:lead])), -1)
    assert np.all(channels == channels[:, :1])
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.75)}
    assert (y == 0).mean() == pytest.approx(0.25, abs=0.03)
    assert layer.eval()(x) is x
    assert repr(layer) == repr(getattr(torch.nn, kind)(0.25))


@pytest.mark.parametrize("kind", ["AlphaDropout", "FeatureAlphaDropout"])
def test_alpha_dropout_keeps_mean_and_variance(kind):
    st.manual_seed(0)
    layer = getattr(nn, kind)(0.2)
    x = st.tensor(draw(300, 400, 2))
    y = layer(x).numpy()
    assert y.mean() == pytest.approx(0, abs=0.02) and y.var() == pytest.approx(1, abs=0.03)
    values, counts = np.unique(y, return_counts=True)
    dropped = y == values[counts.argmax()]
    assert dropped.mean() == pytest.approx(0.2, abs=0.01)
    assert np.array_equal(dropped[..., 0], dropped[..., 1]) == (kind == "FeatureAlphaDropout")
    assert not getattr(nn, kind)(1.0)(x).numpy().any()
    assert layer.eval()(x) is x
