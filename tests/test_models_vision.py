"""Networks for images, tiny: gradients against differences, 32 samples learnt by heart, arguments refused."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from model_checks import check_gradients, overfit

import stratal as st
from stratal import models, nn, optim

F = nn.functional


def images(count: int, *shape: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(7)
    return rng.standard_normal((count, *shape)).astype(np.float32), rng.integers(0, 10, count)


def cross_entropy(model: Any, x: Any, y: Any) -> Any:
    return F.cross_entropy(model(x), y)


# name: (a tiny one without dropout, the shape of an image)
CLASSIFIERS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "lenet": (lambda: models.LeNet(), (1, 32, 32)),
    "resnet, basic blocks": (
        lambda: models.ResNet(models.BasicBlock, (1, 1, 1, 1), 10, width_mult=1 / 8), (3, 32, 32),
    ),
    "resnet, bottlenecks": (
        lambda: models.ResNet(models.Bottleneck, (1, 1, 1, 1), 10, width_mult=1 / 16), (3, 32, 32),
    ),
}  # fmt: skip


@pytest.mark.row("A11")
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_gradients_of_a_classifier_are_those_of_its_loss(name: str) -> None:
    st.manual_seed(0)
    build, shape = CLASSIFIERS[name]
    x, y = images(4, *shape)
    check_gradients(build(), cross_entropy, x.astype(np.float64), y)


@pytest.mark.row("A11")
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifier_learns_32_samples_by_heart(name: str) -> None:
    st.manual_seed(0)
    build, shape = CLASSIFIERS[name]
    model = build()
    optimizer = optim.Adam(model.parameters(), lr=3e-3)
    first, last = overfit(model, optimizer, cross_entropy, *images(32, *shape), steps=60)
    assert last < 0.05 < first


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
