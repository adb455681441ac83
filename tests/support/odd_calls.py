"""Calls with something wrong in them: a call that works,
with an argument or two replaced by what nobody meant."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.surface.draws import Call, Draws
from benchmarks.surface.entries import Entry
from benchmarks.surface.layers import call_of, made_and_called

import stratal as st
from stratal import nn, optim

HUGE = 1 << 40


@dataclass
class Attempt:
    """One call: its text, what to run, and what a twin would be called on (None where there is none)."""

    text: str
    run: Callable[[], Any]
    call: Call | None = None


class Thing:
    """An object of the user's own."""


def tensor(*shape: int, dtype: str = "float32") -> Any:
    return st.tensor(2 * np.random.default_rng(0).standard_normal(shape)).astype(dtype)


TENSORS: list[Callable[[], Any]] = [
    *(lambda s=s: tensor(*s) for s in [(), (1,), (3,), (2, 3), (3, 3), (2, 3, 4), (2, 3, 4, 4), (2, 3, 2, 4,
        4)]),
    *(lambda s=s: st.zeros(s) for s in [(0,), (0, 3), (3, 0), (2, 0, 3), (0, 0)]),
    *(lambda d=d: tensor(3, 3, dtype=d) for d in ("int64", "int8", "uint8", "bool", "float64", "bfloat16",
        "float16",
                                                  "complex64")),
    lambda: tensor(3, dtype="int64"), lambda: tensor(3, dtype="bool"), lambda: st.full((2, 3), float("nan")),
    lambda: st.full((3,), float("inf")), lambda: st.full((3,), 1 << 40), lambda: st.full((3,), -(1 << 62)),
]  # fmt: skip
NUMBERS: list[Any] = [
    0, 1, 2, 3, -1, -2, 7, 1.5, -0.5, 0.0, 1e30, HUGE, -HUGE, 1 << 63, -(1 << 63), 1 << 70, float("nan"),
        float("inf"),
    True, False, 1j, np.float32(2), np.int64(-3),
]  # fmt: skip
OTHERS: list[Any] = [
    None, "", "?", "mean", "reflect", "float32", [], (), (1,), (1, 2), (-1, -1), (0, 1), (2, 2, 2), [1.5],
        [[1, 2], [3]],
    (HUGE,), (1 << 20, 1 << 20), (1 << 70,), {}, {"a": 1}, {1, 2}, Thing(), Thing, len, lambda x: x,
        b"bytes", range(3),
    np.ones(3), np.ones((2, 3), np.int16), np.array("text"), np.array([None, 1]),
        np.datetime64("2020-01-01"), ...,
    slice(1, 2), "cpu", "cuda", [None], ["a", "b"], (None, None),
]  # fmt: skip


def odd(rng: random.Random, like: Any = None) -> Any:
    """Draw a value; half the time of the kind of another value."""
    if isinstance(like, st.Tensor) and rng.random() < 0.75:
        try:
            return bent(rng, like)
        except st.StratalError:  # it was odd already
            return rng.choice(TENSORS)()
    if isinstance(like, (int, float)) and rng.random() < 0.5:
        return rng.choice(NUMBERS)
    pool = rng.choice(("tensors", "numbers", "others"))
    if pool == "tensors":
        return rng.choice(TENSORS)()
    return rng.choice(NUMBERS if pool == "numbers" else OTHERS)


def bent(rng: random.Random, t: Any) -> Any:
    """Return a tensor like another but for its rank, its dtype, its sizes or its values."""
    way = rng.randrange(9)
    if way == 0:
        return t.reshape(1, *t.shape)
    if way == 1 and t.ndim:
        return t[0]
    if way == 2:
        return t.astype(
            rng.choice(("int64", "bool", "float64", "bfloat16", "float16", "complex64", "uint8", "int8"))
        )
    if way == 3 and t.ndim:
        return st.zeros((0, *t.shape[1:]), dtype=t.dtype)
    if way == 4 and t.ndim:
        return st.zeros((*t.shape[:-1], 0), dtype=t.dtype)
    if way == 5 and t.dtype.is_float:
        return st.full(t.shape, rng.choice((float("nan"), float("inf"), -1.0, 0.0)), dtype=t.dtype)
    if way == 6 and t.ndim:
        return st.concat([t, t], axis=-1)
    if way == 7:
        return st.broadcast_to(t, (HUGE, *t.shape))
    return rng.choice(TENSORS)()


