"""Settings: every knob, declared once, read from `STRATAL_*` on import; each also a context manager.

    settings.threads.value            what is in force here
    with settings.threads(2): ...     in force for this thread (or task) until the block ends
    with settings.using(threads=2, verify=True): ...

An unknown `STRATAL_*` name or a value a setting does not take raises SettingError: nothing is ignored.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeVar, final

from stratal.base.byte_sizes import bytes_in
from stratal.base.errors import SettingError
from stratal.base.interrupts import block

T = TypeVar("T")
Origin = Literal["default", "environment", "process", "context"]
PREFIX: Final = "STRATAL_"
TARGET_NAMES: Final = ("host", "avx512", "haswell", "neon", "generic")
MOST_COUNT: Final = 1024  # threads or processes; starting many more takes minutes
_ENVIRONMENT: Final = " in the environment of the process: unset it, or set it otherwise"
OBJECTIVES: Final = ("time", "memory", "utilisation")
MATH: Final = ("exact", "real")
_IN_FORCE: Final[ContextVar[dict[str, Any]]] = ContextVar("stratal_settings", default={})  # noqa: B039 (replaced)
blocks_in_force: Final = _IN_FORCE.get  # what blocks set: the same dict while none begins or ends
_BASE: Final = [object()]  # another one when the environment was read


@final
class Setting(Generic[T]):
    """One knob: `value` is what is in force, `origin` who set it; call it for a context manager.

    One that `shapes` programs decides what is compiled: programs made under another value are others.
    """

    __slots__ = ("_base", "_default", "_parse", "doc", "name", "shapes", "takes")

    def __init__(
        self, name: str, default: Callable[[], T], parse: Callable[[str], T], takes: str, doc: str, *,
        shapes: bool = False,
    ) -> None:  # fmt: skip
        self.name: Final = name
        self.shapes: Final = shapes
        self.doc: Final = doc
        self.takes: Final = takes
        self._default: Final = default
        self._parse: Final = parse
        self._base: tuple[T, Origin] | None = None

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return PREFIX + self.name.upper()

    @property
    def value(self) -> T:
        now = _IN_FORCE.get()
        return now[self.name] if self.name in now else self._settled()[0]

    @property
    def origin(self) -> Origin:
        return "context" if self.name in _IN_FORCE.get() else self._settled()[1]

    def _settled(self) -> tuple[T, Origin]:
        if self._base is not None:
            return self._base
        settled: tuple[T, Origin] = (self._default(), "default")
        self._base = settled
        return settled

    def parse(self, text: str, source: str = "") -> T:
        """Return the value a text stands for. Raises: SettingError saying what the setting takes, and where
        the text came from.
        """
        try:
            return self._parse(text.strip())
        except ValueError:
            raise SettingError(f"{self.variable}: takes {self.takes}", got=repr(text) + source) from None

    def check(self, value: object) -> T:
        """Return a value given from Python, checked as its text would be."""
        return self.parse(as_text(value), f" for settings.{self.name}")

    def assign(self, value: T) -> None:
        """Set the value for the whole process; blocks that set it go on as they are."""
        self._base = (self.check(value), "process")
        _BASE[0] = object()

    def __call__(self, value: T) -> AbstractContextManager[object]:
        return _during(self.name, self.check(value))

    def __repr__(self) -> str:
        return f"{self.name} = {self.value} ({self.origin})"


def as_text(value: object) -> str:
    """Return a value as an environment variable would spell it."""
    if value is None:
        return "off"
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)


def _count(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = int(text)
        if not low <= number <= MOST_COUNT:
            raise ValueError
        return number

    return parse


def _seed(text: str) -> int:
    number = int(text, 0)
    if not 0 <= number < 1 << 64:
        raise ValueError
    return number


def _flag(text: str) -> bool:
    if text.lower() in ("1", "on", "true", "yes"):
        return True
    if text.lower() in ("0", "off", "false", "no"):
        return False
    raise ValueError


def _path(text: str) -> Path | None:
    if not text or "\0" in text:
        raise ValueError
    return None if text.lower() == "off" else Path(text).expanduser().absolute()


def _one_of(names: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError
        return text

    return parse


def _records(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError
    return text if text in ("auto", "off") else str(Path(text).expanduser().absolute())


def _cores() -> int:
    """Return how many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return min(max(1, len(os.sched_getaffinity(0))), MOST_COUNT)
    return min(os.cpu_count() or 1, MOST_COUNT)


def _user_cache() -> Path | None:
    root = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(root) if root else Path.home() / ".cache").absolute() / "stratal"
    except RuntimeError:  # no home directory: run without a cache rather than not at all
        return None


def _budget(text: str) -> int | None:
    if text.lower() == "off":
        return None
    nbytes = bytes_in(text)
    if not nbytes:
        raise ValueError
    return nbytes


def _online(text: str) -> int | str | None:
    return text if text == "auto" else _budget(text)


_FLAG = "1 or 0"
_PATH = "a directory, or off"
threads = Setting("threads", _cores, _count(1), f"a whole number from 1 to {MOST_COUNT}",
                  "threads a program runs on; the caller is one of them", shapes=True)  # fmt: skip
target = Setting("target", lambda: "host", _one_of(TARGET_NAMES), "one of " + ", ".join(TARGET_NAMES),
                 "the machine to generate code for", shapes=True)  # fmt: skip
cache_dir: Setting[Path | None] = Setting(
    "cache_dir", _user_cache, _path, _PATH, "where compiled kernels and programs are kept between runs"
)
cache_limit = Setting("cache_limit", lambda: 1 << 30, bytes_in, "a size such as 512MB or 1GiB",
                      "bytes the cache may hold before the entries unused longest go")  # fmt: skip
