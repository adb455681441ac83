"""The systems that are compared: which module of this folder runs each, and in which environment.

A system's module has `build(task, variant, model_file) -> Job`; importing it imports the library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

# Keep freed memory in the process instead of returning it to the system after every op: what is allocated
# anew in every step would be cleared page by page again. Two to four times faster for those that allocate so.
KEEP_FREED = {
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "67108864",
}


TRAINED = ("train", "mixed")  # suites of training steps


class Job(NamedTuple):
    """A task in one system: `call` returns when the result is there; `outputs` gives it as arrays."""

    call: Callable[[], Any]
    outputs: Callable[[Any], list[np.ndarray[Any, Any]]]


class UnsupportedError(Exception):
    """A system has no way to run a task; says why."""


@dataclass(frozen=True)
class System:
    """A system under test. `{threads}` and `{cache}` in its environment are filled in."""

    name: str
    module: str
    library: str  # the package that must be there
    caches: bool  # keeps what it compiled on disk, if told where
    environment: Mapping[str, str] = field(default_factory=dict)
    image_variants: tuple[str, ...] = ("",)  # the faster one is measured
    variant_suites: tuple[str, ...] = ("train", "mixed", "forward", "kernels")  # where variants differ
    suites: tuple[str, ...] = ("train", "mixed", "forward", "kernels")
    slow_to_compile: bool = False  # a cold first call is measured once and kept with the cache
    needs_export: bool = False  # runs a model file that PyTorch writes


_THREADS = {"OMP_NUM_THREADS": "{threads}", "MKL_NUM_THREADS": "{threads}"}
_FORMATS = ("channels_last", "contiguous")

_STRATAL = System("stratal", "stratal_compiled", "stratal", True,
                  {"STRATAL_THREADS": "{threads}", "STRATAL_CACHE_DIR": "{cache}"},
                  _FORMATS, variant_suites=("kernels",))  # fmt: skip
BEFORE = "before"  # Stratal at another commit, as an interpreter of its own has it installed

SYSTEMS: dict[str, System] = {
    s.name: s
    for s in (
        _STRATAL,
        replace(_STRATAL, name=BEFORE),
        System("torch", "torch_eager", "torch", False, {**_THREADS, **KEEP_FREED}, _FORMATS),
        System("torch_compile", "torch_compiled", "torch", True,
               {**_THREADS, **KEEP_FREED, "TORCHINDUCTOR_CACHE_DIR": "{cache}",
                "TORCHINDUCTOR_FX_GRAPH_CACHE": "1", "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
                "TORCHINDUCTOR_COMPILE_THREADS": "{threads}"},
               _FORMATS, slow_to_compile=True),
        System("jax", "jax_jit", "jax", True,
               {**_THREADS, **KEEP_FREED, "JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": "{cache}",
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=true"}),
        System("onnxruntime", "onnx_runtime", "onnxruntime", False, {**_THREADS, **KEEP_FREED},
               suites=("forward",), needs_export=True),
        System("openvino", "openvino_cpu", "openvino", True,
               {**_THREADS, **KEEP_FREED, "OPENVINO_CACHE": "{cache}"},
               suites=("forward",), needs_export=True),
        System("numpy", "numpy_blas", "numpy", False, {**_THREADS, "OPENBLAS_NUM_THREADS": "{threads}"},
               suites=("kernels",)),
    )
}  # fmt: skip
