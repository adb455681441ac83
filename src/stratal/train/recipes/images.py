"""Images: a folder for each class, classified by a convolutional net."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratal.data.datasets import Subset
from stratal.data.pipeline import Pipeline
from stratal.data.sources import ImageFolder
from stratal.data.transforms import Compose, On, RandomCrop, RandomFlip, ToFloat
from stratal.metrics import Accuracy
from stratal.models import resnet18
from stratal.nn.activation import ReLU
from stratal.nn.containers import Sequential
from stratal.nn.convolution import Conv2d
from stratal.nn.dropout import Dropout
from stratal.nn.functional import cross_entropy
from stratal.nn.linear import Linear
from stratal.nn.module import Module
from stratal.nn.pooling import AdaptiveAvgPool2d, MaxPool2d
from stratal.nn.reshaping import Flatten
from stratal.nn.running_statistics import BatchNorm2d
from stratal.tensor.tensor import Tensor
from stratal.train.recipes.config import Config
from stratal.train.recipes.problem import Problem, Standardized, split

TAKES = "uint8 [images, channels, height, width], pixels from 0 to 255 as ImageFolder(size=, mode=) has them"
_SAMPLED = 256  # images that means and deviations of channels are taken of
_MODES = {"L": 1, "RGB": 3, "RGBA": 4}


class Pixels(Standardized):
    """Bytes from 0 to 255 put between 0 and 1, and standardised by channel."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.float() / 255)


def image_problem(config: Config) -> Problem:
    """Return what a configuration of images asks for. Raises: AttributeValueError, and what sources raise."""
    height, width = config.data["size"]
    size = height, width
    root, mode = config.located(config.data["path"]), config.data["mode"]
    folder = ImageFolder(root, size=size, mode=mode, classes=config.data["classes"])
    if len(folder.classes) < 2:
        raise config.refuse("images are of at least two classes", ", ".join(folder.classes))
    labels = np.array([label for _, label in folder.samples])
    training, held_out = split(config, labels, len(labels))
    change = Compose()
    if config.data["augment"]:
        change = Compose(RandomFlip(), RandomCrop(size, padding=max(1, min(size) // 8)))
    seed, batch = config.training["seed"], config.training["batch_size"]
    workers, on_error = config.data["workers"], {"refuse": "raise", "skip": "skip"}[config.data["unreadable"]]

    def batches(positions: Any, transform: Compose, shuffled: bool) -> Pipeline:
        rows: Pipeline = Pipeline(Subset(folder, positions.tolist()), on_error=on_error)
        if shuffled:
            rows = rows.shuffle(seed=seed) if on_error == "raise" else rows.shuffle(10 * batch, seed=seed)
        mapped = rows.map(On(0, transform), seed=seed if transform.draws else None)
        return mapped.batch(batch).prefetch(2, workers=workers)

    sample = Pipeline(Subset(folder, training[:_SAMPLED].tolist()), on_error=on_error)
    first = [x for x, _ in sample]
    if not first:
        raise config.refuse("images can be read", f"none of the first {_SAMPLED}")
    pixels = [ToFloat()(x) for x in first]
    mean = np.mean([x.mean((1, 2)) for x in pixels], 0)
    squares = np.mean([((x - mean[:, None, None]) ** 2).mean((1, 2)) for x in pixels], 0)
    prepared = Pixels(mean[:, None, None], np.sqrt(squares)[:, None, None])
    net = Sequential(prepared, _net(config, _MODES[mode], len(folder.classes)))
    return Problem(
        net, cross_entropy, {"accuracy": Accuracy(task="multiclass", num_classes=len(folder.classes))},
        batches(training, change, True), batches(held_out, Compose(), False), np.stack(first[:8]),
        {"classes": list(folder.classes), "size": list(size), "mode": mode, "takes": TAKES},
        f"{len(labels):,} images: {len(training):,} to train on, {len(held_out):,} held out; "
        f"{len(folder.classes)} classes",
    )  # fmt: skip


def _net(config: Config, channels: int, classes: int) -> Module:
    if config.model["name"] == "resnet18":
        if channels != 3:
            raise config.refuse("resnet18 takes images of three channels", f"mode = {config.data['mode']!r}")
        net: Module = resnet18(num_classes=classes)
        return net
    widths, smallest = config.model["channels"], min(config.data["size"])
    if not widths or smallest < 2 ** len(widths):
        got = f"{len(widths)} blocks, {smallest} pixels"
        hint = "[model] channels has a number for each block"
        raise config.refuse("each block of a cnn halves the image", got, hint)
    layers: list[Module] = []
    for before, after in zip([channels, *widths], widths, strict=False):
        layers += [Conv2d(before, after, 3, padding=1, bias=False), BatchNorm2d(after), ReLU(), MaxPool2d(2)]
    layers += [AdaptiveAvgPool2d(1), Flatten()]
    if config.model["dropout"]:
        layers.append(Dropout(config.model["dropout"]))
    return Sequential(*layers, Linear(widths[-1], classes))
