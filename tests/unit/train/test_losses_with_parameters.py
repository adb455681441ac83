"""A loss that is a module is trained and resumed with the net: its parameters, and its buffers."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trained import LOSS, X, Y, bits, small

import stratal as st
from stratal import nn, optim
from stratal.base.errors import StratalError
from stratal.train import CheckpointManager, Trainer


class Uncertain(nn.Module):
    """A loss with a learned weight, and a count of what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.log_variance = nn.Parameter(st.zeros(()))
        self.register_buffer("seen", st.zeros(()))

    def forward(self, outputs: Any, y: Any) -> Any:
        if self.training and st.is_grad_enabled():
            self.seen.add_(1.0)
        return LOSS(outputs, y) * st.exp(-self.log_variance) + self.log_variance + 0.01 * self.seen


class Running(Uncertain):
    """One that is part of another loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Uncertain()

    def forward(self, outputs: Any, y: Any) -> Any:
        return super().forward(outputs, y) + self.inner(outputs, y)


def fitted(
    loss: nn.Module, folder: Path, epochs: int, stop: int = -1, options: Any = (), **given: Any
) -> tuple[bytes, bytes]:
    """Return the bits of net and loss after a run, or of one that was stopped after some update."""

    class Stop:
        def on_step_end(self, trainer: Trainer) -> None:
            if trainer.steps == stop:
                raise KeyboardInterrupt

    net = small()
    params = [*net.parameters(), *(p for p in loss.parameters() if p.requires_grad)]
    sgd = optim.SGD(params, lr=0.1, momentum=0.9)
    trainer = Trainer(net, loss=loss, optimizer=sgd, callbacks=[Stop()], **dict(options))
    manager = CheckpointManager(folder, every=1, **given)
    with suppress(KeyboardInterrupt):
        trainer.fit(
            (X, Y), batch_size=30, epochs=epochs, validation=(X, Y), checkpoints=manager, resume=True
        )
    return bits(net), bits(loss)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("given", [{}, {"shard_bytes": 300}], ids=str)
@pytest.mark.parametrize("options", [{}, {"accumulate": 2, "clip_norm": 0.5}, {"compiled": False}], ids=str)
@pytest.mark.parametrize("kind", [Uncertain, Running])
def test_a_resumed_run_has_the_loss_of_one_that_was_not(
    tmp_path: Path, kind: type[nn.Module], options: dict[str, Any], given: dict[str, Any]
) -> None:
    whole = fitted(kind(), tmp_path / "whole", 4, options=options, **given)
    assert whole[1] != bits(kind())
    fitted(kind(), tmp_path / "ended", 2, options=options, **given)
    assert fitted(kind(), tmp_path / "ended", 4, options=options, **given) == whole
    fitted(kind(), tmp_path / "cut", 4, stop=5, options=options, **given)
    assert fitted(kind(), tmp_path / "cut", 4, options=options, **given) == whole


def test_a_checkpoint_without_the_state_of_a_loss_with_parameters_is_refused(tmp_path: Path) -> None:
    def trainer(loss: Any) -> Trainer:
        net = small()
        return Trainer(net, loss=loss, optimizer=optim.SGD(net.parameters(), lr=0.1))

    with_parameters = trainer(Uncertain()).state_dict()
    assert {*with_parameters["loss"]} == {"log_variance", "seen"}
    for plain in (LOSS, nn.CrossEntropyLoss()):
        state = trainer(plain).state_dict()
        assert "loss" not in state
        with pytest.raises(StratalError, match="resumes with the loss that it was saved with"):
            trainer(Uncertain()).load_state_dict(state)
        trainer(plain).load_state_dict(with_parameters)
    weighted = nn.CrossEntropyLoss(weight=st.tensor([1.0, 2.0]))
    trainer(weighted).load_state_dict(state)  # of a buffer, which nobody trains
    other = trainer(nn.CrossEntropyLoss(weight=st.tensor([3.0, 4.0])))
    other.load_state_dict(trainer(weighted).state_dict())
    assert np.array_equal(other.loss.weight, [1.0, 2.0])
