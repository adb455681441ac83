"""A run killed anywhere goes on with the batches it would have had, in later epochs too, or is refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn
from stratal.base.errors import StratalError
from stratal.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from stratal.train import CheckpointManager, Trainer

ROWS = np.arange(22, dtype=np.float32)[:, None]
DATA = TensorDataset(ROWS, ROWS)
Draw = Callable[[], list[int]]


class Order:
    """A sampler that says nothing of where it stands."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return 22

    def __iter__(self) -> Iterator[int]:
        return iter(self.draw())


class Stated(Order):
    """One whose state is that of its generator."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)
        super().__init__(lambda: self.rng.permutation(22).tolist())

    def state_dict(self) -> Any:
        return self.rng.bit_generator.state

    def load_state_dict(self, state: Any) -> None:
        self.rng.bit_generator.state = state


class Read(Order, IterableDataset[Any]):
    """An iterable of rows in some order."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return iter([(ROWS[k], ROWS[k]) for k in self.draw()])


class Batched(Read):
    """An iterable of batches."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        order = self.draw()
        return iter([(ROWS[order[k : k + 4]], ROWS[order[k : k + 4]]) for k in range(0, 22, 4)])


def of_numpy() -> Draw:
    return lambda: np.random.permutation(22).tolist()


def of_python() -> Draw:
    return lambda: random.sample(range(22), 22)


def fixed() -> Draw:
    return lambda: list(range(22))


def hidden() -> Draw:
    rng = np.random.default_rng(3)
    return lambda: rng.permutation(22).tolist()


def counted() -> Draw:
    epochs: list[None] = []

    def draw() -> list[int]:
        epochs.append(None)
        return np.random.default_rng(len(epochs)).permutation(22).tolist()

    return draw


def own() -> st.Generator:
    return st.Generator(3)


def sampled(sampler: Any, **given: Any) -> DataLoader:
    return DataLoader(DATA, 4, sampler=sampler, **given)


FORMS: dict[str, Callable[[Draw], Any]] = {
    "sampler": lambda draw: sampled(Order(draw)), "rows": lambda draw: DataLoader(Read(draw), 4),
    "batches": Batched, "in threads": lambda draw: DataLoader(Read(draw), 4, num_workers=2),
}  # fmt: skip
RIGHT: dict[str, Callable[[], Any]] = {
    "loader": lambda: DataLoader(DATA, 4, shuffle=True),
    "loader's generator": lambda: DataLoader(DATA, 4, shuffle=True, generator=own()),
    "weighted": lambda: sampled(WeightedRandomSampler(np.ones(22), 22, generator=own()), num_workers=2),
    "random": lambda: sampled(RandomSampler(ROWS, generator=own())),
    "batched": lambda: DataLoader(
        DATA, batch_sampler=BatchSampler(RandomSampler(ROWS, generator=own()), 4, False)  # type: ignore[arg-type]
    ),
    "stated": lambda: sampled(Stated()),
    **{
        f"{name}, {draw.__name__}": lambda form=form, draw=draw: form(draw())
        for name, form in FORMS.items()
        for draw in (of_numpy, of_python, fixed)
    },
}  # fmt: skip
REFUSED: dict[str, Callable[[], Any]] = {
    f"{name}, {draw.__name__}": lambda form=form, draw=draw: form(draw())
    for name, form in FORMS.items()
    for draw in (hidden, counted)
}


def of_torch(kind: str) -> Callable[[], Any]:
    def make() -> Any:
        torch = pytest.importorskip("torch")
        data, generator = torch.utils.data, torch.Generator().manual_seed(3)
        rows = data.TensorDataset(torch.tensor(ROWS), torch.tensor(ROWS))
        weighted = data.WeightedRandomSampler(torch.ones(22), 22, generator=generator)
        if kind == "loader":
            return data.DataLoader(rows, batch_size=4, shuffle=True, generator=generator)
        if kind == "global":
            return data.DataLoader(rows, batch_size=4, shuffle=True)
        if kind == "sampler":
            return data.DataLoader(rows, batch_size=4, sampler=weighted)
        if kind == "sampler of ours":
            return sampled(weighted)
        return DataLoader(DATA, batch_sampler=data.BatchSampler(weighted, 4, False))

    return make


class Killed(BaseException):
    pass


class KillAt:
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, trainer: Any) -> None:
        if trainer.steps == self.steps:
            raise Killed


def seen(make: Callable[[], Any], folder: Path, kill: int = -1, epochs: int = 3) -> list[list[float]]:
    """Return the batches that a run trains on, the script started again or anew."""
    for start in (st.manual_seed, np.random.seed, random.seed):
        start(0)
    found: list[list[float]] = []

    def of_nothing(x: Any, y: Any) -> Any:
        return (x * 0).sum()

    def step(x: Any, y: Any) -> Any:
        found.append(np.asarray(x).reshape(-1).tolist())
        return of_nothing(x, y)

    callbacks = [KillAt(kill)]
    trainer = Trainer(nn.Linear(1, 1), loss=of_nothing, step=step, compiled=False, callbacks=callbacks)
    manager = CheckpointManager(folder, every=1)
    try:
        trainer.fit(make(), epochs=epochs, validation=(ROWS, ROWS), checkpoints=manager, resume=True)
    except Killed:
        return found[:-1]  # the last step is in no checkpoint
    return found


def check_resumed(make: Callable[[], Any], folder: Path, at: int) -> None:
    whole = seen(make, folder / "whole")
    cut = seen(make, folder / "cut", kill=at)
    assert cut + seen(make, folder / "cut") == whole
    ended = seen(make, folder / "ended", epochs=1 + at % 2)
    assert ended + seen(make, folder / "ended") == whole


@pytest.mark.sampled(6)
@pytest.mark.parametrize("at", [2, 7, 8, 13])
@pytest.mark.parametrize("kind", RIGHT)
def test_a_run_killed_anywhere_sees_the_batches_of_one_that_was_not(
    tmp_path: Path, kind: str, at: int
) -> None:
    check_resumed(RIGHT[kind], tmp_path, at)


@pytest.mark.torch
@pytest.mark.sampled(4)
@pytest.mark.parametrize("at", [2, 8, 13])
@pytest.mark.parametrize("kind", ["loader", "global", "sampler", "sampler of ours", "batch sampler of ours"])
def test_orders_of_pytorchs_loaders_and_samplers_go_on(tmp_path: Path, kind: str, at: int) -> None:
    pytest.importorskip("torch").manual_seed(5)
    state = pytest.importorskip("torch").get_rng_state()

    def make() -> Any:
        pytest.importorskip("torch").set_rng_state(state)
        return of_torch(kind)()

    check_resumed(make, tmp_path, at)


@pytest.mark.torch
def test_a_source_may_have_a_network_that_it_calls_its_generator(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    def make() -> Any:
        source = Batched(of_numpy())
        source.generator = torch.nn.Linear(1, 1)  # type: ignore[attr-defined]
        return source

    check_resumed(make, tmp_path, 8)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", REFUSED)
def test_an_order_that_its_source_counts_or_draws_itself_is_refused_in_and_between_epochs(
    tmp_path: Path, kind: str
) -> None:
    for at in (9, 15):
        seen(REFUSED[kind], tmp_path / f"{at}", kill=at)
        with pytest.raises(StratalError, match="goes on with the batches that it began with"):
            seen(REFUSED[kind], tmp_path / f"{at}")
    for epochs in (1, 2):
        seen(REFUSED[kind], tmp_path / f"ended {epochs}", epochs=epochs)
        with pytest.raises(StratalError, match="goes on with passes that it can have again"):
            seen(REFUSED[kind], tmp_path / f"ended {epochs}")
