"""Functions that programs call back come where they stand among all else that a compiled function does."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from capture_ways import GUARDS_NOTICE, WAYS, each_way

import stratal as st
from stratal import nn, optim
from stratal.base.errors import CaptureError

pytestmark = GUARDS_NOTICE


class Stop(BaseException):
    """Nothing that `except Exception` catches."""


class World:
    """What a function may change: Python's state, and tensors."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.table: dict[str, Any] = {}
        self.k: Any = 0
        self.w, self.v = st.zeros(1), st.ones(3)
        self.net = nn.Linear(3, 1, bias=False)
        self.net.weight.data.fill_(1.0)
        self.opt = optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.schedule = optim.lr_scheduler.StepLR(self.opt, 2, 0.5)

    def step(self) -> None:
        self.opt.zero_grad()
        self.net(self.v).sum().backward()
        self.opt.step()

    def seen(self) -> Any:
        k = self.k.tolist() if isinstance(self.k, st.Tensor) else self.k
        log = [x.tolist() if isinstance(x, st.Tensor) else x for x in self.log]
        grad = None if self.net.weight.grad is None else self.net.weight.grad.tolist()
        numbers = [self.w.tolist(), self.v.tolist(), self.net.weight.tolist(), grad]
        return log, sorted(self.table), k, numbers, self.opt.param_groups[0]["lr"]


OF_TENSORS: dict[str, Callable[[World, Any], Any]] = {
    "nothing": lambda o, x: None, "in place": lambda o, x: o.w.add_(x), "view": lambda o, x: o.v[1:].mul_(x),
    "step": lambda o, x: o.step(), "gradient": lambda o, x: o.net(o.v * x).sum().backward(),
    "draw": lambda o, x: o.w.copy_(st.rand(1)),
}  # fmt: skip
OF_PYTHON: dict[str, Callable[[World, Any], Any]] = {
    "append": lambda o, x: o.log.append("ahead"), "append a tensor": lambda o, x: o.log.append(x * 2),
    "key": lambda o, x: o.table.__setitem__("k", 1), "attribute": lambda o, x: setattr(o, "k", o.k + 1),
    "tensor in an attribute": lambda o, x: setattr(o, "k", x * 3), "print": lambda o, x: print("ahead"),
    "warn": lambda o, x: warnings.warn("ahead", UserWarning, stacklevel=1),
    "schedule": lambda o, x: (o.step(), o.schedule.step()),
}  # fmt: skip
CALLED: dict[str, Callable[[Any, Any], Any]] = {
    "for a result": lambda note, x: st.host_call(note, st.spec((1,), st.float32), x),
    "for nothing": lambda note, x: (st.host_call(note, None, x), x)[1],
    "twice": lambda note, x: [st.host_call(note, x, x * k) for k in (1, 2)][1],
    "in a loop": lambda note, x: st.fori_loop(0, 2, lambda i, y: st.host_call(note, y, y), x),
    "in a branch": lambda note, x: st.cond(x.sum() > 0, lambda y: st.host_call(note, y, y), lambda y: y, x),
    "caught": lambda note, x: _caught(note, x),
}  # fmt: skip


def _caught(note: Any, x: Any) -> Any:
    try:
        return st.host_call(note, x, x)
    except (ValueError, Stop):
        return x * 7


def _run(compiled: Callable[..., Any], ahead: Any, called: Any, raised: Any, capsys: Any) -> Any:
    st.manual_seed(0)
    o, found = World(), []

    def note(a: Any) -> Any:
        o.log.append(f"called {a}")
        if raised is not None and a[0] >= 3:
            raise raised("three")  # a new one each time: it holds the frames that it passed
        return a * 2

    @compiled
    def f(x: Any) -> Any:
        ahead(o, x)
        y = called(note, x)
        o.log.append("behind")
        o.w.add_(10)
        return y * o.w

    for k in range(6):
        try:
            found.append((f(st.full((1,), float(1 + k % 4))).tolist(), o.seen()))
        except (ValueError, Stop) as error:
            found.append((type(error), o.seen()))
    return found, capsys.readouterr()


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    "way,raised", [("not audited", None), ("audited", Stop), ("not audited", ValueError)],
    ids=["returns", "stops", "raises"],
)  # fmt: skip
@pytest.mark.parametrize("called", CALLED)
@pytest.mark.parametrize("ahead", OF_TENSORS)
def test_what_stands_ahead_of_a_call_back_is_done_when_it_raises(
    ahead: str, called: str, raised: Any, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = _run(lambda f: f, OF_TENSORS[ahead], CALLED[called], raised, capsys)
    assert _run(WAYS[way], OF_TENSORS[ahead], CALLED[called], raised, capsys) == expected


@pytest.mark.parametrize("called", CALLED)
@pytest.mark.parametrize("ahead", OF_PYTHON)
def test_writing_pythons_state_ahead_of_a_call_back_is_refused(
    ahead: str, called: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        with pytest.raises(CaptureError, match="replays write Python's state") as refused:
            _run(st.compile, OF_PYTHON[ahead], CALLED[called], None, capsys)
    assert refused.value.hint and __file__.rpartition("/")[2] in str(refused.value.where[0])
    assert capsys.readouterr() == ("", "")


@each_way
def test_a_call_back_in_a_function_whose_result_carries_gradients_is_made(way: str) -> None:
    def run(compiled: Callable[..., Any]) -> Any:
        w, log = nn.Parameter(st.ones(2)), []  # type: ignore[var-annotated]

        @compiled
        def f(x: Any) -> Any:
            y = (w * x).sum()
            st.host_call(lambda a: log.append(float(a)), None, y)
            return y

        for k in range(4):
            f(st.full((2,), float(k))).backward()
        return log, w.grad.tolist()

    assert run(WAYS[way]) == run(lambda f: f)


@each_way
def test_a_schedule_ahead_of_a_call_back_that_raises_has_stepped_once(way: str) -> None:
    def run(compiled: Callable[..., Any]) -> Any:
        o, found = World(), []

        def note(a: Any) -> None:
            if a[0] == 3:
                raise ValueError

        @compiled
        def f(x: Any) -> Any:
            o.schedule.step()
            o.step()
            st.host_call(note, None, x)
            return x * 1

        for k in range(6):
            try:
                f(st.full((1,), float(k)))
            except ValueError:
                found.append("raised")
            found.append(o.seen())
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert run(WAYS[way]) == run(lambda f: f)
