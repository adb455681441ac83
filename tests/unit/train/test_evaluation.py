"""The loss of evaluate is that of all rows at once, whatever the batches are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from trained import X, Y, small

import stratal as st
from stratal import nn, optim
from stratal.train import Trainer

F = nn.functional
WEIGHTS = st.tensor([0.0, 3.0])
HIDDEN = np.where(np.arange(70) < 30, -100, Y)  # of the first rows no class is known
ROWS = st.tensor(np.arange(70) % 3 / 2.0).float()


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (nn.CrossEntropyLoss(weight=WEIGHTS), np.sort(Y)),
        (lambda out, y: F.cross_entropy(out, y, weight=WEIGHTS + 0.5, label_smoothing=0.1), Y),
        (lambda out, y: F.cross_entropy(out, y, weight=WEIGHTS, label_smoothing=0.2) - 2.0, Y),
        (F.cross_entropy, HIDDEN),
        (lambda out, y: 0.5 * F.nll_loss(F.log_softmax(out, 1), y, ignore_index=1) + 1.0, Y),
        (lambda out, y: F.mse_loss(out[:, 0], y[0], weight=y[1]), (X[:, 0], ROWS)),
        (lambda out, y: F.cross_entropy(out, y) + F.mse_loss(out, out * 0.5), Y),
    ],
    ids=["weights", "smoothing", "smoothing of no weight", "ignored", "affine", "elements", "two terms"],
)
def test_the_loss_of_evaluate_is_weighed_by_what_the_loss_divides_by(
    compiled: bool, loss: Callable[..., Any], targets: Any
) -> None:
    trainer = Trainer(small(), loss=loss, compiled=compiled)
    with st.no_grad():
        y = tuple(map(st.tensor, targets)) if isinstance(targets, tuple) else st.tensor(targets)
        whole = float(loss(trainer.net(st.tensor(X)), y))
    for size in (1, 16):
        assert trainer.evaluate((X, targets), batch_size=size)["loss"] == pytest.approx(whole, rel=1e-5)


def test_a_set_in_which_nothing_counts_has_no_loss_and_two_divisors_are_weighed_by_rows() -> None:
    trainer = Trainer(small(), loss=F.cross_entropy)
    assert math.isnan(trainer.evaluate((X, np.full(70, -100)), batch_size=16)["loss"])

    def both(out: Any, y: Any) -> Any:
        return F.cross_entropy(out, y) + F.cross_entropy(out, y, weight=st.tensor([1.0, 3.0]))

    hidden = Trainer(small(), loss=both).evaluate((X, HIDDEN), batch_size=10)
    assert math.isnan(hidden["loss"])  # as both are, of the first batch
    trainer = Trainer(small(), loss=both)
    scores, y = st.tensor(trainer.predict(X)), st.tensor(Y)
    parts = [float(both(scores[k : k + 35], y[k : k + 35])) for k in (0, 35)]
    assert trainer.evaluate((X, Y), batch_size=35)["loss"] == pytest.approx(sum(parts) / 2, rel=1e-5)


def right(out: Any, y: Any) -> Any:
    """Return the share of right classes: the mean of a batch."""
    return (out.argmax(1) == y).float().mean()


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    ("targets", "y_of"),
    [
        (Y, lambda t: t),
        ((Y, ROWS), lambda t: t[0]),
        ({"class": Y}, lambda t: t["class"]),
        ({"of": ({"class": Y}, X)}, lambda t: t["of"][0]["class"]),
    ],
    ids=["array", "tuple", "dict", "tree"],
)
def test_functions_as_metrics_are_means_over_samples_of_targets_of_any_structure(
    targets: Any, y_of: Callable[[Any], Any], compiled: bool
) -> None:
    net = small()
    trainer = Trainer(
        net, loss=lambda out, t: F.cross_entropy(out, y_of(t)),
        optimizer=optim.SGD(net.parameters(), lr=0.0), metrics={"right": lambda out, t: right(out, y_of(t))},
        compiled=compiled,
    )  # fmt: skip
    whole = float((np.asarray(trainer.predict(X)).argmax(1) == Y).mean())
    history = trainer.fit((X, targets), batch_size=64, shuffle=False, validation=(X, targets))
    assert [*history["right"], *history["validation_right"]] == pytest.approx([whole, whole])
    assert trainer.evaluate((X, targets), batch_size=69)["right"] == pytest.approx(whole)
