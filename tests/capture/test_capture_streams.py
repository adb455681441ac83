"""What compiled functions print and warn of goes where it would go uncompiled, or the line is named."""

from __future__ import annotations

import contextlib
import functools
import io
import pathlib
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from capture_ways import WAYS, each_way

import stratal as st
from stratal.base.errors import CaptureError

pytestmark = pytest.mark.filterwarnings("error::stratal.tensor.capture.audit.AuditWarning")


class Written:
    """A stream written in Python, that is no file."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def write(self, text: str) -> int:
        self.texts.append(text)
        return len(text)

    def flush(self) -> None: ...

    def getvalue(self) -> str:
        return "".join(self.texts)


class Stream(io.StringIO):
    """Written in C but for its name."""


STREAMS: dict[str, Callable[[], Any]] = {
    "StringIO": io.StringIO, "a subclass": Stream, "wrapper": lambda: io.TextIOWrapper(io.BytesIO()),
    "Python": Written,
}  # fmt: skip


@contextlib.contextmanager
def _swapped(name: str, out: Any) -> Any:
    before = getattr(sys, name)
    setattr(sys, name, out)
    try:
        yield
    finally:
        setattr(sys, name, before)


@contextlib.contextmanager
def _assigned(name: str, out: Any) -> Any:
    if name == "stdout":
        before, sys.stdout = sys.stdout, out
    else:
        before, sys.stderr = sys.stderr, out
    try:
        yield
    finally:
        if name == "stdout":
            sys.stdout = before
        else:
            sys.stderr = before


REDIRECTED: dict[str, Callable[[str, Any], Any]] = {
    "contextlib": lambda name, out: getattr(contextlib, f"redirect_{name}")(out),
    "setattr": _swapped, "assigned": _assigned,
}  # fmt: skip
SAID: dict[str, Callable[[Any], Any]] = {
    "print": lambda x: print("v", x.shape[0]), "value": lambda x: print(f"v {x.sum()}"),
    "map": lambda x: [*map(print, [x.shape[0]])], "file=None": lambda x: print("v", file=None),
    "partial": lambda x: functools.partial(print, "v")(), "nothing": lambda x: None,
    "warn": lambda x: warnings.warn("v", UserWarning, stacklevel=1),
}  # fmt: skip


def _text(out: Any) -> str:
    if isinstance(out, io.TextIOWrapper):
        out.flush()
        return out.buffer.getvalue().decode()  # type: ignore[attr-defined, no-any-return]
    return str(out.getvalue())


@each_way
@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("how", REDIRECTED)
@pytest.mark.parametrize("name", ["stdout", "stderr"])
@pytest.mark.parametrize("kind", STREAMS)
def test_what_is_said_goes_to_the_stream_that_stands_there(
    kind: str, name: str, how: str, said: str, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(compiled: Callable[..., Any]) -> Any:
        out = STREAMS[kind]()

        @compiled
        def f(x: Any) -> Any:
            print("before")
            with REDIRECTED[how](name, out):
                SAID[said](x)
            print("after")
            return x * 1

        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            found = [f(st.full((1,), float(k))).item() for k in range(5)]
        told = capsys.readouterr()
        return found, _text(out), told.out, told.err

    expected = run(lambda f: f)
    stdout, stderr = sys.stdout, sys.stderr
    try:
        got = run(WAYS[way])
    except CaptureError as error:
        assert kind != "Python" or name == "stderr" or said == "value"  # whose length is asked for
        assert any(pathlib.Path(__file__).name in str(line) for line in error.where) and error.hint
        assert capsys.readouterr() == ("", "") and (sys.stdout, sys.stderr) == (stdout, stderr)
    else:
        assert got == expected


@each_way
@pytest.mark.parametrize("name", ["stdout", "stderr"])
@pytest.mark.parametrize("said", SAID)
def test_what_is_said_into_a_stream_made_inside_is_read_from_it(
    name: str, said: str, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(compiled: Callable[..., Any]) -> Any:
        @compiled
        def f(x: Any) -> Any:
            out = io.StringIO()
            with getattr(contextlib, f"redirect_{name}")(out):
                SAID[said](x)
            return x * 1, out.getvalue()

        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            found = [f(st.full((1,), float(k)))[1] for k in range(4)]
        return found, capsys.readouterr()

    expected = run(lambda f: f)
    try:
        got = run(WAYS[way])
    except CaptureError as error:
        assert error.hint
    else:
        assert got == expected


def test_a_stream_that_a_call_leaves_in_its_place_stays_there() -> None:
    out, before = Written(), sys.stdout

    @st.compile
    def f(x: Any) -> Any:
        sys.stdout = out
        return x * 1

    try:
        for _ in range(3):
            sys.stdout = before
            f(st.ones(1))
            assert sys.stdout is out
    finally:
        sys.stdout = before
    assert isinstance(before, io.TextIOBase)
    with pytest.raises(CaptureError, match="from outside"):
        st.compile(lambda x: (x * 1, sys.stdout))(st.ones(1))