compile_workers = Setting("compile_workers", _cores, _count(0), f"a whole number from 0 to {MOST_COUNT}",
                          "processes that compile kernels; 0 compiles in the calling one")  # fmt: skip
compile_timeout = Setting("compile_timeout", lambda: 60, _count(1), f"a whole number from 1 to {MOST_COUNT}",
                          "seconds of silence, more for a large kernel, after which a compiling process is "
                          "replaced")  # fmt: skip
winograd = Setting("winograd", lambda: True, _flag, _FLAG, "let float32 convolutions use Winograd's "
                   "algorithm: faster, with about three times the rounding error", shapes=True)  # fmt: skip
math = Setting("math", lambda: "exact", _one_of(MATH), "one of " + ", ".join(MATH), "which rewrites are "
               "made: those to the bit, or all equal over the real numbers", shapes=True)  # fmt: skip
tuning = Setting("tuning", lambda: "auto", _records, "auto, off or a file", "tuning records that decide "
                 "schedules; auto: tuning.json in the cache directory", shapes=True)  # fmt: skip
objective = Setting("objective", lambda: "time", _one_of(OBJECTIVES), "one of " + ", ".join(OBJECTIVES),
                    "what tuning optimises, and whose records decide", shapes=True)  # fmt: skip
memory: Setting[int | None] = Setting(
    "memory", lambda: None, _budget, "a size such as 512MB or 8GiB, or off",
    "bytes that the plan of a program may need, in all", shapes=True,
)  # fmt: skip
offload_dir: Setting[Path | None] = Setting(
    "offload_dir", lambda: None, _path, _PATH,
    "where states of a program with a memory budget may wait, in a file", shapes=True,
)  # fmt: skip
micro_batches = Setting("micro_batches", lambda: False, _flag, _FLAG, "let a memory budget split batches: "
                        "sums over a batch then round otherwise", shapes=True)  # fmt: skip
online: Setting[int | str | None] = Setting(
    "online", lambda: "auto", _online, "auto, off or a size such as 16MiB",
    "bytes from which on scores are computed in blocks, not stored: sums then round otherwise; auto: 16MiB "
    "where math is real", shapes=True,
)  # fmt: skip
seed = Setting(
    "seed", lambda: 0, _seed, "a whole number from 0, below 2**64", "seed of the default random key"
)
verify = Setting("verify", lambda: False, _flag, _FLAG, "run the verifiers after every pass of the compiler")
strict = Setting("strict", lambda: False, _flag, _FLAG, "raise where a pass or a kernel fails, rather than "
                 "compile that part with less ambition and warn")  # fmt: skip
dump: Setting[Path | None] = Setting(
    "dump", lambda: None, _path, _PATH, "write every stage of every compilation here, as numbered text files"
)
override: Setting[Path | None] = Setting(
    "override", lambda: None, _path, _PATH, "read edited stages from here in place of the compiler's own"
)

SETTINGS: Final[Mapping[str, Setting[Any]]] = {
    s.name: s for s in tuple(globals().values()) if isinstance(s, Setting)
}
SHAPING: Final[tuple[Setting[Any], ...]] = tuple(s for s in SETTINGS.values() if s.shapes)


def shaping() -> dict[str, Any]:
    """Return what shapes programs here and now, by name: `using(**shaping())` puts it in force again."""
    return {s.name: s.value for s in SHAPING}


def named(name: str) -> Setting[Any]:
    """Return a setting by name. Raises: SettingError with the nearest name."""
    if name not in SETTINGS:
        raise SettingError(
            "settings: there is no such setting", got=repr(name), hint=_nearest(name, SETTINGS)
        )
    return SETTINGS[name]


@block
def _during(name: str, value: object) -> Generator[None]:
    before = _IN_FORCE.get()
    inside = {**before, name: value}
    try:
        _IN_FORCE.set(inside)
        yield
    finally:
        try:
            now = _IN_FORCE.get()
            if now is not inside:  # a block that began later goes on: what it set stays
                outer = {name: before[name]} if name in before else {}
                before = {k: v for k, v in now.items() if k != name} | outer
        finally:
            _IN_FORCE.set(before)


def together(*chosen: Setting[Any]) -> Callable[[], tuple[Any, ...]]:
    """Return what reads several settings at once, for the price of none while none changes."""
    known: list[tuple[object, object, tuple[Any, ...]]] = [(None, None, ())]

    def values() -> tuple[Any, ...]:
        now, base, held = _IN_FORCE.get(), _BASE[0], known[0]
        if held[0] is not now or held[1] is not base:
            held = known[0] = now, base, tuple([setting.value for setting in chosen])
        return held[2]

    return values


@block
def using(**values: object) -> Generator[None]:
    """Put several settings in force for a block, by name."""
    if not values:
        yield
        return
    name, value = values.popitem()
    with named(name)(value), using(**values):
        yield


def _nearest(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else "one of " + ", ".join(sorted(names))


def read(environment: Mapping[str, str]) -> None:
    """Take every setting's value from an environment; what it does not name goes back to its default.

    Raises: SettingError for an unknown `STRATAL_*` name (with the nearest known one) or a bad value.
    """
    by_variable = {s.variable: s for s in SETTINGS.values()}
    found: dict[str, Any] = {}
    for variable, text in environment.items():
        if not variable.startswith(PREFIX):
            continue
        if variable not in by_variable:
            raise SettingError(
                "settings: no setting reads this environment variable",
                got=f"{variable}={text}{_ENVIRONMENT}",
                hint=_nearest(variable, by_variable),
            )
        setting = by_variable[variable]
        found[setting.name] = setting.parse(text, _ENVIRONMENT)
    for setting in SETTINGS.values():
        setting._base = (found[setting.name], "environment") if setting.name in found else None
    _BASE[0] = object()


read(os.environ)
