"""What is not finite in a step: named by what was first, and nothing is updated where that is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trained import LOSS, X, Y, batches, bits, small, trainer_of

import stratal as st
from stratal import nn, optim
from stratal.train import NonFiniteError, Trainer


def test_a_loss_that_is_not_finite_stops_training_and_says_where() -> None:
    def loss(out: Any, y: Any) -> Any:
        return LOSS(out, y) / (out.sum() * 0)

    net = small()
    trainer = Trainer(net, loss=loss, optimizer=optim.Adam(net.parameters()))
    with pytest.raises(NonFiniteError, match="the loss is not finite") as caught:
        trainer.fit(batches(), epochs=2)
    assert "epoch 1, batch 1" in caught.value.got and "check_finite" in caught.value.hint


def test_a_batch_that_is_not_finite_is_named_by_its_element() -> None:
    bad = X.copy()
    bad[40, 3] = np.nan
    named = r"the batch's inputs are not finite, first at \[8, 3\]"
    with pytest.raises(NonFiniteError, match=named) as caught:
        trainer_of(small()).fit((bad, Y), batch_size=32, shuffle=False)
    assert "batch 2" in caught.value.got


class Rooted(nn.Module):
    """A gradient of infinity at 0, where the output is finite."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(st.zeros(2))

    def forward(self, x: Any) -> Any:
        return x + st.sqrt(self.scale)


class Divided(nn.Module):
    def forward(self, x: Any) -> Any:
        return x / st.zeros(2)


@pytest.mark.parametrize(
    ("last", "named"),
    [
        (Rooted, "the gradient of 2.scale is the first"),
        (Divided, r"the output of 2 \(Divided\) is not finite"),
    ],
)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_with_gradients_checked_the_first_thing_that_is_not_finite_is_named_and_nothing_is_updated(
    last: type[nn.Module], named: str, accumulate: int
) -> None:
    st.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 2), nn.BatchNorm1d(2), last())
    weights = [bits(net[0]), *([bits(net[2])] if last is Rooted else [])]
    trainer = trainer_of(net, check_finite="gradients", accumulate=accumulate)
    with pytest.raises(NonFiniteError, match=named):
        trainer.fit((X, Y), batch_size=10)
    assert weights == [bits(net[0]), *([bits(net[2])] if last is Rooted else [])]


def log_of_zero(out: Any, y: Any) -> Any:
    return -st.log(nn.functional.relu(out) * 0).mean()


def masked(out: Any, y: Any) -> Any:
    away = st.where(st.arange(2) == 0, -np.inf, out)  # which is meant, and gone after the softmax
    return (nn.functional.softmax(away, 1) * (1 / (out.sum() * 0))).sum()


@pytest.mark.parametrize(
    ("loss", "op", "line"),
    [(log_of_zero, "log", log_of_zero.__code__.co_firstlineno + 1),
     (masked, "div", masked.__code__.co_firstlineno + 2)],
    ids=["log", "masked"],
)  # fmt: skip
def test_the_op_and_the_line_that_made_the_first_value_that_is_not_finite_are_named(
    loss: Any, op: str, line: int
) -> None:
    net = small(dropout=0.2)
    trainer = Trainer(net, loss=loss, optimizer=optim.Adam(net.parameters()), check_finite="gradients")
    with pytest.raises(NonFiniteError, match="the loss is the first that is not finite") as caught:
        trainer.fit((X, Y))
    assert f"first made by {op};" in caught.value.got
    assert str(caught.value.where[0]) == f"{Path(__file__).name}:{line}"


def test_the_op_of_the_backward_pass_that_is_not_finite_has_the_line_of_its_forward_op() -> None:
    st.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 2), Rooted())
    trainer = trainer_of(net, check_finite="gradients", precision="bfloat16")
    with pytest.raises(NonFiniteError, match=r"the gradient of 1.scale is the first") as caught:
        trainer.fit((X, Y))
    assert "in the backward pass" in caught.value.got
    assert str(caught.value.where[0]) == f"{Path(__file__).name}:{Rooted.forward.__code__.co_firstlineno + 1}"
