"""The order of kernels: what frees memory runs soon, states still change in place, failures come first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import compiler, nn, optim
from stratal.base.artifact import Copy, Launch, flat
from stratal.base.errors import IndexOutOfRangeError
from stratal.distributed import data
from stratal.distributed.reducer import Reducer
from stratal.plan.host import current_target

pytestmark = pytest.mark.quick

BATCH, WIDTH, LAYERS = 256, 32, 10


def trained() -> tuple[Any, Any]:
    """Return a compiled training step of a deep perceptron and its model."""
    layers = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    model = nn.Sequential(*layers)
    update = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    @st.compile
    def step(x: Any) -> Any:
        loss = model(x).square().mean()
        update.zero_grad()
        loss.backward()
        update.step()
        return loss

    step(st.ones((BATCH, WIDTH))).item()
    return step, model


def test_a_layer_lets_its_memory_go_before_the_layer_in_front_of_it_takes_more() -> None:
    step, _ = trained()
    activation = BATCH * WIDTH * 4
    assert step.program.executable.arena_bytes <= (LAYERS + 5) * activation


def test_what_the_arena_will_hold_is_about_known_before_kernels_are_scheduled() -> None:
    step, _ = trained()
    foreseen: list[int] = []
    compiler.decided(step.graph, current_target(), foreseen=foreseen.append)
    arena = step.program.executable.arena_bytes
    assert arena / 2 < max(foreseen) <= arena


def test_weights_are_still_updated_where_they_stand() -> None:
    step, _ = trained()
    commands = flat(step.program.executable.commands)
    assert not [c for c in commands if isinstance(c, Copy) and c.label == "update"]


def test_a_bucket_of_gradients_leaves_before_another_kernel_runs() -> None:
    layers = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    model = nn.Sequential(*layers)
    update = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    update.register_step_pre_hook(Reducer(data(bucket_bytes=2 * WIDTH * (WIDTH + 1) * 4)))

    @st.compile
    def step(x: Any) -> Any:
        update.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        update.step()
        return loss

    step(st.ones((BATCH, WIDTH))).item()
    commands = step.program.plan.commands
    starts = [k for k, c in enumerate(commands) if str(c.get("op")).startswith("all_reduce_start")]
    assert len(starts) == LAYERS / 2
    for k in starts:
        assert commands[k]["reads"][-1] in commands[k - 1]["writes"], commands[k - 1]["name"]


def test_nothing_is_updated_before_an_index_is_known_to_be_good() -> None:
    table = nn.Embedding(4, WIDTH)
    head = nn.Linear(WIDTH, WIDTH)
    update = optim.SGD([*table.parameters(), *head.parameters()], lr=0.1)

    @st.compile
    def step(x: Any, position: Any) -> Any:
        loss = head(table(x)).square().mean()
        update.zero_grad()
        loss.backward()
        update.step()
        return loss * table.weight[position].sum()

    step(st.tensor([0, 1]), st.tensor([2])).item()
    before = head.weight.numpy().copy()
    with pytest.raises(IndexOutOfRangeError):
        step(st.tensor([0, 1]), st.tensor([9])).item()
    np.testing.assert_array_equal(head.weight.numpy(), before)


def test_kernels_come_after_what_they_read() -> None:
    step, _ = trained()
    made: set[int] = set()
    writes = {w for c in flat(step.program.executable.commands) if isinstance(c, Launch) for w in c.writes}
    for command in flat(step.program.executable.commands):
        if isinstance(command, Launch):
            assert {r for r in command.reads if r in writes} - made <= set(step.program.executable.inputs)
            made.update(command.writes)
