"""Resizing and sampling of images against PyTorch: every mode, grown and shrunk, corners and borders."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch_twins import compare, compare_functions, draw  # noqa: E402

import stratal as st  # noqa: E402
from stratal import nn  # noqa: E402

pytestmark = pytest.mark.torch

LAYERS = {
    "nearest twice": (lambda nn: nn.Upsample(scale_factor=2), (2, 3, 4, 5)),
    "nearest to a size": (lambda nn: nn.Upsample(size=(7, 3)), (2, 3, 4, 5)),
    "nearest by a fraction": (lambda nn: nn.Upsample(scale_factor=1.7), (2, 3, 9)),
    "nearest exact": (lambda nn: nn.Upsample(size=7, mode="nearest-exact"), (2, 3, 10)),
    "nearest 3d": (lambda nn: nn.Upsample(scale_factor=(1, 2, 0.5)), (1, 2, 3, 2, 4)),
    "linear": (lambda nn: nn.Upsample(scale_factor=2.5, mode="linear"), (2, 3, 5)),
    "bilinear": (lambda nn: nn.Upsample(scale_factor=2, mode="bilinear"), (2, 3, 4, 5)),
    "bilinear of corners": (
        lambda nn: nn.Upsample(size=(6, 9), mode="bilinear", align_corners=True),
        (2, 3, 4, 5),
    ),
    "bilinear shrunk": (lambda nn: nn.Upsample(size=(2, 3), mode="bilinear"), (2, 3, 7, 8)),
    "bilinear by a fraction": (
        lambda nn: nn.Upsample(scale_factor=1.3, mode="bilinear", recompute_scale_factor=True),
        (2, 2, 5, 6),
    ),
    "bicubic": (lambda nn: nn.Upsample(scale_factor=(1.5, 2), mode="bicubic"), (2, 3, 4, 5)),
    "bicubic of corners": (
        lambda nn: nn.Upsample(size=(1, 9), mode="bicubic", align_corners=True),
        (2, 3, 4, 5),
    ),
    "trilinear": (lambda nn: nn.Upsample(scale_factor=2, mode="trilinear"), (1, 2, 2, 3, 2)),
    "area": (lambda nn: nn.Upsample(size=(2, 3), mode="area"), (2, 3, 5, 6)),
    "older nearest": (lambda nn: nn.UpsamplingNearest2d(scale_factor=2), (2, 3, 4, 5)),
    "older bilinear": (lambda nn: nn.UpsamplingBilinear2d(size=(5, 7)), (2, 3, 4, 5)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_agrees_with_pytorch_and_prints_like_it(name):
    make, shape = LAYERS[name]
    compare(make(nn), make(torch.nn), draw(*shape, dtype=np.float64))
    assert repr(make(nn)) == repr(make(torch.nn))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(3, 4), (2, 40), (5, 9)])
@pytest.mark.parametrize("corners", [False, True])
def test_filters_against_aliasing_agree_with_pytorch(mode, size, corners):
    compare_functions(
        lambda f, t, x: f.interpolate(x, size, mode=mode, antialias=True, align_corners=corners),
        draw(2, 1, 9, 31, dtype=np.float64),
    )


@pytest.mark.parametrize("n", [3, 7, 10, 13, 100])
@pytest.mark.parametrize("m", [1, 2, 5, 9, 30, 33])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_elements_are_pytorchs_for_every_size(n, m, mode):
    x = np.arange(n, dtype=np.float32).reshape(1, 1, n)
    got = nn.functional.interpolate(st.tensor(x), m, mode=mode)
    want = torch.nn.functional.interpolate(torch.tensor(x), m, mode=mode)
    np.testing.assert_array_equal(got.numpy(), want.numpy())


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("outside", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_sampling_agrees_with_pytorch(mode, outside, corners):
    grid = 1.5 * draw(2, 4, 3, 2, dtype=np.float64, seed=1)
    compare_functions(
        lambda f, t, x, grid: f.grid_sample(x, grid, mode, outside, corners),
        draw(2, 3, 5, 4, dtype=np.float64), grid,
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("outside", ["zeros", "reflection"])
def test_sampling_in_three_dimensions_agrees_with_pytorch(mode, outside):
    grid = 1.2 * draw(1, 2, 3, 2, 3, dtype=np.float64, seed=1)
    compare_functions(
        lambda f, t, x, grid: f.grid_sample(x, grid, mode, outside, align_corners=False),
        draw(1, 2, 3, 4, 5, dtype=np.float64), grid,
    )  # fmt: skip


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 1, 1, 6), (2, 3, 2, 3, 4)])
def test_affine_grids_agree_with_pytorch(size, corners):
    dims = len(size) - 2
    theta = draw(2, dims, dims + 1, dtype=np.float64)
    compare_functions(lambda f, t, theta: f.affine_grid(theta, size, align_corners=corners), theta)


def test_the_grid_of_no_motion_gives_the_image_back_with_pytorchs_gradients():
    theta = np.tile(np.array([[[1.0, 0, 0], [0, 1, 0]]]), (2, 1, 1))
    for outside in ("zeros", "border"):
        compare_functions(
            lambda f, t, x, o=outside: f.grid_sample(
                x,
                f.affine_grid(t(theta), (2, 3, 4, 5), align_corners=True),
                padding_mode=o,
                align_corners=True,
            ),
            draw(2, 3, 4, 5, dtype=np.float64),
        )


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x: nn.functional.interpolate(x), "size or scale_factor"),
        (lambda x: nn.functional.interpolate(x, 4, 2.0), "size or scale_factor"),
        (lambda x: nn.functional.interpolate(x, 4, mode="linear"), "takes 3 axes"),
        (lambda x: nn.functional.interpolate(x, 4, mode="quintic"), "mode is one of"),
        (lambda x: nn.functional.interpolate(x, 4, align_corners=True), "align_corners goes with"),
        (lambda x: nn.functional.interpolate(x, 4, antialias=True), "antialias goes with"),
        (lambda x: nn.functional.interpolate(x, (4, 4, 4)), "one for each"),
        (lambda x: nn.functional.interpolate(x, 0), "positive"),
        (lambda x: nn.functional.interpolate(x, scale_factor=0.1), "positive"),
        (lambda x: nn.functional.interpolate(st.tensor([[[1, 2]]]), 4, mode="linear"), "takes floats"),
        (lambda x: nn.functional.grid_sample(x, st.ones((2, 3, 3, 3))), "grid_sample: takes"),
        (lambda x: nn.functional.grid_sample(x, st.ones((1, 3, 3, 2))), "batches differ"),
        (lambda x: nn.functional.grid_sample(x, st.ones((2, 3, 3, 2)), "cubic"), "mode is"),
        (lambda x: nn.functional.grid_sample(x, st.ones((2, 3, 3, 2)), padding_mode="wrap"), "padding_mode"),
        (lambda x: nn.functional.affine_grid(st.ones((2, 2, 3)), (1, 1, 2, 2)), "affine_grid: takes"),
        (lambda x: nn.functional.affine_grid(st.ones((1, 2, 3)), (1, 1, 0, 2)), "positive"),
    ],
)
def test_a_wrong_call_is_refused(call, says):
    with pytest.raises(st.StratalError, match=says) as info:
        call(st.ones((2, 3, 4, 4)))
    assert "test_nn_resizing.py" in str(info.value)
