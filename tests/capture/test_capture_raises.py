"""Compiled functions that raise, whatever it is, have done until then what the uncompiled ones do."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

import stratal as st


class Stop(BaseException):
    """Nothing that `except Exception` catches."""


def _raised(kind: type[BaseException]) -> Callable[[], None]:
    def act() -> None:
        raise kind

    return act


def _from(kind: type[BaseException]) -> Callable[[], None]:
    def act() -> None:
        try:
            raise KeyError
        except KeyError as error:
            raise kind from error

    return act


def _thrown_into_a_generator(kind: type[BaseException]) -> Callable[[], None]:
    def act() -> None:
        def items() -> Any:
            yield 1
            raise kind

        for _ in items():
            pass

    return act


KINDS = (ValueError, Stop, SystemExit, GeneratorExit, KeyboardInterrupt)
WAYS = {"raised": _raised, "from another": _from, "in a generator": _thrown_into_a_generator}
ACTS = {f"{kind.__name__}, {name}": make(kind) for kind in KINDS for name, make in WAYS.items()}
ACTS["sys.exit"] = lambda: sys.exit(3)


@pytest.mark.parametrize("audit", [True, False], ids=["audited", "not audited"])
@pytest.mark.parametrize("varying", [False, True], ids=["fixed", "varying"])
@pytest.mark.parametrize("kind", ACTS)
def test_what_a_function_does_before_it_raises_is_done(kind: str, varying: bool, audit: bool) -> None:
    def run(way: Callable[..., Any]) -> Any:
        w, log, go = st.zeros(1), [], True

        def f(x: Any, k: float) -> Any:
            w.add_(x.sum() * k)
            log.append("seen")
            if not go:
                ACTS[kind]()
            log.append("passed")
            return w * 1

        f = way(f)
        found = []
        for k in range(6):
            go = k in (0, 3)
            try:
                f(st.ones(1 + k * varying), 1.0 + k * varying)
            except BaseException as error:
                found.append((type(error), error.args))
        return w.item(), log, found

    assert run(lambda f: st.compile(f, audit=audit)) == run(lambda f: f)


def test_an_interrupt_while_a_function_is_captured_changes_nothing() -> None:
    log: list[str] = []

    def f(x: Any) -> Any:
        log.append("seen")
        st.frozen(signal.raise_signal, signal.SIGINT)
        return x * 1

    with pytest.raises(KeyboardInterrupt):
        st.compile(f)(st.ones(1))
    assert log == []


def _again(interrupt: Callable[[], None]) -> None:
    try:
        interrupt()
    except KeyboardInterrupt:
        raise


def _by_another(interrupt: Callable[[], None]) -> None:
    try:
        interrupt()
    except KeyboardInterrupt:
        raise SystemExit from None


@pytest.mark.parametrize("passing", [_again, _by_another])
def test_an_interrupt_that_a_function_raises_again_is_not_lost(passing: Callable[..., None]) -> None:
    signals = [1]

    def interrupt() -> None:
        if signals:
            st.frozen(signals.clear)
            st.frozen(signal.raise_signal, signal.SIGINT)

    def f(x: Any) -> Any:
        passing(interrupt)
        return x * 1

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        st.compile(f)(st.ones(1))
