"""Networks for images against torchvision's: state dicts, outputs in both modes, gradients, statistics."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")

from torch_twins import assert_close, compare, draw  # noqa: E402

import stratal as st  # noqa: E402
from stratal import models  # noqa: E402

pytestmark = pytest.mark.torch

# name: (what makes one from either library's models, the shape of the images); dropout is off
TWINS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "resnet18": (lambda m: m.resnet18(num_classes=7), (2, 3, 64, 64)),
    "resnet, dilated bottlenecks in groups": (
        lambda m: m.ResNet(_resnet(m).Bottleneck, [1, 2, 1, 1], 5, True, 2, 32, [False, True, True]),
        (2, 3, 48, 48),
    ),
}


def _resnet(library: Any) -> Any:
    return getattr(library, "resnet", library)


@pytest.mark.parametrize("name", TWINS)
def test_a_network_agrees_with_torchvisions_in_training_and_in_evaluation(name: str) -> None:
    build, shape = TWINS[name]
    torch.manual_seed(0)
    ours, theirs = build(models), build(torchvision.models)
    x = draw(*shape, dtype=np.float64)
    compare(ours, theirs, x)  # with gradients, and buffers after
    ours.eval()
    theirs.eval()
    with torch.no_grad():
        assert_close(ours(st.tensor(x)).detach(), theirs(torch.from_numpy(x)), "evaluation")


SHARED = [n for n in dir(models) if n != "vision" and hasattr(torchvision.models, n)]
CLASSES = [n for n in SHARED if inspect.isclass(getattr(torchvision.models, n))]
FULL = [n for n in SHARED if n not in CLASSES]


@pytest.mark.parametrize("name", CLASSES)
def test_a_network_takes_torchvisions_arguments_with_its_defaults(name: str) -> None:
    theirs = inspect.signature(getattr(torchvision.models, name)).parameters
    ours = inspect.signature(getattr(models, name)).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    for word, parameter in theirs.items():
        assert ours[word].default == parameter.default or callable(parameter.default), word


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL)
def test_at_full_size_a_network_has_torchvisions_state_and_output(name: str) -> None:
    torch.manual_seed(0)
    theirs = getattr(torchvision.models, name)().eval()
    ours = getattr(models, name)().eval()
    state = {key: value.numpy() for key, value in theirs.state_dict().items()}
    assert list(ours.state_dict()) == list(state)
    ours.load_state_dict(state)
    x = draw(2, 3, 224, 224)
    with torch.no_grad(), st.no_grad():
        assert_close(ours(st.tensor(x)), theirs(torch.from_numpy(x)), name, 1e-3)
