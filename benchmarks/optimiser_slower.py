"""Never slower: programs with `math="real"` beside what was written, and verdicts on what loses.

Every program that runs in a training step, a network forward, an example or a random network is compiled in
both arithmetics, and both take turns on the same inputs. Where the search changed nothing the ratio is 1.
One above the gate is timed again, longer. If it stays there, its rewrites are dropped and logged: each is
timed beside what was written, as `stratal tune --graph` does, and its verdict kept as a record; what is then
still slower loses as a whole. The ratio that counts is that of the program compiled with these records.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.inference import joiners
from benchmarks.models import WORKLOADS
from benchmarks.optimiser_networks import NETWORKS, TOLERANCE
from benchmarks.optimiser_rows import Row, row
from benchmarks.price import step_of
from benchmarks.structure import draw

GATE: Final = 1.02
ROUND_S: Final = 2e-3  # of runs of one program in one turn
AGAIN: Final = 3  # times as many rounds, before a verdict
LIMIT_S: Final = 20.0  # that timing one rewrite may take
ATTEMPTS: Final = 6
RANDOM: Final = 100
EXAMPLES: Final = Path(__file__).resolve().parents[1] / "examples"


class Recorded(NamedTuple):
    """A graph that ran, with copies of what it was given."""

    name: str
    graph: Any
    inputs: list[Any]


class Recorder:
    """Notes every graph that runs, once, with its inputs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.found: dict[str, Recorded] = {}

    def compiled(self, program: Any, started_ns: int) -> None: ...

    def run(self, program: Any, inputs: list[Any]) -> list[Any]:
        if program.graph.digest not in self.found:
            name = f"{self.name}, {len(self.found) + 1}" if self.found else self.name
            self.found[program.graph.digest] = Recorded(name, program.graph, copies(inputs))
        made: list[Any] = program.run(inputs)
        return made


def copies(inputs: Sequence[Any]) -> list[Any]:
    from stratal.runtime.storage import Storage

    return [Storage.copy_of(s.array, s.type) for s in inputs]


# -- what runs ---------------------------------------------------------------------------------------
def sources(smoke: bool) -> dict[str, Callable[[], Any]]:
    """Return what runs programs, by name."""
    found: dict[str, Callable[[], Any]] = {name: partial(_forward, name) for name in NETWORKS}
    found |= {f"{name}, training": partial(_training, name) for name in WORKLOADS}
    found |= {f"examples/{file.stem}.py": partial(_example, file) for file in sorted(EXAMPLES.glob("*.py"))}
    count = 3 if smoke else RANDOM
    return found | {f"random {seed}": partial(_random, seed) for seed in range(count)}


def _forward(name: str) -> None:
    import stratal as st
    from stratal import nn

    network = NETWORKS[name]
    model = network.build(nn).eval()
    model.load_state_dict(draw({key: tuple(value.shape) for key, value in model.state_dict().items()}))
    inputs = [st.tensor(array) for array in network.inputs(np.random.default_rng(0))]
    with st.inference_mode():
        st.compile(lambda *tensors: model(*tensors))(*inputs)


def _training(name: str) -> None:
    step_of(WORKLOADS[name], train=True)()