def shown(value: Any) -> str:
    """Return a value as a short text."""
    if isinstance(value, st.Tensor):
        return str(value.type)
    if isinstance(value, np.ndarray):
        return f"np {value.dtype}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(shown, value))})"
    return repr(value)[:60] if type(value).__repr__ is not object.__repr__ else type(value).__name__


def written(name: str, call: Call) -> str:
    words = [*map(shown, call.args), *(f"{k}={shown(v)}" for k, v in call.kwargs.items())]
    return f"{name}({', '.join(words)})"


def _keywords(function: Any, given: int) -> list[inspect.Parameter]:
    """Return the optional arguments that so many positional ones leave over."""
    parameters = inspect.signature(function).parameters.values()
    return [
        p for k, p in enumerate(parameters)
        if p.default is not p.empty
        and (p.kind is p.KEYWORD_ONLY or (k >= given and p.kind is not p.POSITIONAL_ONLY))
    ]  # fmt: skip


def spoiled(rng: random.Random, function: Any, call: Call) -> Call:
    """Return a call with one or two arguments replaced, or keywords given odd values."""
    args, kwargs = list(call.args), dict(call.kwargs)
    keywords = _keywords(function, len(args))
    for _ in range(rng.choice((1, 1, 1, 2))):
        if args and (not keywords or rng.random() < 0.65):
            k = rng.randrange(len(args))
            args[k] = odd(rng, args[k])
        elif keywords:
            p = rng.choice(keywords)
            kwargs[p.name] = odd(rng, p.default)
    return Call(tuple(args), kwargs)


