"""Odd calls of every public name: `python tests/fuzz/fuzz_calls.py --calls 20000 --seed 0`.

Each gives a result or an error of Stratal's in four lines. Calls run in worker processes that say which call
comes next, so that a crash and a call that does not end are findings like any other. `--only N` repeats one.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import resource
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
CALLERS = ("odd_calls", "odd_models", "fuzz_calls", "draws")  # the files whose lines make the calls
MEMORY_BYTES = 8 << 30
TWINS = (
    "numpy",
    "torch",
    "torch.special",
    "torch.nn.functional",
    "torch.linalg",
    "torch.fft",
    "scipy.special",
)
SPACES = {
    "math": ("numpy", "torch"), "special": ("scipy.special", "torch.special"), "fft": ("numpy.fft",
        "torch.fft"),
    "linalg": ("numpy.linalg", "torch.linalg"), "functional": ("torch.nn.functional",),
}  # fmt: skip
# Names that mean something else there (no axes reduce all in PyTorch, nothing in NumPy and here; NumPy's tri
# has no columns where k is beyond its integers), results whose shape follows from values or from chance, and
# what does not end there (PyTorch's matrix_power of the least integer).
OTHERS_MEAN = {
    "amax", "amin", "argsort", "bincount", "cond", "histc", "histogram", "lstsq", "lu_factor", "matrix_power",
    "nanmedian", "norm", "one_hot", "pixel_unshuffle", "round", "sort", "split", "std_mean", "tri",
    "tril_indices", "triu_indices", "unique", "unique_consecutive", "var_mean",
}  # fmt: skip


# -- one call ------------------------------------------------------------------------------------------------
def drawn(seed: int, k: int) -> tuple[Any, Any, random.Random]:
    """Return the entry, the attempt and the rest of the random numbers of call `k`."""
    from odd_calls import attempt

    rng = random.Random(f"{seed}:{k}")
    entry = rng.choice(public())
    return entry, attempt(entry, rng), rng


_ENTRIES: list[Any] = []


def public() -> list[Any]:
    """Return what is called."""
    if not _ENTRIES:
        from benchmarks.surface.entries import Entry, entries
        from odd_models import UNCALLED, WIDE

        import stratal as st

        _ENTRIES.extend(e for e in entries() if e.name not in WIDE | UNCALLED)
        _ENTRIES.append(Entry("transforms", "host_call", st.host_call))
    return _ENTRIES


def judged(seed: int, k: int, say: Any = lambda text: None) -> tuple[str, list[str]]:
    """Run call `k`; return its text and what is wrong with its outcome."""
    import stratal as st

    entry, attempt, rng = drawn(seed, k)
    say(attempt.text)
    lazy = rng.random() < 0.1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if lazy:
                arrays = realised(attempt.run())
            else:
                with st.eager():
                    arrays = realised(attempt.run())
    except st.StratalError as error:
        return attempt.text, four_lines(error)
    except Exception as error:
        return attempt.text, [] if unbound(error) else [origin(error)]
    return attempt.text, shape_faults(entry, attempt, arrays)


def realised(result: Any) -> list[Any]:
    """Return the arrays of a result, of those that are not absurdly large."""
    import numpy as np

    import stratal as st
    from stratal.base import tree

    return [
        np.asarray(t.detach())
        for t in tree.leaves(result)
        if isinstance(t, st.Tensor) and t.numel() < 1 << 28
    ]


def four_lines(error: Exception) -> list[str]:
    lines = str(error).splitlines()
    heads = [line.strip().split(":")[0] for line in lines[1:]]
    if heads != ["got", "where", "hint"]:
        return [f"not four lines: {' | '.join(lines)[:300]}"]
    if not any(f"{name}.py" in lines[2] for name in CALLERS):
        return [f"not the user's line: {' | '.join(lines)[:300]}"]
    return []


def unbound(error: Exception) -> bool:
    """Return whether Python itself refused to bind the arguments, before any line of ours ran."""
    if traceback.extract_tb(error.__traceback__)[-1].filename.endswith(("odd_calls.py", "odd_models.py")):
        return not isinstance(error, AssertionError)  # in a function of the user's
    if not isinstance(error, TypeError):
        return False
    words = ("required positional", "unexpected keyword", "positional argument", "required keyword-only",
             "multiple values for", "takes no arguments", "takes exactly", "takes 1 arguments",
             "takes 2 arguments", "takes 3 arguments")  # fmt: skip
    last = traceback.extract_tb(error.__traceback__)[-1]
    return any(w in str(error) for w in words) and (
        last.filename.endswith(("_calls.py", "odd_models.py"))
        or last.name in ("call", "function", "__call__", "method", "update")
        or "_transform.<locals>" in str(error)
        or "Thing()" in str(error)
    )  # fmt: skip


def origin(error: Exception) -> str:
    """Return the error with the place it comes from, ours first."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = next(
        (f for f in reversed(frames) if "stratal" in f.filename and "/tests/" not in f.filename), frames[-1]
    )
    place = f"{Path(ours.filename).name}:{ours.lineno} {ours.name}"
    return f"{type(error).__name__} at {place}: {str(error).splitlines()[0] if str(error) else ''}"[:300]


# -- twins ---------------------------------------------------------------------------------------------------
def shape_faults(entry: Any, attempt: Any, arrays: list[Any]) -> list[str]:
    """Return how shapes differ from those of every twin that takes the same arguments."""
    if attempt.call is None or entry.name in OTHERS_MEAN or entry.family not in SPACES:
        return []
    seen = []
    for space in SPACES[entry.family]:
        theirs = twin_shapes(space, entry.name, attempt.call)
        if theirs == [a.shape for a in arrays]:
            return []
        if theirs is not None:
            seen.append(f"{space}: {theirs}")
    return [f"shapes {[a.shape for a in arrays]}, but {'; '.join(seen)}"] if seen else []


