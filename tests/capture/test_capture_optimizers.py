"""The state of optimizers, looked at, handed out and changed inside compiled functions and between calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from capture_ways import GUARDS_NOTICE, WAYS, each_way

import stratal as st
from stratal import nn, optim

pytestmark = GUARDS_NOTICE
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9), "Adam": lambda p: optim.Adam(p, lr=0.1),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.1),
}  # fmt: skip


class Box:
    """Attributes of any name."""


HANDED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "returned": lambda opt, w, box: opt.state[w],
    "in a list": lambda opt, w, box: [opt.state[w]],
    "in a dict": lambda opt, w, box: {"state": opt.state[w]},
    "stored": lambda opt, w, box: setattr(box, "held", opt.state[w]),
    "appended": lambda opt, w, box: box.log.append(opt.state[w]),
    "stored under a key": lambda opt, w, box: box.table.__setitem__("k", opt.state[w]),
    "in a closure": lambda opt, w, box: (lambda state: lambda: state)(opt.state[w]),
    "table": lambda opt, w, box: opt.state,
    "values": lambda opt, w, box: [*opt.state.values()],
    "get": lambda opt, w, box: opt.state.get(w),
}


def _states(found: Any, box: Any, state: Any) -> list[bool]:
    held = [found() if callable(found) else found, getattr(box, "held", None), box.log, box.table.get("k")]
    held += [*found] if isinstance(found, list) else [*found.values()] if isinstance(found, dict) else []
    held += box.log
    return [x is state for x in held]


@each_way
@pytest.mark.parametrize("when", ["behind the step", "ahead of the step"])
@pytest.mark.parametrize("handed", HANDED)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_that_a_function_hands_out_is_the_optimizers(
    name: str, handed: str, when: str, way: str
) -> None:
    def run(compiled: Callable[..., Any]) -> Any:
        w, box = nn.Parameter(st.tensor([1.0, 2.0])), Box()
        opt = OPTIMIZERS[name]([w])
        box.log, box.table = [], {}  # type: ignore[attr-defined]

        @compiled
        def step(x: Any) -> Any:
            opt.zero_grad()
            (w * x).sum().backward()
            ahead = HANDED[handed](opt, w, box) if when == "ahead of the step" else None
            opt.step()
            return HANDED[handed](opt, w, box) if when == "behind the step" else ahead

        found = []
        for k in range(5):
            result = step(st.ones(2))
            if k == 0:
                for key, value in opt.state[w].items():
                    opt.state[w][key] = st.zeros_like(value)  # restart
            found.append((_states(result, box, opt.state[w]), [round(v, 4) for v in w.tolist()]))
        return found

    assert run(WAYS[way]) == run(lambda f: f)
