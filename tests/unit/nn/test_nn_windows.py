"""Layers over windows against PyTorch: convolutions, pooling, padding, windows as columns, shuffles."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch_twins import compare, compare_functions, draw  # noqa: E402

import stratal as st  # noqa: E402
from stratal import nn  # noqa: E402

pytestmark = pytest.mark.torch

CONVOLUTIONS = {
    "conv1d": (lambda nn: nn.Conv1d(3, 4, 3, stride=2, padding=1), (2, 3, 9)),
    "conv1d circular": (lambda nn: nn.Conv1d(3, 4, 3, padding=2, padding_mode="circular"), (2, 3, 9)),
    "conv2d": (lambda nn: nn.Conv2d(3, 4, 3, padding=1), (2, 3, 6, 7)),
    "conv2d unbatched": (lambda nn: nn.Conv2d(3, 4, 3, padding=1), (3, 6, 7)),
    "conv2d stride, dilation, groups": (
        lambda nn: nn.Conv2d(
            4, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2, bias=False
        ),
        (2, 4, 8, 7),
    ),
    "conv2d same": (lambda nn: nn.Conv2d(2, 3, (4, 3), padding="same", dilation=(1, 2)), (2, 2, 6, 7)),
    "conv2d valid": (lambda nn: nn.Conv2d(2, 3, 3, padding="valid"), (2, 2, 6, 7)),
    "conv2d reflect": (
        lambda nn: nn.Conv2d(2, 3, 3, padding=(2, 1), padding_mode="reflect"),
        (2, 2, 5, 6),
    ),
    "conv2d replicate, same": (
        lambda nn: nn.Conv2d(2, 3, (4, 3), padding="same", padding_mode="replicate"),
        (2, 2, 5, 6),
    ),
    "conv2d circular, valid": (
        lambda nn: nn.Conv2d(2, 3, 2, padding="valid", padding_mode="circular"),
        (2, 2, 5, 6),
    ),
    "depthwise": (lambda nn: nn.Conv2d(4, 4, 3, padding=1, groups=4), (2, 4, 5, 5)),
    "conv3d": (lambda nn: nn.Conv3d(2, 3, 3, padding=1, stride=(1, 2, 1)), (2, 2, 4, 5, 4)),
    "conv3d unbatched": (lambda nn: nn.Conv3d(2, 4, (1, 2, 3), groups=2, dilation=(1, 2, 1)), (2, 3, 5, 4)),
    "conv3d reflect": (lambda nn: nn.Conv3d(2, 3, 3, padding=1, padding_mode="reflect"), (1, 2, 3, 4, 3)),
    "conv transpose 1d": (lambda nn: nn.ConvTranspose1d(3, 4, 3, stride=2, padding=1), (2, 3, 5)),
    "conv transpose 2d": (
        lambda nn: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        (2, 4, 5, 4),
    ),
    "conv transpose 2d dilated": (
        lambda nn: nn.ConvTranspose2d(2, 3, (3, 2), stride=(1, 2), dilation=2, bias=False),
        (2, 2, 5, 4),
    ),
    "conv transpose 3d": (
        lambda nn: nn.ConvTranspose3d(2, 3, 3, stride=2, padding=1, output_padding=(1, 0, 1)),
        (2, 2, 2, 3, 2),
    ),
}
POOLING = {
    "max pool 1d": (lambda nn: nn.MaxPool1d(3, 2, 1), (2, 3, 9)),
    "max pool 2d": (lambda nn: nn.MaxPool2d(2), (2, 3, 7, 6)),
    "max pool 2d overlapping, dilated": (lambda nn: nn.MaxPool2d(3, 2, 1, dilation=2), (2, 3, 9, 9)),
    "max pool 2d ceil": (lambda nn: nn.MaxPool2d(3, 2, ceil_mode=True), (2, 3, 8, 8)),
    "max pool 3d": (lambda nn: nn.MaxPool3d(2, (1, 2, 2), padding=1), (2, 2, 4, 5, 4)),
    "max pool 3d ceil, unbatched": (lambda nn: nn.MaxPool3d((2, 3, 2), 2, ceil_mode=True), (2, 5, 6, 5)),
    "avg pool 1d": (lambda nn: nn.AvgPool1d(3, 2, 1), (2, 3, 9)),
    "avg pool 2d": (lambda nn: nn.AvgPool2d((2, 3)), (2, 3, 7, 9)),
    "avg pool 2d padded": (lambda nn: nn.AvgPool2d(3, 2, 1, count_include_pad=False), (2, 3, 8, 8)),
    "avg pool 2d divisor": (lambda nn: nn.AvgPool2d(3, 2, divisor_override=5), (2, 3, 8, 8)),
    "avg pool 3d": (lambda nn: nn.AvgPool3d(2), (2, 2, 4, 6, 4)),
    "avg pool 3d ceil": (
        lambda nn: nn.AvgPool3d(3, 2, 1, ceil_mode=True, count_include_pad=False),
        (2, 2, 4, 5, 6),
    ),
    "lp pool 1d": (lambda nn: nn.LPPool1d(2, 3, 2), (2, 3, 9)),
    "lp pool 2d": (lambda nn: nn.LPPool2d(4, (2, 3)), (2, 3, 6, 7)),
    "lp pool 2d ceil": (lambda nn: nn.LPPool2d(2, 2, 2, ceil_mode=True), (2, 3, 5, 5)),
    "lp pool 3d": (lambda nn: nn.LPPool3d(2, 2), (2, 2, 4, 4, 4)),
    "adaptive avg pool 1d": (lambda nn: nn.AdaptiveAvgPool1d(4), (2, 3, 10)),
    "adaptive avg pool 1": (lambda nn: nn.AdaptiveAvgPool2d(1), (2, 3, 6, 5)),
    "adaptive avg pool uneven": (lambda nn: nn.AdaptiveAvgPool2d((3, 4)), (2, 3, 7, 10)),
    "adaptive avg pool growing": (lambda nn: nn.AdaptiveAvgPool2d((None, 7)), (2, 3, 4, 5)),
    "adaptive avg pool 3d": (lambda nn: nn.AdaptiveAvgPool3d((2, None, 3)), (2, 2, 5, 3, 4)),
    "adaptive max pool 1d": (lambda nn: nn.AdaptiveMaxPool1d(4), (2, 3, 10)),
    "adaptive max pool 1d even": (lambda nn: nn.AdaptiveMaxPool1d(5), (2, 3, 10)),
    "adaptive max pool uneven": (lambda nn: nn.AdaptiveMaxPool2d((3, 4)), (2, 3, 7, 10)),
    "adaptive max pool growing": (lambda nn: nn.AdaptiveMaxPool2d((None, 7)), (2, 3, 4, 5)),
    "adaptive max pool 3d": (lambda nn: nn.AdaptiveMaxPool3d((2, 1, 3)), (2, 5, 3, 4)),
}
PADDING = {
    "constant pad 1d": (lambda nn: nn.ConstantPad1d((2, 1), 0.5), (2, 3, 4)),
    "constant pad 2d, cutting": (lambda nn: nn.ConstantPad2d((1, -2, 0, 3), -1.0), (2, 3, 4, 5)),
    "constant pad 3d": (lambda nn: nn.ConstantPad3d(1, 3.5), (2, 3, 2, 2, 2)),
    "zero pad 1d": (lambda nn: nn.ZeroPad1d(2), (2, 3, 4)),
    "zero pad 2d": (lambda nn: nn.ZeroPad2d((1, 2, 3, 4)), (2, 3, 4, 5)),
    "zero pad 3d": (lambda nn: nn.ZeroPad3d((1, 2, 3, 4, 5, 6)), (1, 2, 2, 2, 2)),
    "reflection pad 1d": (lambda nn: nn.ReflectionPad1d((3, 1)), (2, 3, 4)),
    "reflection pad 2d": (lambda nn: nn.ReflectionPad2d((2, 0, 1, 3)), (2, 3, 4, 5)),
    "reflection pad 3d": (lambda nn: nn.ReflectionPad3d(1), (1, 2, 2, 3, 4)),
    "replication pad 1d": (lambda nn: nn.ReplicationPad1d((3, 5)), (2, 3, 4)),
    "replication pad 2d": (lambda nn: nn.ReplicationPad2d(2), (3, 1, 5)),
    "replication pad 3d": (lambda nn: nn.ReplicationPad3d((1, 2, 0, 1, 2, 0)), (1, 2, 2, 3, 4)),
    "circular pad 1d": (lambda nn: nn.CircularPad1d((4, 2)), (2, 3, 4)),
    "circular pad 2d": (lambda nn: nn.CircularPad2d((2, 0, 1, 3)), (2, 3, 4, 5)),
    "circular pad 3d": (lambda nn: nn.CircularPad3d(2), (1, 2, 2, 3, 4)),
}
COLUMNS = {
    "unfold": (lambda nn: nn.Unfold(3, padding=1), (2, 3, 5, 6)),
    "unfold strided, dilated": (lambda nn: nn.Unfold((2, 3), (1, 2), (0, 1), (2, 1)), (2, 3, 6, 7)),
    "unfold patches, unbatched": (lambda nn: nn.Unfold(2, stride=2), (3, 6, 4)),
    "unfold patches, a rest left over": (lambda nn: nn.Unfold((2, 3), stride=(2, 3)), (2, 2, 5, 7)),
    "fold patches, a rest left over": (lambda nn: nn.Fold((5, 7), (2, 3), stride=(2, 3)), (2, 12, 4)),
    "fold": (lambda nn: nn.Fold((5, 6), 3, padding=1), (2, 18, 30)),
    "fold strided, dilated": (lambda nn: nn.Fold((6, 7), (2, 3), (1, 2), (0, 1), (2, 1)), (2, 12, 15)),
    "fold unbatched": (lambda nn: nn.Fold(4, 2, stride=2), (12, 4)),
    "pixel shuffle": (lambda nn: nn.PixelShuffle(2), (2, 8, 3, 4)),
    "pixel unshuffle": (lambda nn: nn.PixelUnshuffle(3), (2, 2, 6, 3)),
    "channel shuffle": (lambda nn: nn.ChannelShuffle(2), (2, 6, 3, 4)),
    "flatten": (lambda nn: nn.Flatten(), (3, 4, 2)),
    "unflatten": (lambda nn: nn.Unflatten(1, (2, -1)), (3, 4, 2)),
}
LAYERS = CONVOLUTIONS | POOLING | PADDING | COLUMNS


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_agrees_with_pytorch_and_prints_like_it(name):
    make, shape = LAYERS[name]
    x = draw(*shape, dtype=np.float64)
    x = np.abs(x) if name.startswith("lp pool") else x
    compare(make(nn), make(torch.nn), x)
    assert repr(make(nn)) == repr(make(torch.nn))


@pytest.mark.parametrize("name", ["conv2d", "conv3d", "max pool 3d", "adaptive max pool uneven", "fold"])
def test_a_layer_agrees_with_pytorch_in_float32(name):
    make, shape = LAYERS[name]
    compare(make(nn), make(torch.nn), draw(*shape))


def _seen(result):
    return [np.asarray(t.detach()) for t in result]


@pytest.mark.parametrize(("kind", "size", "shape"), [
    ("MaxPool1d", 3, (2, 3, 9)), ("MaxPool2d", (2, 3), (2, 3, 7, 9)), ("MaxPool3d", 2, (2, 2, 4, 5, 4)),
    ("AdaptiveMaxPool1d", 4, (2, 3, 10)), ("AdaptiveMaxPool2d", (3, 4), (2, 3, 7, 10)),
    ("AdaptiveMaxPool2d", 2, (3, 4, 6)), ("AdaptiveMaxPool3d", (2, 3, 1), (1, 2, 5, 4, 3)),
])  # fmt: skip
def test_pooling_says_where_the_maxima_stood(kind, size, shape):
    x = draw(*shape)
    ours = getattr(nn, kind)(size, return_indices=True)(st.tensor(x))
    theirs = getattr(torch.nn, kind)(size, return_indices=True)(torch.tensor(x))
    for got, want in zip(_seen(ours), _seen(theirs), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("size", "shape"), [
    (3, (10,)), (3, (11,)), (4, (10,)), (7, (3,)), (17, (40,)), (9, (12,)), (1, (5,)), (5, (1,)),
    ((3, 4), (7, 10)), ((4, 2), (6, 6)), ((2, 9), (5, 9)), ((5, 7), (3, 3)), ((17, 5), (40, 41)),
    ((3, 4, 2), (7, 6, 5)), ((3, 2, 5), (2, 2, 9)),
], ids=str)  # fmt: skip
def test_maxima_of_uneven_windows_agree_with_pytorch_with_places_and_gradients(size, shape):
    name = f"adaptive_max_pool{len(shape)}d"
    for x in (  # with ties in the second
        draw(2, 3, *shape, dtype=np.float64),
        draw(3, *shape, dtype=np.float64).round(),
    ):
        compare_functions(lambda f, t, x: getattr(f, name)(x, size), x)
        ours = getattr(nn.functional, name)(st.tensor(x), size, return_indices=True)
        theirs = getattr(torch.nn.functional, name)(torch.tensor(x), size, return_indices=True)
        for got, want in zip(_seen(ours), _seen(theirs), strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("dims", "options", "shape"),
    [(1, (2,), (2, 3, 8)), (2, (2,), (2, 3, 6, 8)), (3, (2,), (1, 2, 4, 4, 6))],
)
def test_unpooling_puts_maxima_back(dims, options, shape):
    def there_and_back(size):
        def run(f, t, x):
            values, places = getattr(f, f"max_pool{dims}d")(x, *options, return_indices=True)
            back = getattr(f, f"max_unpool{dims}d")
            return back(values, places, *options, output_size=size)

        return run

    compare_functions(there_and_back(None), draw(*shape, dtype=np.float64))
    compare_functions(there_and_back(list(shape)), draw(*shape, dtype=np.float64))
    layers = [getattr(library, f"MaxUnpool{dims}d")(2, 2) for library in (nn, torch.nn)]
    assert repr(layers[0]) == repr(layers[1])


@pytest.mark.parametrize("wanted", [{"output_size": (3, 4)}, {"output_ratio": (0.6, 0.5)}])
@pytest.mark.parametrize("dims", [2, 3])
def test_fractional_pooling_of_given_samples_agrees_with_pytorch(dims, wanted):
    shape = (2, 3, 7, 9, 8)[: dims + 2]
    wanted = {k: (*v, v[0])[:dims] for k, v in wanted.items()}
    samples = np.random.default_rng(1).random((2, 3, dims))
    x = draw(*shape, dtype=np.float64)

    def run(f, t, x):
        name = f"fractional_max_pool{dims}d"
        return getattr(f, name)(x, 2, **wanted, _random_samples=t(samples))

    compare_functions(run, x)
    ours, theirs = (
        getattr(library, f"FractionalMaxPool{dims}d")(
            2, **wanted, return_indices=True, _random_samples=tensor(samples)
        )(tensor(x))
        for library, tensor in ((nn, st.tensor), (torch.nn, torch.tensor))
    )
    np.testing.assert_array_equal(ours[1].numpy(), theirs[1].numpy())


def test_fractional_pooling_draws_windows_that_cover_the_image():
    st.manual_seed(0)
    x = st.tensor(np.arange(100, dtype=np.float32).reshape(1, 1, 10, 10))
    y = nn.FractionalMaxPool2d(3, output_size=4)(x).numpy()
    assert y.shape == (1, 1, 4, 4) and y[0, 0, -1, -1] == 99
    again = nn.FractionalMaxPool2d(3, output_size=4)(x).numpy()
    assert not np.array_equal(y, again)


@pytest.mark.parametrize("size", [(9, 7), (10, 8), (2, 3, 10, 7)])
def test_a_transposed_convolution_takes_the_size_wanted(size):
    def make(nn):
        return nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1)

    x = draw(2, 2, 5, 4, dtype=np.float64)
    compare(make(nn), make(torch.nn), x, forward=lambda m, x: m(x, output_size=size[-2:]))


def test_windows_of_equal_elements_give_the_gradient_to_the_first_as_pytorch_does():
    x = np.ones((1, 1, 7, 5))
    for name in ("max pool 2d", "max pool 2d ceil", "adaptive max pool uneven"):
        make, _ = LAYERS[name]
        compare(make(nn), make(torch.nn), x)


@pytest.mark.parametrize("window", [(3, 85), (16, 16)])
def test_places_in_windows_of_255_and_256_agree_with_pytorch_with_gradients(window):
    x = np.random.default_rng(0).integers(-300, 300, (2, 2, 33, 171)).astype(float)
    x[0, 0] = -1.0
    x[0, 1, 2, 84] = x[1, 1, 15, 15] = 999.0  # in the last places
    ours, theirs = (lib.MaxPool2d(window, return_indices=True) for lib in (nn, torch.nn))
    np.testing.assert_array_equal(ours(st.tensor(x))[1].numpy(), theirs(torch.tensor(x))[1].numpy())
    compare(nn.MaxPool2d(window, padding=1), torch.nn.MaxPool2d(window, padding=1), x)


@pytest.mark.parametrize("options", [(2,), (3, 2, 1), (3, 1)])
def test_relu_before_maxima_lets_gradients_through_where_pytorch_does(options):
    x = np.random.default_rng(0).choice([-2.0, -0.0, 0.0, 1.0, 2.0], (2, 3, 9, 37))
    ours, theirs = (lib.Sequential(lib.ReLU(), lib.MaxPool2d(*options)) for lib in (nn, torch.nn))
    compare(ours, theirs, x)


FUNCTIONS = {
    "conv3d": lambda f, t, x: f.conv3d(x, t(draw(2, 3, 2, 2, 2, dtype=np.float64)), stride=2),
    "conv_transpose3d": lambda f, t, x: f.conv_transpose3d(x, t(draw(3, 2, 2, 2, 2, dtype=np.float64))),
    "max_pool3d": lambda f, t, x: f.max_pool3d(x, 2),
    "avg_pool3d": lambda f, t, x: f.avg_pool3d(x, 2, divisor_override=3),
    "lp_pool3d": lambda f, t, x: f.lp_pool3d(x, 2, 2),
    "adaptive_avg_pool3d": lambda f, t, x: f.adaptive_avg_pool3d(x, (3, 2, 1)),
    "adaptive_max_pool3d": lambda f, t, x: f.adaptive_max_pool3d(x, (3, 2, 1)),
    "pad reflect": lambda f, t, x: f.pad(x, (1, 2, 3, 0, 1, 1), "reflect"),
    "pad constant": lambda f, t, x: f.pad(x, (1, 2, -1, 0), value=2.5),
    "channel_shuffle": lambda f, t, x: f.channel_shuffle(x, 3),
    "pixel_shuffle": lambda f, t, x: f.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda f, t, x: f.pixel_unshuffle(x, 2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_agrees_with_pytorch(name):
    compare_functions(FUNCTIONS[name], draw(2, 3, 4, 4, 6, dtype=np.float64))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x: nn.ReflectionPad2d(4)(x), "takes its elements from inside"),
        (lambda x: nn.CircularPad2d(5)(x), "takes its elements from inside"),
        (lambda x: nn.ConstantPad2d((-3, -2, 0, 0), 0.0)(x), "more is cut off"),
        (lambda x: nn.ZeroPad2d((1, 2, 3)), "padding must be an int, or 4"),
        (lambda x: nn.functional.pad(x, (1,)), "pair"),
        (lambda x: nn.functional.pad(x, (1, 1), "mirror"), "mode must be"),
        (lambda x: nn.functional.pad(x, (1, 1), "circular", 3.0), "a value goes with"),
        (lambda x: nn.Unfold(5)(x), "window is larger"),
        (lambda x: nn.Fold((5, 5), 3)(st.ones((2, 9, 4))), "columns of a window"),
        (lambda x: nn.PixelShuffle(2)(x), "multiple of 4"),
        (lambda x: nn.PixelUnshuffle(3)(x), "multiples of 3"),
        (lambda x: nn.PixelShuffle(0)(x), "positive int"),
        (lambda x: nn.ChannelShuffle(2)(x), "must divide"),
        (lambda x: nn.AdaptiveMaxPool2d(0)(x), "positive output sizes"),
        (lambda x: nn.AdaptiveMaxPool1d(2)(st.ones((2, 3, 0))), "nothing to pool"),
        (lambda x: nn.functional.max_unpool2d(x, x, 2), "integer place"),
        (
            lambda x: nn.functional.max_unpool2d(x, st.zeros((2, 3, 4, 4), dtype="int64") - 1, 2).numpy(),
            "out of|range|index",
        ),
        (lambda x: nn.FractionalMaxPool2d(3, 4)(x), "do not fit"),
        (lambda x: nn.FractionalMaxPool2d(3)(x), "output_size or output_ratio"),
        (lambda x: nn.FractionalMaxPool2d(3, output_ratio=1.5)(x), "lies in"),
        (lambda x: nn.LPPool2d(0, 2)(x), "norm_type"),
        (lambda x: nn.AvgPool2d(2, divisor_override=0)(x), "divisor_override"),
        (lambda x: nn.ConvTranspose2d(3, 2, 3, stride=2)(x, output_size=(20, 20)), "lies between"),
        (lambda x: nn.ConvTranspose2d(3, 2, 3, padding_mode="reflect"), "padding_mode"),
        (lambda x: nn.Conv3d(3, 2, 3)(x), "channels differ|axes"),
        (lambda x: nn.functional.unfold(x, (2, 2, 2)), "must be an int"),
    ],
)
def test_a_wrong_call_is_refused(call, says):
    with pytest.raises(st.StratalError, match=says) as info:
        call(st.ones((2, 3, 4, 4)))
    assert "test_nn_windows.py" in str(info.value)