def made_up(rng: random.Random, function: Any) -> Call:
    """Return a call of as many arguments as a function takes, each of any kind, tensors more often."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    args: list[Any] = []
    for p in parameters:
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty:
            args.append(rng.choice(TENSORS)() if rng.random() < 0.7 else odd(rng))
        elif p.kind is p.VAR_POSITIONAL:
            args += [
                rng.choice(TENSORS)() if rng.random() < 0.7 else odd(rng) for _ in range(rng.randrange(3))
            ]
    kwargs = {
        p.name: odd(rng, p.default) for p in parameters
        if p.kind is p.KEYWORD_ONLY and (p.default is p.empty or rng.random() < 0.1)
    }  # fmt: skip
    return Call(tuple(args), kwargs)


# -- attempts by family --------------------------------------------------------------------------------------
def attempt(entry: Entry, rng: random.Random) -> Attempt:
    """Draw one odd call of an entry."""
    import odd_models  # which is made of what stands here

    special = {
        "layers": _layer, "optimizers": _optimizer, "schedules": _schedule, "metrics": _metric,
        "distributions": _distribution, "transforms": _transform, "models": odd_models.network,
    } | {"while_loop": odd_models.loop, "host_call": odd_models.host}  # fmt: skip
    return special.get(entry.name, special.get(entry.family, _function))(entry, rng)


def _function(entry: Entry, rng: random.Random) -> Attempt:
    good = call_of(entry, Draws(36, rng.randrange(4)))
    if good is None or rng.random() < 0.3:
        call = made_up(rng, entry.value)
    else:
        call = spoiled(rng, entry.value, good.mapped(st.tensor))
    return Attempt(written(entry.path, call), lambda: call.of(entry.value), call)


def _layer(entry: Entry, rng: random.Random) -> Attempt:
    found = made_and_called(entry, Draws(64, rng.randrange(4)))
    if found is None or rng.random() < 0.3:
        made = made_up(rng, entry.value)
        if found is not None:
            made = Call(made.args, {})
        x = rng.choice(TENSORS)()
        return Attempt(f"{written(entry.path, made)}({shown(x)})", lambda: made.of(entry.value)(x))
    layer, good = found
    good = good.mapped(st.tensor)
    state = layer.state_dict()
    if state and rng.random() < 0.3:
        return _state(entry, layer, dict(state), rng)
    call = spoiled(rng, layer.forward, good)
    if rng.random() < 0.2:
        layer.eval()
    return Attempt(written(f"{entry.path}(...)", call), lambda: call.of(layer))


def _state(entry: Entry, layer: nn.Module, state: dict[str, Any], rng: random.Random) -> Attempt:
    """Load a state with keys missing, unexpected and of other shapes: the error names all of them."""
    wrong = []
    for name in list(state):
        way = rng.randrange(4)
        if way == 0:
            del state[name]
            wrong.append(name)
        elif way == 1:
            state[name] = st.zeros((7, 5, 3))
            wrong.append(name)
        elif way == 2 and rng.random() < 0.1:
            state[name] = rng.choice(OTHERS)
            wrong.append(name)
    if rng.random() < 0.5:
        state["nobody.knows"] = st.ones(2)
        wrong.append("nobody.knows")

    def run() -> Any:
        try:
            layer.load_state_dict(state)
        except st.StratalError as error:
            left_out = [name for name in wrong if name not in str(error)]
            if left_out:
                raise AssertionError(f"the error does not name {left_out}: {error}") from error
            raise
        if wrong:
            raise AssertionError(f"loaded, though {wrong} do not fit")

    return Attempt(f"{entry.path}(...).load_state_dict(wrong in {wrong})", run)


def _optimizer(entry: Entry, rng: random.Random) -> Attempt:
    p = nn.Parameter(tensor(3, 3))
    good = Call(([p],), {})
    call = spoiled(rng, entry.value, good)

    def run() -> Any:
        made = call.of(entry.value)
        (p * p).sum().backward()
        made.step()
        if rng.random() < 0.2:
            made.load_state_dict({"state": {}, "param_groups": odd(rng)})
        return p.detach()

    return Attempt(written(entry.path, call), run)


def _schedule(entry: Entry, rng: random.Random) -> Attempt:
    opt = optim.SGD([nn.Parameter(tensor(3))], lr=0.1, momentum=0.9)
    call = made_up(rng, entry.value)
    call = Call((opt if rng.random() < 0.9 else odd(rng), *call.args[1:]), call.kwargs)

    def run() -> Any:
        made = call.of(entry.value)
        opt.step()
        made.step()

    return Attempt(written(entry.path, call), run)


def _distribution(entry: Entry, rng: random.Random) -> Attempt:
    call = made_up(rng, entry.value)
    x, then = odd(rng, tensor(3)), rng.choice(("log_prob", "sample", "rsample", "entropy", "cdf", "mean"))

    def run() -> Any:
        made = call.of(entry.value)
        if then == "mean" or not isinstance(made, st.distributions.Distribution):
            return getattr(made, "mean", made)
        return getattr(made, then)(*([x] if then in ("log_prob", "cdf") else []))

    return Attempt(f"{written(entry.path, call)}.{then}({shown(x)})", run)


def _metric(entry: Entry, rng: random.Random) -> Attempt:
    good = (
        Call(("multiclass",), {"num_classes": 3})
        if "task" in inspect.signature(entry.value).parameters
        else Call()
    )
    if not inspect.isclass(entry.value):
        call = made_up(rng, entry.value)
        return Attempt(written(entry.path, call), lambda: call.of(entry.value))
    call = good if rng.random() < 0.5 else spoiled(rng, entry.value, good)
    update = made_up(rng, entry.value.update)
    update = Call(update.args[1:], update.kwargs)

    def run() -> Any:
        made = call.of(entry.value)
        made.update(*update.args)
        return made.compute()

    return Attempt(f"{written(entry.path, call)}.{written('update', update)}", run)


def _transform(entry: Entry, rng: random.Random) -> Attempt:
    call = made_up(rng, entry.value)
    functions: list[Any] = [
        lambda x: x * 2,
        lambda x: x.sum(),
        lambda *xs: xs[0],
        lambda x, y: (x, y),
        lambda x: None,
    ]
    first = rng.choice(functions) if rng.random() < 0.8 else odd(rng)
    args = tuple(rng.choice(functions) if k and rng.random() < 0.3 else a for k, a in enumerate(call.args))
    call = Call((first, *args[1:]), call.kwargs)
    x = rng.choice(TENSORS[:20])()

    def run() -> Any:
        made = call.of(entry.value)
        return made(x) if callable(made) else made

    return Attempt(f"{written(entry.path, call)}({shown(x)})", run)
