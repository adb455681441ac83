"""Kernels to object code, from the cache or assembled beside the decisions that are still taken."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Final, TypeVar

from stratal.base import fallback, faults
from stratal.base.artifact import Executable, KernelObject
from stratal.base.target import Target
from stratal.codegen.assembly import Assembly, compile_all
from stratal.codegen.driver import driver_target, driver_text
from stratal.codegen.module import kernel_module
from stratal.loops.stmt import Kernel
from stratal.plan.caching import CachedKernels
from stratal.plan.stages import in_force, stage
from stratal.runtime.cache import object_cache
from stratal.runtime.loader import load_kernels
from stratal.schedule.draft import Draft

T = TypeVar("T")
DRIVER: Final = "driver"
_drivers: Final[dict[Target, bytes]] = {}


class Generation:
    """The code of one program. A kernel is compiled from when it is scheduled, while others are.

    `num_nodes` says how large a graph it will be. Where stages are written or fed back, each is finished
    before the next begins.
    """

    def __init__(self, target: Target, num_nodes: int = 0) -> None:
        self._target: Final = target
        self._kept: Final = CachedKernels(target)
        self._assembly: Final = Assembly(target)
        self._num_nodes: Final = num_nodes
        self._found: Final[dict[str, KernelObject]] = {}
        self._seen: Final[set[str]] = set()

    def __enter__(self) -> Generation:
        self._with_workers(partial(self._assembly.expect, self._num_nodes))
        if self._target not in _drivers:
            if driver := self._find(DRIVER):
                _drivers[self._target] = driver.code
            else:  # the worker has nothing else to do while the first decisions are taken
                self._with_workers(partial(self._assembly.add, DRIVER, _driver_text(self._target)))
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: BaseException | TracebackType | None) -> None:
        self._assembly.close()

    def add(self, kernel: Kernel) -> None:
        """Have a kernel compiled, unless the cache has it."""
        name = kernel.name
        if in_force() or name in self._seen:
            return
        found = self._find(name)
        if found is not None:
            self._found[name] = found
        else:
            try:
                text = kernel_module(kernel, self._target)
            except Exception as error:  # `finish` meets it again, when there is a stage to report
                if not faults.is_fault(error):
                    raise
                return
            self._with_workers(partial(self._assembly.add, name, text))
        self._seen.add(name)

    def finish(self, draft: Draft) -> tuple[dict[str, KernelObject], int]:
        """Return the code of all kernels of a program, and how many of them the cache had."""
        rest = [name for name in draft.kernels if name not in self._seen]
        self._found.update({name: kept for name in rest if (kept := self._find(name)) is not None})
        texts = {}
        for name in rest:
            if name not in self._found:
                with fallback.part("code generation", draft.made_for.get(name, ())):
                    texts[name] = kernel_module(draft.kernels[name].kernel, self._target)
        for name, text in stage("llvm", texts).items() if in_force() else texts.items():
            self._with_workers(partial(self._assembly.add, name, text))
        codes, refused = self._with_workers(self._assembly.collect)
        for name in draft.kernels:
            if name in refused:
                with fallback.part("object code", draft.made_for.get(name, ())):
                    raise refused[name]
        made = self._kept.keep(codes)
        fallback.settle()
        if DRIVER in made:
            _drivers[self._target] = made.pop(DRIVER).code
        found = {name: self._found[name] for name in draft.kernels if name in self._found}
        return {name: found.get(name) or made[name] for name in draft.kernels}, len(found)

    def _find(self, name: str) -> KernelObject | None:
        return self._kept.find([name]).get(name)

    def _with_workers(self, run: Callable[[], T]) -> T:
        """Do something that needs worker processes; where they fail, without them."""

        def alone() -> T:
            self._assembly.give_up_helpers()
            return run()

        return fallback.incidental("worker processes", run, alone)


def blame(draft: Draft, executable: Executable) -> None:
    """Find the kernels because of which a program does not load: those that do not link by themselves."""
    for symbol, kernel in executable.kernels.items():
        with fallback.part("linking", draft.made_for.get(symbol, ())):
            load_kernels([kernel])
    fallback.settle()


def drop_driver(target: Target) -> None:
    """Forget the native driver for a target, here and in the cache."""
    _drivers.pop(target, None)
    object_cache().drop(CachedKernels(target).key(DRIVER))


def driver_object(target: Target) -> bytes:
    """Return the native driver for a target."""
    if target not in _drivers:
        text = _driver_text(target)
        kept = CachedKernels(target)
        _drivers[target] = kept.code(DRIVER, lambda: _compiled(text, target))
    return _drivers[target]


def _compiled(text: str, target: Target) -> bytes:
    """Return the code of one module, compiled here where the workers fail."""
    run = partial(compile_all, [(DRIVER, text)], target)
    return fallback.incidental("worker processes", run, partial(run, num_workers=0))[DRIVER]


def _driver_text(target: Target) -> str:
    return driver_text(driver_target(target.triple))
