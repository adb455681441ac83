"""Fallbacks: what fails in the compiler is compiled again with less ambition, and noted.

    @skippable(otherwise)              a pass that may be left out: `otherwise` gives what then goes on
    optional(stage, run, otherwise)    the same for a step that is no function of its own
    incidental(stage, run, otherwise)  the same where the program comes out the same: the cache, workers
    with part(stage, nodes): ...       the kernel of some nodes: a failure takes them one level down `LEVELS`
    settle()                           where parts have failed, begin again: they are now on other levels

They act while a compilation runs under `Fallbacks.attempts`. Elsewhere, and with STRATAL_STRICT=1, a failure
is raised; so is always what is no fault of the compiler (`base.faults`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial, update_wrapper
from typing import Any, Final, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

from stratal.base.errors import StratalError
from stratal.base.faults import brief, innermost, is_fault
from stratal.base.source import SourceLine, during

T = TypeVar("T")
P = ParamSpec("P")
LEVELS: Final = ("fused", "unfused", "in scalar loops", "by its reference on the host")
FUSED, UNFUSED, SCALAR, HOST = range(len(LEVELS))
MOST_ATTEMPTS: Final = 8  # from then on, what fails runs on the host


class Part(Protocol):
    """A node of a graph: its kernel may be made on another level than those of other nodes."""

    @property
    def where(self) -> tuple[SourceLine, ...]: ...


class Failure(NamedTuple):
    """One failure of the compiler: the pass or the step it failed in, the error, the user's line."""

    stage: str
    error: str
    where: tuple[SourceLine, ...] = ()


class _Again(Exception):
    """Parts have failed: what was made is not whole."""


class Fallbacks:
    """The failures of one compilation, and the level on which each node is compiled because of them."""

    def __init__(self, *, allowed: bool) -> None:
        self.failures: Final[list[Failure]] = []  # each different one once
        self.lasting: Final[set[Failure]] = set()  # of them, those that left their mark on the program
        self.floor = FUSED  # no node is above this level
        self.whole: Failure | None = None  # why
        self.cause: Final[dict[Part, Failure]] = {}  # what failed first, by node
        self.allowed: Final = allowed
        self._levels: Final[dict[Part, int]] = {}
        self._noted: list[Failure] = []  # every time, in order
        self._attempts = 0
        self._failed: Final[set[Part]] = set()  # in this attempt

    def active(self) -> AbstractContextManager[Fallbacks]:
        """Let what fails in this block fall back, unless it must be raised."""
        return during(_CURRENT, self if self.allowed else _NONE_ALLOWED)

    def attempts(self, build: Callable[[], T]) -> T:
        """Return what `build` makes, tried with less and less ambition; what fails on the host is raised."""
        while True:
            self._lower_failed()
            self._attempts += 1
            try:
                made = build()
                self.settle()
            except _Again:
                if self._attempts >= 2 * MOST_ATTEMPTS:  # other parts fail each time
                    self.whole, self.floor = self.whole or self.failures[-1], HOST
            except Exception as error:
                if self._failed and is_fault(error):  # it met what is missing of parts that failed
                    continue
                if not self.allowed or self.floor == HOST or not is_fault(error):
                    raise
                known = next((f for f in self.failures if f.error == brief(error)), None)
                self.whole = self.whole or known or self.note(f"compilation, in {innermost(error)},", error)
                self.lasting.add(self.whole)
                self.floor += 1
            else:
                return made

    def level(self, node: Part) -> int:
        """Return on which of `LEVELS` a node is compiled."""
        return max(self.floor, self._levels.get(node, FUSED))

    def lowered(self) -> list[Part]:
        """Return the nodes that failures took below the first level."""
        return list(self._levels)

    def note(
        self, stage: str, error: Exception, where: Sequence[SourceLine] = (), *, lasting: bool = True
    ) -> Failure:
        """Take note of a failure. One that is not `lasting` leaves the program as it would have been."""
        known = error.where if isinstance(error, StratalError) else ()
        failure = Failure(stage, brief(error), tuple(where) or known)
        whole = self.whole if self.whole is not None and self.whole.error == failure.error else None
        same = whole or next((f for f in self.failures if f[:2] == failure[:2]), None)
        if same is None:
            self.failures.append(same := failure)
        if lasting:
            self.lasting.add(same)
            self._noted.append(same)
        return same

    def noted_since(self, count: int = 0) -> list[Failure]:
        """Return what failures were noted after so many, those of passes that leave no mark left out."""
        return self._noted[count:]

    def fail(self, cause: Failure, nodes: Iterable[Part]) -> None:
        """Take nodes one level down, from the next attempt on."""
        for node in nodes:
            self.cause.setdefault(node, cause)
            self._failed.add(node)

    def _lower_failed(self) -> None:
        for node in self._failed:
            self._levels[node] = HOST if self._attempts >= MOST_ATTEMPTS else min(self.level(node) + 1, HOST)
        self._failed.clear()

    def settle(self) -> None:
        """Begin again where parts have failed."""
        if self._failed:
            raise _Again


