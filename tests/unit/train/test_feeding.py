"""Arrays of several inputs or targets, and what is no data: batched alike, or refused with what was meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from trained import LOSS, X, Y, bits, small, trainer_of

import stratal as st
from stratal import nn, optim
from stratal.base.errors import StratalError
from stratal.train import CheckpointManager, Trainer

B = np.flip(X, 0).copy()


class Two(nn.Module):
    """A net of one input or two."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, a: Any, b: Any = None) -> Any:
        return self.layer(a) if b is None else self.layer(a) + 100 * self.layer(b)


def two() -> Trainer:
    st.manual_seed(0)
    return trainer_of(Two())


@pytest.mark.parametrize(
    "given",
    [
        lambda: ((X, B),), lambda: ((X, B), Y), lambda: ([X, B], Y),
        lambda: {"b": B, "a": X}, lambda: ({"a": X, "b": B}, Y),
        lambda: ((st.tensor(X), B.astype(np.float64)), Y), lambda: [((X, B), Y)],
    ],
)  # fmt: skip
def test_several_inputs_are_predicted_from_each_way_to_give_them(given: Callable[[], Any]) -> None:
    trainer = two()
    expected = trainer.net(st.tensor(X), st.tensor(B)).detach().numpy()
    sizes = {} if isinstance(given(), list) else {"batch_size": 16}
    np.testing.assert_allclose(trainer.predict(given(), **sizes), expected, rtol=1e-5, atol=1e-4)


def test_several_inputs_as_arrays_train_in_batches_and_are_shuffled_and_resumed(tmp_path: Any) -> None:
    trainer = two()
    trainer.fit(((X, B), Y), batch_size=16, epochs=2, validation=((X, B), Y))
    other = two()
    other.fit(({"a": X, "b": B}, Y), batch_size=16, epochs=2, validation=((X, B), Y))
    reference = two()
    loader = st.data.DataLoader(st.data.TensorDataset(X, B, Y), batch_size=16, shuffle=True)
    for _ in range(2):
        reference.fit([((a, b), y) for a, b, y in loader])
    assert bits(trainer.net) == bits(other.net) == bits(reference.net) and len(trainer.history) == 2
    st.manual_seed(0)
    manager = CheckpointManager(tmp_path, every=1)
    options = {"batch_size": 16, "epochs": 2, "validation": ((X, B), Y), "checkpoints": manager}
    halted = two()

    class Halt:
        def on_step_end(self, trainer: Trainer) -> None:
            if trainer.steps == 3:
                raise KeyboardInterrupt

    halted.callbacks.append(Halt())
    with pytest.raises(KeyboardInterrupt):
        halted.fit(((X, B), Y), **options)
    resumed = two()
    resumed.fit(((X, B), Y), **options, resume=True)
    assert bits(resumed.net) == bits(trainer.net)


def test_targets_may_be_several_too() -> None:
    net = small()
    sgd = optim.SGD(net.parameters(), lr=0.1)
    trainer = Trainer(net, loss=lambda out, y: LOSS(out, y[0]) + (out * y[1]).mean(), optimizer=sgd)
    zeros = np.zeros((70, 2), np.float32)
    reference = small()
    sgd = optim.SGD(reference.parameters(), lr=0.1)
    Trainer(reference, loss=LOSS, optimizer=sgd).fit((X, Y), shuffle=False)
    trainer.fit((X, (Y, zeros)), shuffle=False)
    for p, q in zip(net.parameters(), reference.parameters(), strict=True):
        np.testing.assert_allclose(p.detach(), q.detach(), rtol=1e-5, atol=1e-6)


def test_outputs_without_rows_are_not_joined() -> None:
    class Mean(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.mean()

    with pytest.raises(StratalError, match="joins outputs along their rows"):
        Trainer(Mean()).predict(X)


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        (lambda t: t.predict(X.tolist()), "predict: takes arrays", "np.asarray"),
        (lambda t: t.predict(X[0].tolist()), "predict: takes arrays", "np.asarray"),
        (lambda t: t.predict(X.reshape(7, 10, 6).tolist()), "predict: takes arrays", "np.asarray"),
        (lambda t: t.fit((X.tolist(), Y.tolist())), "fit: takes arrays", "np.asarray"),
        (lambda t: t.fit(list(zip(X.tolist(), Y.tolist(), strict=True))), "takes arrays", "DataLoader"),
        (lambda t: t.fit(((X, Y),)), "takes inputs with targets", "(inputs, targets)"),
        (lambda t: t.fit({"a": X}), "takes inputs with targets", "(inputs, targets)"),
        (lambda t: t.evaluate((X,)), "takes inputs with targets", "(inputs, targets)"),
        (lambda t: t.fit(((X, B[:5]), Y)), "one number of rows", ""),
        (lambda t: t.fit(((X[:32], Y[:32]), (X[32:], Y[32:]))), "one number of rows", "a list of batches"),
    ],
)  # fmt: skip
def test_what_is_no_data_is_refused_with_what_was_meant(
    call: Callable[[Trainer], Any], message: str, hint: str
) -> None:
    with pytest.raises(StratalError, match=message) as caught:
        call(trainer_of(small()))
    assert hint in caught.value.hint
