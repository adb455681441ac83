"""Networks for images against torchvision's: state dicts, outputs in both modes, gradients, statistics."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")

import vision_twins  # noqa: E402
from torch_twins import assert_close, compare, draw  # noqa: E402

import stratal as st  # noqa: E402
from stratal import models  # noqa: E402
from stratal.models.vision import bn_inception  # noqa: E402

pytestmark = pytest.mark.torch

# name: (what makes one from either library's models, the shape of the images); dropout is off
TWINS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "alexnet": (lambda m: m.alexnet(num_classes=7, dropout=0.0), (2, 3, 64, 64)),
    "googlenet": (
        lambda m: m.googlenet(
            num_classes=7, transform_input=True, init_weights=True, dropout=0.0, dropout_aux=0.0
        ),
        (2, 3, 64, 64),
    ),
    "mobilenet_v2": (lambda m: m.mobilenet_v2(num_classes=7, width_mult=0.6, dropout=0.0), (2, 3, 64, 64)),
    "resnet18": (lambda m: m.resnet18(num_classes=7, zero_init_residual=True), (2, 3, 64, 64)),
    "resnet, dilated bottlenecks in groups": (
        lambda m: m.ResNet(
            _module(m, "resnet").Bottleneck, [1, 2, 1, 1], 5, True, 2, 32, [False, True, True]
        ),
        (2, 3, 48, 48),
    ),
    "vgg11_bn": (lambda m: m.vgg11_bn(num_classes=7, dropout=0.0), (2, 3, 32, 32)),
    "vision transformer": (
        lambda m: m.VisionTransformer(24, 8, 2, 4, 32, 64, num_classes=7, representation_size=16),
        (2, 3, 24, 24),
    ),
    "vision transformer, convolutions first": (
        lambda m: m.VisionTransformer(16, 8, 1, 2, 16, 32, conv_stem_configs=[
            _module(m, "vision_transformer").ConvStemConfig(8, 3, 2),
            _module(m, "vision_transformer").ConvStemConfig(12, 3, 4),
        ]),
        (2, 3, 16, 16),
    ),
}  # fmt: skip


def _module(library: Any, name: str) -> Any:
    return importlib.import_module(f"{getattr(library, 'vision', library).__name__}.{name}")


def _sum_of_heads(model: Any, x: Any) -> Any:
    out = model(x)
    return sum(out) if isinstance(out, tuple) else out


@pytest.mark.parametrize("name", TWINS)
def test_a_network_agrees_with_torchvisions_in_training_and_in_evaluation(name: str) -> None:
    build, shape = TWINS[name]
    torch.manual_seed(0)
    ours, theirs = build(models), build(torchvision.models)
    for parameter in theirs.parameters():
        if not parameter.any():  # a layer that starts at zero hides all before it
            torch.nn.init.normal_(parameter, std=0.1)
    x = draw(*shape, dtype=np.float64)
    compare(ours, theirs, x, forward=_sum_of_heads)  # with gradients, and buffers after
    ours.eval()
    theirs.eval()
    with torch.no_grad():
        assert_close(ours(st.tensor(x)).detach(), theirs(torch.from_numpy(x)), "evaluation")


# name: (ours, its twin, the shape of the images)
OTHERS: dict[str, tuple[Callable[[], Any], Callable[[], Any], tuple[int, ...]]] = {
    "lenet": (models.LeNet, vision_twins.LeNet, (2, 1, 32, 32)),
    "unet": (
        lambda: models.UNet(2, 3, width_mult=1 / 16), lambda: vision_twins.UNet(2, 3, False, 4),
        (2, 2, 21, 34),
    ),
    "unet, bilinear": (
        lambda: models.UNet(2, 3, True, width_mult=1 / 16), lambda: vision_twins.UNet(2, 3, True, 4),
        (2, 2, 17, 16),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_a_network_agrees_with_its_twin(name: str) -> None:
    ours, theirs, shape = OTHERS[name]
    compare(ours(), theirs(), draw(*shape, dtype=np.float64))


def test_the_bound_of_an_autoencoder_agrees_with_its_twin() -> None:
    def bound(model: Any, x: Any) -> Any:
        if isinstance(model, torch.nn.Module):
            return model.loss(torch.sigmoid(x))
        x = st.sigmoid(x)
        mu, logvar = model.encode(x)
        return models.vae_loss(model.decode(mu), x, mu, logvar)

    compare(models.VAE(), vision_twins.VAE(), draw(3, 784, dtype=np.float64), forward=bound)


def test_draws_of_an_autoencoder_have_the_moments_it_says() -> None:
    st.manual_seed(0)
    mu, logvar = st.tensor([[1.0, -2.0]]), st.tensor([[0.0, 2.0]])
    drawn = models.VAE().reparameterize(*(st.broadcast_to(t, (20_000, 2)) for t in (mu, logvar))).numpy()
    np.testing.assert_allclose(drawn.mean(0), [1, -2], atol=0.08)
    np.testing.assert_allclose(drawn.std(0), [1, np.e], rtol=0.03)


def test_an_inception_with_batch_norm_takes_the_state_of_the_published_network() -> None:
    found = importlib.util.find_spec("pretrainedmodels")
    if found is None or found.origin is None:
        pytest.skip("pretrainedmodels is not installed")
    # The package loads far more, of which not all still loads.
    place = Path(found.origin).parent / "models" / "bninception.py"
    spec = importlib.util.spec_from_file_location("bninception", place)
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    ours, theirs = models.BNInception(7, bn_inception.CAFFE_BLOCKS), library.BNInception(7)
    compare(ours, theirs, draw(1, 3, 224, 224, dtype=np.float64))


def test_the_inceptions_of_the_paper_have_its_channels() -> None:
    """Figure 5: what each block reads, by the output size of the one before."""
    model = models.BNInception(2)
    reads = [getattr(model, f"inception_{name}_3x3_reduce").in_channels for name in model.blocks]
    assert reads == [192, 256, 320, 576, 576, 576, 576, 576, 1024, 1024]
    assert model.last_linear.in_features == 1024


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
