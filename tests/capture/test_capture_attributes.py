"""Attributes of compiled functions and modules are those of what was compiled, inside and outside."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
from capture_ways import GUARDS_NOTICE, WAYS, each_way

import stratal as st
from stratal import nn

pytestmark = GUARDS_NOTICE


class Called:
    """An object that is called."""

    def __init__(self) -> None:
        self.act: Callable[..., Any] = lambda x: x

    def __call__(self, x: Any) -> Any:
        return self.act(x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act: Callable[..., Any] = lambda x: x

    def forward(self, x: Any) -> Any:
        return self.act(x)


def _function() -> Any:
    def f(x: Any) -> Any:
        return f.act(x)  # type: ignore[attr-defined]

    f.act = lambda x: x  # type: ignore[attr-defined]
    return f


def _wrapped() -> Any:
    inner = _function()

    @functools.wraps(inner)
    def outer(x: Any) -> Any:
        inner.act = outer.act  # type: ignore[attr-defined]
        return inner(x)

    return outer


KINDS: dict[str, Callable[[], Any]] = {
    "function": _function, "wrapped": _wrapped, "object": Called, "module": Net,
    "partial": lambda: functools.partial(lambda owner, x: owner[0].act(x), [None]),
}  # fmt: skip


def _count(o: Any, x: Any) -> Any:
    o.n += 1
    return x * o.n


def _log(o: Any, x: Any) -> Any:
    o.log.append(o.n)
    return x + len(o.log)


def _remember(o: Any, x: Any) -> Any:
    held, o.held = o.held, x * 2
    return x if held is None else held


def _remove(o: Any, x: Any) -> Any:
    if hasattr(o, "extra"):
        del o.extra
        return x
    o.extra = 1
    return -x


def _by_name(o: Any, x: Any) -> Any:
    setattr(o, "n", getattr(o, "n") + 1)  # noqa: B009, B010
    return x * getattr(o, "n", 0)


ACTS = {"count": _count, "log": _log, "remember": _remember, "remove": _remove, "by name": _by_name}


@each_way
@pytest.mark.parametrize("inside", ["what is compiled", "the compiled one"])
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("kind", KINDS)
def test_attributes_are_those_of_what_was_compiled(kind: str, act: str, inside: str, way: str) -> None:
    def run(compiled: Callable[..., Any]) -> Any:
        made = KINDS[kind]()
        f = compiled(made)
        owner = made if inside == "what is compiled" else f
        made.n, made.log, made.held = 0, [], None
        made.act = lambda x: ACTS[act](owner, x)
        if kind == "partial":
            made.args[0][0] = made
        found = []
        for k in range(6):
            if k == 3:
                f.n = 10
            value = f(st.full((1,), float(k + 1))).tolist()
            held = None if f.held is None else f.held.tolist()
            found.append((value, f.n, made.n, list(f.log), held, hasattr(f, "extra"), hasattr(made, "extra")))
        return found

    assert run(WAYS[way]) == run(lambda f: f)


def test_what_a_compiled_function_is_called_and_knows_of_itself_is_its_own() -> None:
    def f(x: Any) -> Any:
        """Say it."""
        return x * 1

    f.n = 1  # type: ignore[attr-defined]
    g = st.compile(f)
    g(st.ones(1))
    assert (g.__name__, g.__doc__, g.__wrapped__, g.captures, g.n) == ("f", "Say it.", f, 1, 1)
    assert g.__defaults__ is None and not hasattr(g, "missing") and not hasattr(f, "captures")
    assert copy.copy(g)(st.ones(1)).item() == copy.deepcopy(g)(st.ones(1)).item() == 1