def _example(file: Path) -> None:
    spec = importlib.util.spec_from_file_location(f"examples_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(small=True)


def _random(seed: int) -> None:
    """Run a random network: convolutions, batch norms, branches and sums, then products of matrices."""
    import stratal as st
    from stratal import nn

    rng = np.random.default_rng(seed)
    st.manual_seed(seed)
    channels, size = int(rng.choice([3, 8, 16, 32])), int(rng.choice([7, 14, 28]))
    model = random_network(nn, rng, channels).eval()
    x = st.tensor(rng.standard_normal((int(rng.choice([1, 2, 8])), channels, size, size), dtype=np.float32))
    with st.inference_mode():
        st.compile(lambda x: model(x))(x)


def random_network(nn: Any, rng: np.random.Generator, channels: int) -> Any:
    """Return a network of a few random blocks of images and of rows."""
    F = nn.functional
    concat, _ = joiners(nn)

    class Network(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            kinds = ["norm", "sum", "branches", "plain"]
            self.kinds = [str(rng.choice(kinds)) for _ in range(rng.integers(1, 5))]
            self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
            here = channels
            for kind in self.kinds:
                wide = int(rng.choice([8, 16, 32, 64]))
                sizes = [int(rng.choice([1, 3])) for _ in range(2)]
                bias = bool(rng.integers(2))
                for k in sizes if kind in ("sum", "branches") else sizes[:1]:
                    self.convs.append(nn.Conv2d(here, wide, k, padding=k // 2, bias=bias))
                here = 2 * wide if kind == "branches" else wide
                self.norms.append(nn.BatchNorm2d(here))
            self.rows = nn.ModuleList(nn.Linear(here, int(rng.choice([here, 2 * here]))) for _ in range(3))
            self.last = str(rng.choice(["chain", "projections", "none"]))
            self.narrow, self.wide = (nn.Linear(a, b, bias=False) for a, b in ((here, 4), (4, here)))

        def forward(self, x: Any) -> Any:
            convs = iter(self.convs)
            for kind, norm in zip(self.kinds, self.norms, strict=True):
                y = next(convs)(x)
                if kind == "sum":
                    y = y + next(convs)(x)
                elif kind == "branches":
                    y = concat([y, next(convs)(x)], 1)
                x = F.relu(norm(y) if kind != "plain" else y)
            rows = x.mean((2, 3))
            if self.last == "chain":
                return rows @ (self.narrow.weight.mT @ self.wide.weight.mT)
            if self.last == "projections":
                return sum(F.relu(linear(rows)).sum(-1) for linear in self.rows)
            return rows

    return Network()


# -- in turns ----------------------------------------------------------------------------------------
class Turns(NamedTuple):
    """Medians of seconds of a run in both arithmetics, their ratio, and the program with real arithmetic."""

    exact: float
    real: float
    ratio: float
    program: Any


def turns(recorded: Recorded, rounds: int) -> Turns:
    """Time a graph in both arithmetics, after comparing results."""
    from stratal.base import settings
    from stratal.compiler import compile_graph

    programs = []
    for math in ("exact", "real"):
        with settings.math(math):
            programs.append(compile_graph(recorded.graph))
    if not rewrites_of(programs[1]):
        return Turns(0.0, 0.0, 1.0, programs[1])
    given = [copies(recorded.inputs) for _ in programs]
    _compare(recorded.name, *(p.run(s) for p, s in zip(programs, given, strict=True)))
    runs = [partial(p.run, s) for p, s in zip(programs, given, strict=True)]
    counts = [max(1, round(ROUND_S / max(_seconds(run, 1), 1e-7))) for run in runs]
    times = [[_seconds(run, n) for run, n in zip(runs, counts, strict=True)] for _ in range(rounds)]
    exact, real = (statistics.median(column) for column in zip(*times, strict=True))
    return Turns(exact, real, statistics.median(b / a for a, b in times), programs[1])


def _seconds(run: Callable[[], Any], count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - began) / count


def _compare(name: str, wanted: Sequence[Any], got: Sequence[Any]) -> None:
    for want, found in zip(wanted, got, strict=True):
        if want.array.dtype.kind == "f" and want.array.size:
            a, b = (np.asarray(s.array, np.float64) for s in (want, found))
            if not float(np.abs(a - b).max()) <= TOLERANCE * float(np.abs(a).max()):
                raise SystemExit(f"{name}: results differ")


def rewrites_of(program: Any) -> list[Any]:
    """Return the rewrites that the compilation of a program chose, with the records it went by."""
    from stratal.graph.graph import verify
    from stratal.optimize.simplify import simplify
    from stratal.plan.rewrites import searched
    from stratal.search.found import REWRITTEN

    if not any(d.choice == REWRITTEN for d in program.log.of("search")):
        return []
    with program.made.in_force():
        return list(searched(simplify(verify(program.graph)), program.made.target).applied)


# -- verdicts ----------------------------------------------------------------------------------------
def drop(found: Turns, path: Path, *, whole: bool) -> list[str]:
    """Keep verdicts on the rewrites of a program that is slower; return those that lost, with both times.

    Each is timed by itself, or, where that helped nothing, they all lose by the times of the whole.
    """
    from stratal.base import tuning
    from stratal.tune.measure import Measurer, Timing
    from stratal.tune.rewrites import RewriteVerdict, compare_rewrites
    from stratal.tune.session import toolchain

    rewrites, target = rewrites_of(found.program), found.program.made.target
    if whole:
        timing = Timing((found.exact,) * 3, (found.real,) * 3)
        verdicts = [RewriteVerdict(rewrite, timing) for rewrite in rewrites]
    else:
        with Measurer(target, limit_seconds=LIMIT_S) as measurer:
            verdicts = list(compare_rewrites(rewrites, measurer))
    timed = [v for v in verdicts if v.timing is not None]
    tuning.write_file(path, [v.record(target, toolchain()) for v in timed])
    return [f"{v.rewrite}: {_both(v.timing)}" for v in timed if not v.won]


def _both(timing: Any) -> str:
    return f"{1e6 * timing.base_seconds:.1f} us as written, {1e6 * timing.seconds:.1f} us rewritten"


def slower(names: Sequence[str], rounds: int, path: Path, smoke: bool) -> Iterator[Row]:
    """Yield a row for each program that runs; those that the search slowed down have `dropped` rewrites."""
    from stratal.base import settings, tuning
    from stratal.tensor.lazy import program_cache

    tuning.write_file(path, [])
    everything = sources(smoke)
    for name in names or everything:
        recorder = Recorder(name)
        try:
            with program_cache.watched(recorder):
                everything[name]()
        except (ImportError, FileNotFoundError) as error:
            print(f"{name} is skipped: {error}", flush=True)
            continue
        with settings.tuning(str(path)):
            for recorded in recorder.found.values():
                yield _row(recorded, rounds, path)


def _row(recorded: Recorded, rounds: int, path: Path) -> Row:
    found = first = turns(recorded, rounds)
    if found.ratio > GATE:
        found = turns(recorded, AGAIN * rounds)
    dropped: list[str] = []
    for attempt in range(ATTEMPTS):  # another rewrite may take the place of one that lost
        if found.ratio > GATE:
            dropped += drop(found, path, whole=attempt > 0)
            found = turns(recorded, AGAIN * rounds)
    for line in dropped:
        print(f"  dropped: {line}", flush=True)
    count = len(rewrites_of(found.program))
    return row(recorded.name, "as written", found.ratio, GATE, first_ratio=first.ratio, ms=1e3 * found.real,
               plain_ms=1e3 * found.exact, rewrites=count, dropped=dropped)  # fmt: skip

