"""Targets: what the compiler knows about a machine, as data.

Passes and code generation differ between machines by these fields only. Peaks and bandwidths are nominal
figures of the class, never timed here: default plans rest on them, so they must not change from run to run.
`stratal doctor` prints them beside what it measures.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from stratal.base.cost import Cost

Bound = Literal["compute", "memory", "latency"]
ByteDots = Literal["vnni", "pairs", "arithmetic"]
"""Ways to sum four products of bytes: one instruction of VNNI, two of x86 that multiply pairs of 16-bit
integers, or product by product."""


class Instructions(NamedTuple):
    """Instructions that some machines have and that must be asked for by name."""

    byte_dots: ByteDots = "arithmetic"
    bfloat16_dots: bool = False  # adds up pairs of products of bfloat16
    scaling: bool = False  # multiplies float vectors of 512 bits by powers of two
    picked_lanes: int = 0  # lanes of the widest 32-bit vector that is picked from by indices: 8, 16 or none


PLAIN: Final = Instructions()
LAUNCH_SECONDS: Final = 0.2e-6  # one parallel region over the claim pool, quiet machine


class Estimate(NamedTuple):
    """A roofline estimate; `bound` names the larger part."""

    seconds: float
    compute_seconds: float
    memory_seconds: float
    bound: Bound


@dataclass(frozen=True, slots=True)
class Target:
    """A machine to compile for. Sizes in bytes and bits, rates per core unless they say otherwise."""

    name: str
    arch: Literal["x86_64", "aarch64", "other"]
    triple: str
    cpu: str  # as LLVM calls it
    features: str  # LLVM's `+a,-b` list, beyond what `cpu` implies
    requires: tuple[str, ...]  # features by which a host is of this class
    vector_bits: int
    num_vector_registers: int
    fma: bool
    masks: bool  # loads, stores and arithmetic under a lane mask cost no more than plain ones
    l1d_bytes: int
    l2_bytes: int  # of one core
    l3_bytes: int  # shared
    cacheline_bytes: int
    flops_per_cycle: int  # float32, a multiply-add counted as two
    ghz: float
    cache_gbps: float  # from L2
    core_gbps: float  # from memory, one core alone
    memory_gbps: float  # from memory, all cores together
    wait: Literal["pause", "yield"]  # the instruction of a spin loop

    def lanes(self, itemsize: int) -> int:
        """Return how many elements of `itemsize` bytes one register holds."""
        return max(1, self.vector_bits // (8 * itemsize))

    def has(self, feature: str) -> bool:
        """Return whether the feature list names `feature` as present; what `cpu` implies is not looked up."""
        return f"+{feature}" in self.features.split(",")

    def runs_on(self, arch: str, features: str) -> bool:
        """Return whether a machine with such a feature list has all that this class requires."""
        return self.arch == arch and not self.lacking(features)

    def lacking(self, features: str) -> list[str]:
        """Return which of the features that this class requires are not in a machine's feature list."""
        present = set(features.split(","))
        return [f for f in self.requires if f"+{f}" not in present]

    @property
    def byte_dots(self) -> ByteDots:
        """How the machine sums four products of bytes; see `ByteDots`."""
        if self.arch != "x86_64":
            return "arithmetic"
        if self.has("avx512vnni") or (self.has("avxvnni") and self.vector_bits == 256):
            return "vnni"
        return "pairs"

    @property
    def instructions(self) -> Instructions:
        """What the machine has beyond what every machine has."""
        wide = self.arch == "x86_64" and self.vector_bits == 512
        picked = self.lanes(4) if self.arch == "x86_64" and self.vector_bits >= 256 else 0
        return Instructions(self.byte_dots, wide and self.has("avx512bf16"), wide, picked)

    @property
    def function_attributes(self) -> tuple[tuple[str, str], ...]:
        """LLVM function attributes every kernel carries.

        x86 models that prefer 256-bit vectors split wider ones unless both widths are stated: 3x slower.
        Narrower targets have nothing to split and state none.
        """
        if self.arch != "x86_64" or self.vector_bits < 512:
            return ()
        width = str(self.vector_bits)
        return (("min-legal-vector-width", width), ("prefer-vector-width", width))

    @property
    def digest(self) -> str:
        """A hash of every field, for cache keys."""
        return hashlib.blake2b(json.dumps(self.to_json()).encode(), digest_size=12).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return dataclasses.asdict(self)

    def peak_flops(self, threads: int = 1) -> float:
        """Return float32 operations per second."""
        return self.flops_per_cycle * self.ghz * 1e9 * threads

    def bandwidth(self, working_set_bytes: float, threads: int = 1) -> float:
        """Return bytes per second: from L2 while half of it holds the working set, else from memory."""
        if working_set_bytes <= self.l2_bytes * threads / 2:
            return self.cache_gbps * 1e9 * threads
        return min(self.core_gbps * threads, max(self.memory_gbps, self.core_gbps)) * 1e9

    def estimate(self, cost: Cost, threads: int = 1) -> Estimate:
        """Estimate a kernel by the roofline of its work and its bytes, plus one launch."""
        compute = cost.flops / self.peak_flops(threads)
        memory = cost.bytes / self.bandwidth(cost.bytes, threads)
        work = max(compute, memory)
        bound: Bound = "latency" if work < LAUNCH_SECONDS else "compute" if compute >= memory else "memory"
        return Estimate(LAUNCH_SECONDS + work, compute, memory, bound)

    def seconds(self, cost: Cost, threads: int = 1) -> float:
        """Return the estimated time of a kernel."""
        return self.estimate(cost, threads).seconds


