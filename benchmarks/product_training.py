"""Epochs of training by what people call instead of a loop: our Trainer, Keras and Lightning.

All train the same net from the same weights on the same batches in the same order. An epoch is timed by the
library's own events, so that what it sets up once is left out; ours is timed with all of `fit`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks import structure
from benchmarks.models import lenet, mlp, resnet18

Array = np.ndarray[Any, Any]
Epoch = Callable[[], "Took"]


class Took(NamedTuple):
    """Seconds of an epoch and its mean loss."""

    seconds: float
    loss: float


class Net(NamedTuple):
    """A net of `benchmarks.models`, its rows, their shape, and how many a batch has."""

    build: Callable[[Any], Any]
    rows: int
    shape: tuple[int, ...]
    batch: int


NETS: Final = {
    "mlp": Net(mlp, 4096, (784,), 32), "cnn": Net(lenet, 2048, (1, 28, 28), 64),
    "resnet18": Net(resnet18, 256, (3, 32, 32), 32),
}  # fmt: skip
SMOKE_ROWS: Final = 128
RATE: Final = 1e-3


def data_of(name: str, rows: int) -> tuple[Array, Array]:
    """Return rows and labels of ten classes."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((rows, *NETS[name].shape), dtype=np.float32), rng.integers(0, 10, rows)


def _weights(name: str) -> dict[str, Array]:
    return structure.draw(structure.state(NETS[name].build))


# -- Stratal -------------------------------------------------------------------------------------------------
def _trainer(name: str) -> Any:
    from stratal import nn, optim
    from stratal.train import Trainer

    net = NETS[name].build(nn)
    net.load_state_dict(_weights(name))
    parameters = list(net.parameters())
    optimizer: Any = optim.Adam(parameters, lr=RATE)
    if name == "resnet18":
        optimizer = optim.SGD(parameters, lr=0.01, momentum=0.9)
    return Trainer(net, loss=nn.functional.cross_entropy, optimizer=optimizer)


def _loader(name: str, rows: int) -> Any:
    from stratal.data import DataLoader, TensorDataset

    return DataLoader(TensorDataset(*data_of(name, rows)), NETS[name].batch)


def stratal_fit(name: str, rows: int) -> Epoch:
    """Return what trains an epoch by `Trainer.fit`."""
    trainer, loader = _trainer(name), _loader(name, rows)

    def epoch() -> Took:
        begun = time.perf_counter()
        history = trainer.fit(loader, epochs=1, progress=False)
        return Took(time.perf_counter() - begun, history["loss"][-1])

    return epoch


def stratal_loop(name: str, rows: int) -> Epoch:
    """Return what trains an epoch by a loop over the same compiled step, adding up losses as `fit` does."""
    trainer, loader = _trainer(name), _loader(name, rows)

    def epoch() -> Took:
        begun, total, count = time.perf_counter(), 0.0, 0
        for x, y in loader:
            loss, _ = trainer.step(x, y)
            total += loss.item() * x.shape[0]
            count += x.shape[0]
        return Took(time.perf_counter() - begun, total / count)

    return epoch


# -- Keras ---------------------------------------------------------------------------------------------------
def keras_fit(name: str, rows: int) -> Epoch:
    """Return what trains an epoch by Keras's `fit`; KERAS_BACKEND is torch."""
    import keras

    if keras.backend.backend() != "torch":
        raise SystemExit(f"Keras has the backend {keras.backend.backend()}, not torch")
    keras.config.set_image_data_format("channels_first")
    x, y = data_of(name, rows)
    model = keras.Sequential([keras.Input(NETS[name].shape), *_keras_layers(keras.layers, name)])
    model.set_weights([_as_keras(value) for value in _weights(name).values()])
    model.compile(
        optimizer=keras.optimizers.Adam(RATE, epsilon=1e-8),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    begun, seconds = [0.0], [0.0]

    class Clock(keras.callbacks.Callback):  # type: ignore[misc, name-defined, unused-ignore]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            begun[0] = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seconds[0] = time.perf_counter() - begun[0]

    def epoch() -> Took:
        found = model.fit(x, y, NETS[name].batch, epochs=1, shuffle=False, verbose=0, callbacks=[Clock()])
        return Took(seconds[0], float(found.history["loss"][-1]))

    return epoch


def _keras_layers(layers: Any, name: str) -> list[Any]:
    if name == "mlp":
        return [layers.Dense(512, "relu"), layers.Dense(512, "relu"), layers.Dense(10)]
    return [
        layers.Conv2D(6, 5, padding="same", activation="relu"), layers.MaxPooling2D(2),
        layers.Conv2D(16, 5, activation="relu"), layers.MaxPooling2D(2),
        layers.Flatten("channels_last"),  # the order of PyTorch
        layers.Dense(120, "relu"), layers.Dense(84, "relu"), layers.Dense(10),
    ]  # fmt: skip


def _as_keras(weight: Array) -> Array:
    """Return a weight in Keras's layout: inputs before outputs."""
    return weight.transpose(2, 3, 1, 0) if weight.ndim == 4 else weight.T


# -- Lightning -----------------------------------------------------------------------------------------------
def lightning_fit(name: str, rows: int) -> Epoch:
    """Return what trains an epoch by Lightning's `fit`."""
    import logging
    import warnings

    import lightning
    import torch

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    x, y = (torch.from_numpy(a) for a in data_of(name, rows))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), NETS[name].batch)
    net = NETS[name].build(torch.nn)
    net.load_state_dict({key: torch.from_numpy(value) for key, value in _weights(name).items()})
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE, fused=True)
    took = [0.0, 0.0]  # when an epoch began, its seconds
    losses: list[Any] = []

    class Task(lightning.LightningModule):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, number: int) -> Any:
            loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            losses.append(loss.detach() * len(batch[0]))
            return loss

        def configure_optimizers(self) -> Any:
            return optimizer

        def on_train_epoch_start(self) -> None:
            losses.clear()
            took[0] = time.perf_counter()

        def on_train_epoch_end(self) -> None:
            took[1] = time.perf_counter() - took[0]

    task = Task()

    def epoch() -> Took:
        lightning.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, barebones=False,
            enable_progress_bar=False, enable_model_summary=False,
        ).fit(task, loader)  # fmt: skip
        return Took(took[1], float(torch.stack(losses).sum()) / rows)

    return epoch


EPOCHS: Final[dict[str, Callable[[str, int], Epoch]]] = {
    "stratal": stratal_fit, "loop": stratal_loop, "keras": keras_fit, "lightning": lightning_fit,
}  # fmt: skip
