"""Updates in float16 that overflow are left out, and are no updates to anybody who counts them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from trained import LOSS, X, Y, bits, small

import stratal as st
from stratal import optim
from stratal.base.errors import StratalError
from stratal.train import EMA, Schedule, Trainer


class Counting:
    def __init__(self) -> None:
        self.updates = 0

    def on_step_end(self, trainer: Trainer) -> None:
        self.updates += 1


def too_steep(outputs: Any, y: Any) -> Any:
    return LOSS(outputs * 3000, y)


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"clip_norm": 1.0}, {"compiled": False}])
def test_an_update_that_overflows_moves_no_schedule_no_average_and_no_count(options: dict[str, Any]) -> None:
    net = small()
    optimizer = optim.SGD(net.parameters(), lr=1e-3)
    counting, average, before = Counting(), EMA(net, decay=0.5), bits(net)
    schedule = Schedule(optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5), per="step")
    trainer = Trainer(
        net, loss=too_steep, optimizer=optimizer, precision="float16",
        callbacks=[counting, average, schedule], **options,
    )  # fmt: skip
    history = trainer.fit((X, Y), batch_size=35, shuffle=False)
    updates = 2 // options.get("accumulate", 1)
    assert bits(net) == before and trainer.step.scaler.get_scale() == 65536.0 / 2**updates
    assert (trainer.steps, counting.updates, history[0]["skipped"]) == (0, 0, updates)
    assert history[0]["lr"] == 1e-3 and not int(average.average.n_averaged)
    trainer.step.scaler.update(8.0)
    again = trainer.fit((X, Y), batch_size=35, epochs=2, shuffle=False)
    assert (trainer.steps, again[0]["skipped"]) == (2 * updates, 0)
    assert again[0]["lr"] == pytest.approx(1e-3 / 2**updates) and bits(net) != before


def test_other_precisions_have_no_column_of_what_was_skipped() -> None:
    net = small()
    trainer = Trainer(net, loss=LOSS, optimizer=optim.SGD(net.parameters(), lr=0.1), precision="bfloat16")
    assert "skipped" not in trainer.fit((X, Y))[0]


def test_an_optimizer_whose_parameters_take_no_part_in_the_loss_is_refused() -> None:
    net, other = small(), small(seed=1)
    for precision in (None, "float16"):
        sgd = optim.SGD(other.parameters(), lr=0.1)
        trainer = Trainer(net, loss=LOSS, optimizer=sgd, precision=precision)
        before = bits(net)
        with pytest.raises(StratalError, match="fit: no parameter of the optimizer has a gradient") as caught:
            trainer.fit((X, Y))
        assert caught.value.got == "4 parameters, none of the net's" and bits(net) == before
    frozen = optim.SGD([net[0].weight], lr=0.1)
    net[0].weight.requires_grad_(False)
    with pytest.raises(StratalError, match="no parameter of the optimizer has a gradient") as caught:
        Trainer(net, loss=LOSS, optimizer=frozen).fit((X, Y))
    assert caught.value.got == "1 parameter, all of the net's"


def test_an_optimizer_of_a_part_that_was_replaced_is_refused_and_one_of_two_nets_is_not() -> None:
    net, second = small(), small(seed=1)
    sgd = optim.SGD([*net.parameters(), *second.parameters()], lr=0.1)
    Trainer(net, loss=LOSS, optimizer=sgd).fit((X, Y))
    net[3] = st.nn.Linear(8, 2)
    before = bits(net)
    with pytest.raises(StratalError, match="the optimizer lacks parameters of the net") as caught:
        Trainer(net, loss=LOSS, optimizer=sgd).fit((X, Y))
    assert caught.value.got == "3.weight, 3.bias" and bits(net) == before
    body = optim.SGD(net[0].parameters(), lr=0.1)  # by intent: it has nothing that is no part of the net
    Trainer(net, loss=LOSS, optimizer=body).fit((X, Y))


def test_what_only_the_loss_knows_may_be_trained() -> None:
    net = small()
    heat = st.nn.Parameter(st.ones(()))
    before = bits(net)
    trainer = Trainer(net, loss=lambda out, y: LOSS(out / heat, y), optimizer=optim.SGD([heat], lr=0.1))
    trainer.fit((X, Y))
    assert bits(net) == before and not np.array_equal(heat.detach(), 1.0)
