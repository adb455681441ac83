"""Kernels to object code, from the cache or assembled beside the decisions that are still taken."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Final

from stratal.base.artifact import KernelObject
from stratal.base.target import Target
from stratal.codegen.assembly import Assembly, compile_all
from stratal.codegen.driver import driver_target, driver_text
from stratal.codegen.module import kernel_module
from stratal.loops.stmt import Kernel
from stratal.plan.kept import KeptKernels
from stratal.plan.stages import in_force, stage
from stratal.schedule.result import Scheduled

DRIVER: Final = "driver"
_drivers: Final[dict[Target, bytes]] = {}


class Generation:
    """The code of one program. A kernel is compiled from when it is scheduled, while others are.

    `num_nodes` says how large a graph it will be. Where stages are written or fed back, each is finished
    before the next begins.
    """

    def __init__(self, target: Target, num_nodes: int = 0) -> None:
        self._target: Final = target
        self._kept: Final = KeptKernels(target)
        self._assembly: Final = Assembly(target)
        self._num_nodes: Final = num_nodes
        self._found: Final[dict[str, KernelObject]] = {}
        self._seen: Final[set[str]] = set()

    def __enter__(self) -> Generation:
        self._assembly.expect(self._num_nodes)
        if self._target not in _drivers:
            if kept := self._kept.find([DRIVER]):
                _drivers[self._target] = kept[DRIVER].code
            else:  # the worker has nothing else to do while the first decisions are taken
                self._assembly.add(DRIVER, _driver_text(self._target))
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: BaseException | TracebackType | None) -> None:
        self._assembly.close()

    def add(self, kernel: Kernel) -> None:
        """Have a kernel compiled, unless the cache has it."""
        if in_force() or kernel.name in self._seen:
            return
        found = self._kept.find([kernel.name])
        self._found.update(found)
        if not found:
            try:
                text = kernel_module(kernel, self._target)
            except Exception:  # `finish` meets it again, when there is a stage to report
                return
            self._assembly.add(kernel.name, text)
        self._seen.add(kernel.name)

    def finish(self, kernels: Mapping[str, Scheduled]) -> tuple[dict[str, KernelObject], int]:
        """Return the code of all kernels of the program, and how many of them the cache had."""
        rest = [name for name in kernels if name not in self._seen]
        self._found.update(self._kept.find(rest))
        rest = [name for name in rest if name not in self._found]
        texts = {name: kernel_module(kernels[name].kernel, self._target) for name in rest}
        for name, text in stage("llvm", texts).items() if in_force() else texts.items():
            self._assembly.add(name, text)
        codes = self._assembly.finish()
        made = self._kept.keep(codes)
        if DRIVER in made:
            _drivers[self._target] = made.pop(DRIVER).code
        found = {name: self._found[name] for name in kernels if name in self._found}
        return {name: found.get(name) or made[name] for name in kernels}, len(found)


def driver_object(target: Target) -> bytes:
    """Return the native driver for a target."""
    if target not in _drivers:
        made = {DRIVER: _driver_text(target)}
        kept = KeptKernels(target)
        _drivers[target] = kept.code(DRIVER, lambda: compile_all(made.items(), target)[DRIVER])
    return _drivers[target]


def _driver_text(target: Target) -> str:
    return driver_text(driver_target(target.triple))