def twin_shapes(space: str, name: str, call: Any) -> list[tuple[int, ...]] | None:
    """Return the shapes of a twin's results; None where there is none, or it refuses."""
    import numpy as np

    import stratal as st
    from stratal.base import tree

    leaves = [t for t in tree.leaves((call.args, dict(call.kwargs))) if isinstance(t, st.Tensor)]
    if any(t.numel() > 1 << 20 for t in leaves):
        return None
    try:
        library = importlib.import_module(space)
        function = getattr(library, name)
        torch = importlib.import_module("torch") if space.startswith("torch") else None

        def theirs(t: Any) -> Any:
            return np.asarray(t) if torch is None else torch.tensor(np.array(t))

        args = [as_theirs(a, theirs) for a in call.args]
        named = {k: as_theirs(v, theirs) for k, v in call.kwargs.items()}
        if torch is None and type(named.get("axis")) is list:
            named["axis"] = tuple(named["axis"])  # NumPy takes no list; no axes reduce nothing
        result = function(*args, **named)
    except BaseException:  # whatever it is, it is not ours
        return None
    parts = result if isinstance(result, (tuple, list)) else (result,)
    if not all(hasattr(p, "shape") for p in parts):
        return None
    return [tuple(p.shape) for p in parts]


def as_theirs(value: Any, make: Any) -> Any:
    import stratal as st

    if isinstance(value, st.Tensor):
        return make(value)
    return type(value)(as_theirs(v, make) for v in value) if type(value) in (list, tuple) else value


# -- processes -----------------------------------------------------------------------------------------------
def worker(seed: int, start: int, stop: int, step: int) -> None:
    """Run calls one after the other; a line before each, one after each."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(**what: Any) -> None:
        print(json.dumps(what), file=out, flush=True)

    for k in range(start, stop, step):
        say(call=k)
        text, faults = judged(seed, k, lambda text: say(text=text))
        say(done=k, text=text, faults=faults)


def fuzz(
    calls: int, seed: int, start: int = 0, processes: int = 1, limit_seconds: float = 30.0
) -> dict[int, list[str]]:
    """Run calls in worker processes; return those with faults, printed as they appear."""
    faults: dict[int, list[str]] = {}
    threads = [
        threading.Thread(
            target=_work, args=(seed, start + k, start + calls, processes, limit_seconds, faults)
        )
        for k in range(processes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return faults


def _work(
    seed: int, start: int, stop: int, step: int, limit_seconds: float, faults: dict[int, list[str]]
) -> None:
    """Run calls in a worker; one that dies or hangs is replaced behind the call it died of."""
    at = start
    while at < stop:
        command = [sys.executable, __file__, "--worker", *map(str, (seed, at, stop, step))]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env={"STRATAL_COMPILE_WORKERS": "0", "STRATAL_STRICT": "1",
                                        **os.environ})  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        errors: list[str] = []
        reader = threading.Thread(target=errors.extend, args=(process.stderr,))
        reader.start()
        running: int | None = None
        text, timer = "", threading.Timer(limit_seconds * 4, process.kill)  # the first call imports
        timer.start()
        for line in process.stdout:
            said = json.loads(line)
            text = said.get("text", text)
            if "call" in said:
                running, text = said["call"], "(while it was drawn)"
            if "done" in said:
                timer.cancel()
                timer = threading.Timer(limit_seconds, process.kill)
                timer.start()
                if said["faults"]:
                    _note(faults, said["done"], text, said["faults"])
                running, at = None, said["done"] + step
        code = process.wait()  # `timer` ends it
        timer.cancel()
        reader.join()
        if running is None and code == 0:
            return
        last = errors[-1].strip() if errors else ""
        what = "does not end" if code == -9 else f"the process ended with {code}: {last}"
        _note(faults, at, text, [what])
        at += step


def _note(faults: dict[int, list[str]], k: int, text: str, found: list[str]) -> None:
    faults[k] = [text, *found]
    print(f"call {k}: {text}", *found, sep="\n    ", flush=True)


def repeat(seed: int, k: int) -> int:
    """Run one call here, with its traceback."""
    import stratal as st

    _, attempt, rng = drawn(seed, k)
    lazy = rng.random() < 0.1
    print(f"{attempt.text}{' (lazily)' if lazy else ''}", flush=True)
    if not lazy:
        with st.eager():
            print([(a.shape, a.dtype) for a in realised(attempt.run())])
        return 0
    print([(a.shape, a.dtype) for a in realised(attempt.run())])
    return 0


def main(arguments: list[str]) -> int:
    sys.path[:0] = [str(TESTS / "support"), str(TESTS.parent)]
    if arguments[:1] == ["--worker"]:
        worker(*map(int, arguments[1:5]))
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--limit-seconds", type=float, default=30.0, help="for one call")
    parser.add_argument("--only", type=int, metavar="N", help="repeat this call here, with its traceback")
    options = parser.parse_args(arguments)
    if options.only is not None:
        return repeat(options.seed, options.only)
    started = time.perf_counter()
    faults = fuzz(options.calls, options.seed, options.start, options.processes, options.limit_seconds)
    seconds = time.perf_counter() - started
    kinds = Counter(text.split(":")[0] for _, *found in faults.values() for text in found)
    print(
        f"{options.calls} calls in {seconds:.0f} s, {len(faults)} with faults",
        *kinds.most_common(),
        sep="\n  ",
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