_NONE_ALLOWED: Final = Fallbacks(allowed=False)  # nothing is ever noted there
_CURRENT: ContextVar[Fallbacks] = ContextVar("stratal_fallbacks", default=_NONE_ALLOWED)


def optional(
    stage: str, run: Callable[[], T], otherwise: Callable[[], T], *, where: Sequence[SourceLine] = (),
    lasting: bool = True
) -> T:
    """Return what a step makes; where it fails, what goes on without it."""
    try:
        return run()
    except Exception as error:
        here = _CURRENT.get()
        if not here.allowed or not is_fault(error):
            raise
        here.note(stage, error, where, lasting=lasting)
    return otherwise()


def incidental(stage: str, run: Callable[[], T], otherwise: Callable[[], T]) -> T:
    """Return what a step makes whose failure leaves no mark on the program, such as reading the cache."""
    return optional(stage, run, otherwise, lasting=False)


PASSES: Final[dict[str, Pass[..., Any]]] = {}


class Pass(Generic[P, T]):
    """A pass that may be left out; `otherwise` takes its arguments and gives what goes on without it."""

    def __init__(self, run: Callable[P, T], otherwise: Callable[P, T]) -> None:
        update_wrapper(self, run)
        self.run = run
        self.otherwise: Final = otherwise
        self.name: Final = run.__name__
        PASSES[self.name] = self

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        run, otherwise = partial(self.run, *args, **kwargs), partial(self.otherwise, *args, **kwargs)
        return optional(f"pass {self.name}", run, otherwise)


def skippable(otherwise: Callable[..., Any]) -> Callable[[Callable[P, T]], Pass[P, T]]:
    """Declare that a pass may be left out, and what goes on without it, made of its arguments."""
    return lambda run: Pass(run, otherwise)


def unchanged(value: T, *_: object, **__: object) -> T:
    """Return the first argument: what goes on without a pass that rewrites it."""
    return value


@contextmanager
def part(stage: str, nodes: Iterable[Part]) -> Iterator[None]:
    """Make the kernel of some nodes; where that fails they go one level down, and the block ends.

    A failure that was noted in the block is what made it fail.
    """
    here = _CURRENT.get()
    before = len(here.noted_since())
    try:
        yield
    except Exception as error:
        nodes = list(nodes)
        if not here.allowed or not is_fault(error) or not nodes or all(here.level(n) == HOST for n in nodes):
            raise
        noted = here.noted_since(before)
        here.fail(noted[0] if noted else here.note(stage, error, lines(nodes)), nodes)


def lines(nodes: Iterable[Part]) -> tuple[SourceLine, ...]:
    """Return the user's lines that nodes come from."""
    return tuple(dict.fromkeys(line for node in nodes for line in node.where))


def level(node: Part) -> int:
    """Return on which of `LEVELS` a node is compiled here."""
    return _CURRENT.get().level(node)


def scalar(nodes: Iterable[Part]) -> bool:
    """Return whether the kernel of some nodes is made of scalar loops here."""
    return any(level(node) >= SCALAR for node in nodes)


def floor() -> int:
    """Return the level that no node is above here."""
    return _CURRENT.get().floor


def below_fused() -> frozenset[Part]:
    """Return the nodes that failures took below the first level."""
    return frozenset(_CURRENT.get().lowered())


def reason(node: Part) -> str:
    """Return why a node is on its level; empty where nothing failed."""
    here = _CURRENT.get()
    cause = here.cause.get(node, here.whole)
    return "" if cause is None else f"{cause.stage} failed: {cause.error}"


def settle() -> None:
    """Begin again where parts have failed."""
    _CURRENT.get().settle()
