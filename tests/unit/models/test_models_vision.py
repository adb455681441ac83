"""Networks for images, tiny: gradients against differences, 32 samples learnt by heart, arguments refused."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from model_checks import check_and_overfit

import stratal as st
from stratal import models, nn, optim
from stratal.models.vision.bn_inception import BLOCKS

F = nn.functional


RNG = np.random.default_rng(7)
LABELS = RNG.integers(0, 10, 32)


def images(*shape: int) -> Any:
    return RNG.standard_normal((32, *shape)).astype(np.float32)


def thresholds(*shape: int) -> tuple[Any, Any]:
    """Return images and a class for each pixel, which follows from it and its neighbour."""
    x = images(1, *shape)
    return x, np.digitize(x + np.roll(x, 1, 3), (-1, 1))[:, 0]


def cross_entropy(model: Any, x: Any, y: Any) -> Any:
    return F.cross_entropy(model(x), y)


def with_heads(model: Any, x: Any, y: Any) -> Any:
    """The loss of the GoogLeNet paper: auxiliary heads count 0.3."""
    out = model(x)
    return F.cross_entropy(out.logits, y) + 0.3 * (
        F.cross_entropy(out.aux_logits1, y) + F.cross_entropy(out.aux_logits2, y)
    )


def reconstruction(model: Any, x: Any) -> Any:
    made, mu, logvar = model(x)
    return models.vae_loss(made, x, mu, logvar, beta=0.1) / x.shape[0]


def head_from_noise(model: Any) -> Any:
    """A head that starts at zero stops all gradients before it: check it elsewhere."""
    nn.init.normal_(model.heads.head.weight, std=0.1)
    return model


# name: (a tiny one without dropout, its loss, 32 samples)
NETWORKS: dict[str, tuple[Callable[[], Any], Any, tuple[Any, ...]]] = {
    "alexnet": (
        lambda: models.AlexNet(10, 0.0, width_mult=1 / 32), cross_entropy, (images(3, 63, 63), LABELS),
    ),
    "bn-inception": (
        lambda: models.BNInception(10, {k: BLOCKS[k] for k in ("3a", "3c", "5b")}, width_mult=1 / 16),
        cross_entropy, (images(3, 32, 32), LABELS),
    ),
    "googlenet": (
        lambda: models.GoogLeNet(10, dropout=0.0, dropout_aux=0.0, width_mult=1 / 32),
        with_heads, (images(3, 32, 32), LABELS),
    ),
    "lenet": (lambda: models.LeNet(), cross_entropy, (images(1, 32, 32), LABELS)),
    "mobilenetv2": (
        lambda: models.MobileNetV2(10, 1 / 4, [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 1, 2)], 4, dropout=0.0),
        cross_entropy, (images(3, 32, 32), LABELS),
    ),
    "resnet, basic blocks": (
        lambda: models.ResNet(models.BasicBlock, (1, 1, 1, 1), 10, width_mult=1 / 8),
        cross_entropy, (images(3, 32, 32), LABELS),
    ),
    "resnet, bottlenecks": (
        lambda: models.ResNet(models.Bottleneck, (1, 1, 1, 1), 10, width_mult=1 / 16),
        cross_entropy, (images(3, 32, 32), LABELS),
    ),
    "unet": (
        lambda: models.UNet(1, 3, width_mult=1 / 16),
        cross_entropy, thresholds(18, 16),
    ),
    "vae": (lambda: models.VAE(64, 48, 8), reconstruction, (RNG.random((32, 8, 8)).round(),)),
    "vgg11_bn": (
        lambda: models.vgg11_bn(num_classes=10, dropout=0.0, width_mult=1 / 32),
        cross_entropy, (images(3, 32, 32), LABELS),
    ),
    "vision transformer": (
        lambda: head_from_noise(models.VisionTransformer(16, 8, 2, 2, 16, 32, num_classes=10)),
        cross_entropy, (images(3, 16, 16), LABELS),
    ),
}  # fmt: skip
SLOW = dict.fromkeys(("googlenet", "bn-inception", "unet", "mobilenetv2"), pytest.mark.slow)  # 10 to 30 s
STEPS = {"vgg11_bn": 90, "alexnet": 250, "googlenet": 100, "unet": 150, "vae": 300}  # others: 40


@pytest.mark.sampled(12)
@pytest.mark.row("A11")
@pytest.mark.parametrize("name", [pytest.param(n, marks=SLOW.get(n, ())) for n in NETWORKS])
def test_a_network_has_the_gradients_of_its_loss_and_learns_32_samples_by_heart(name: str) -> None:
    st.manual_seed(0)
    build, loss, data = NETWORKS[name]
    model = build()
    data = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in data]
    optimizer = optim.Adam(model.parameters(), lr=5e-3)
    first, last = check_and_overfit(model, optimizer, loss, *data, steps=STEPS.get(name, 40))
    assert last < 0.1 * first


@pytest.mark.parametrize("family", models.FAMILIES, ids=lambda family: family.module)
def test_a_family_offers_what_the_table_of_models_says(family: Any) -> None:
    module = importlib.import_module(f"stratal.models.{family.module}")
    for name in family.names.split():
        assert getattr(models, name) is getattr(module, name) and getattr(models, name).__doc__
    assert family.paper and family.state_dict


def test_weights_come_from_a_file_or_not_at_all(tmp_path: Any) -> None:
    from stratal.formats import save_tensors

    small = {"num_classes": 3, "width_mult": 1 / 16}
    saved = models.resnet18(**small)
    save_tensors(tmp_path / "resnet.safetensors", saved.state_dict())
    found = models.resnet18(weights=tmp_path / "resnet.safetensors", **small)
    for name, value in found.state_dict().items():
        np.testing.assert_array_equal(value, saved.state_dict()[name])
    for wrong in ("DEFAULT", tmp_path, tmp_path / "none.safetensors", True, 3):
        with pytest.raises(
            st.StratalError, match="ResNet: weights is None or the path of a safetensors file"
        ):
            models.resnet18(weights=wrong, **small)


REFUSED = {
    "groups in a basic block": (
        lambda: models.ResNet(models.BasicBlock, (1, 1, 1, 1), groups=2),
        "BasicBlock",
    ),
    "three stages": (lambda: models.ResNet(models.BasicBlock, (1, 1, 1)), "layers has 4"),
    "no width": (lambda: models.resnet18(width_mult=0), "width_mult"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_make_no_network_are_refused(name: str) -> None:
    build, rule = REFUSED[name]
    with pytest.raises(st.StratalError, match=rule):
        build()


VGG = {
    11: (models.vgg11, models.vgg11_bn), 13: (models.vgg13, models.vgg13_bn),
    16: (models.vgg16, models.vgg16_bn), 19: (models.vgg19, models.vgg19_bn),
}  # fmt: skip


@pytest.mark.parametrize("depth", VGG)
def test_the_name_of_a_vgg_counts_its_layers(depth: int) -> None:
    for normed, build in enumerate(VGG[depth]):
        parts = [type(m) for m in build(num_classes=4, width_mult=1 / 64).modules()]
        assert parts[0] is models.VGG
        assert parts.count(nn.Conv2d) + parts.count(nn.Linear) == depth
        assert parts.count(nn.BatchNorm2d) == normed * parts.count(nn.Conv2d)


LARGE = pytest.mark.slow  # gigabytes
TRANSFORMERS = [  # torchvision's numbers
    pytest.param(models.vit_b_16, 86_567_656, id="b_16"),
    pytest.param(models.vit_b_32, 88_224_232, id="b_32"),
    pytest.param(models.vit_l_16, 304_326_632, id="l_16", marks=LARGE),
    pytest.param(models.vit_l_32, 306_535_400, id="l_32", marks=LARGE),
    pytest.param(models.vit_h_14, 632_045_800, id="h_14", marks=LARGE),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("build", "parameters"), TRANSFORMERS)
def test_a_vision_transformer_has_the_published_number_of_parameters(build: Any, parameters: int) -> None:
    assert sum(p.numel() for p in build().parameters()) == parameters