_LINUX_X86: Final = "x86_64-unknown-linux-gnu"
_KIB: Final = 1 << 10
_MIB: Final = 1 << 20

TARGETS: Final[dict[str, Target]] = {
    t.name: t
    for t in (
        Target(
            name="avx512", arch="x86_64", triple=_LINUX_X86, cpu="x86-64-v4", features="",
            requires=("avx512f", "avx512bw", "avx512dq", "avx512vl"),
            vector_bits=512, num_vector_registers=32, fma=True, masks=True,
            l1d_bytes=32 * _KIB, l2_bytes=_MIB, l3_bytes=32 * _MIB, cacheline_bytes=64,
            flops_per_cycle=32, ghz=3.5, cache_gbps=110, core_gbps=24, memory_gbps=34, wait="pause",
        ),
        Target(
            name="haswell", arch="x86_64", triple=_LINUX_X86, cpu="haswell", features="",
            requires=("avx2", "fma"),
            vector_bits=256, num_vector_registers=16, fma=True, masks=False,
            l1d_bytes=32 * _KIB, l2_bytes=256 * _KIB, l3_bytes=8 * _MIB, cacheline_bytes=64,
            flops_per_cycle=32, ghz=3.5, cache_gbps=80, core_gbps=18, memory_gbps=30, wait="pause",
        ),
        Target(
            name="neon", arch="aarch64", triple="aarch64-unknown-linux-gnu", cpu="neoverse-n1", features="",
            requires=(),
            vector_bits=128, num_vector_registers=32, fma=True, masks=False,
            l1d_bytes=64 * _KIB, l2_bytes=_MIB, l3_bytes=32 * _MIB, cacheline_bytes=64,
            flops_per_cycle=16, ghz=2.5, cache_gbps=60, core_gbps=20, memory_gbps=80, wait="yield",
        ),
        Target(
            name="generic", arch="x86_64", triple=_LINUX_X86, cpu="x86-64", features="",
            requires=(),
            vector_bits=128, num_vector_registers=16, fma=False, masks=False,
            l1d_bytes=32 * _KIB, l2_bytes=256 * _KIB, l3_bytes=4 * _MIB, cacheline_bytes=64,
            flops_per_cycle=8, ghz=3.0, cache_gbps=40, core_gbps=12, memory_gbps=20, wait="pause",
        ),
    )
}  # fmt: skip
"""Classes of machines by name; `plan.host` narrows one down to the machine at hand."""


def class_of(arch: str, features: str) -> Target:
    """Return the class of machines that requires the most of what a machine with such a feature list has.

    Architectures without a class count as `generic`.
    """
    fitting = [t for t in TARGETS.values() if t.runs_on(arch, features)]
    return max(fitting, key=lambda t: len(t.requires), default=TARGETS["generic"])


def host_arch() -> Literal["x86_64", "aarch64", "other"]:
    """Return the architecture of this machine."""
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        return "x86_64"
    return "aarch64" if machine in ("aarch64", "arm64") else "other"


def memory_bytes() -> int:
    """Return the size of this machine's memory, 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
