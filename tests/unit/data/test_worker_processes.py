"""Worker processes: the batches of one process, and nothing that stays behind."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.data import DataLoader, IterableDataset, WorkerDiedError, get_worker_info

pytestmark = pytest.mark.row("F21")


class Samples:
    """Elements of several kinds; some positions end the process, or raise."""

    def __init__(self, count: int, ends: int | None = None, bad: int | None = None) -> None:
        self.count, self.ends, self.bad = count, ends, bad

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, k: int) -> Any:
        if k == self.ends:
            os.kill(os.getpid(), signal.SIGKILL)
        if k == self.bad:
            raise ShapeError("Samples: a shape", got=f"element {k}")
        info = get_worker_info()
        worker = os.getpid() if info is None else info.id + 1
        return {"x": np.full((3, 40), k, np.float32), "k": k, "text": f"{k}", "worker": worker}


def prepare(number: int) -> None:
    if number > 7:
        raise ValueError("no such worker")


def fail(number: int) -> None:
    raise ValueError(f"worker {number} is not ready")


def plain(batch: Any) -> Any:
    return batch["x"].tolist(), batch["x"].dtype, batch["k"].tolist(), batch["text"]


def limit_files(number: int) -> None:
    """As where /dev/shm is full: a file takes 2,000 bytes, a batch has 2,400 or 480."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))


@pytest.mark.parametrize("size", [1, 5])
def test_batches_come_through_the_pipe_where_no_file_takes_them(size: int) -> None:
    loader = DataLoader(Samples(21), size, num_workers=2, workers="processes", worker_init_fn=limit_files)
    assert [plain(b) for b in loader] == [plain(b) for b in DataLoader(Samples(21), size)]


def test_batches_are_those_of_one_process_in_their_order_and_nothing_stays() -> None:
    loader = DataLoader(
        Samples(30), 4, shuffle=True, seed=1, num_workers=2, workers="processes", worker_init_fn=prepare,
        persistent_workers=True,
    )  # fmt: skip
    alone = DataLoader(Samples(30), 4, shuffle=True, seed=1)
    workers = set()
    for _ in range(2):
        found = list(loader)
        assert [plain(b) for b in found] == [plain(b) for b in alone]
        workers |= {w for b in found for w in b["worker"].tolist()}
    assert workers == {1, 2}
    iterator = iter(loader)
    next(iterator)  # left in the middle
    pool: Any = loader._pool
    pids = [child.process.pid for child in pool._children]
    for child in pool._children if Path("/proc/self/fd").is_dir() else ():
        assert os.readlink(f"/proc/self/fd/{child._file.fileno()}").endswith("(deleted)")  # it has no name
    del iterator
    pool.stop()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_process_that_is_killed_and_one_that_raises_are_named() -> None:
    loader = DataLoader(Samples(20, ends=9), 4, num_workers=2, workers="processes", persistent_workers=True)
    batches = iter(loader)
    assert next(batches)["k"].tolist() == [0, 1, 2, 3] and next(batches)["k"].tolist() == [4, 5, 6, 7]
    with pytest.raises(WorkerDiedError, match=r"worker \d \(process \d+\) ended: SIGKILL"):
        next(batches)
    assert loader._pool is None
    loader = DataLoader(Samples(8, bad=5), 4, num_workers=1, workers="processes")
    batches = iter(loader)
    next(batches)
    with pytest.raises(ShapeError, match="element 5") as caught:
        next(batches)
    assert "__getitem__" in caught.value.__notes__[0] and "process 0" in caught.value.__notes__[0]


def test_what_cannot_be_sent_is_refused() -> None:
    class Local(Samples):
        pass

    class Stream(IterableDataset[int]):
        pass

    with pytest.raises(DTypeError, match="can be pickled"):
        next(iter(DataLoader(Local(4), num_workers=1, workers="processes")))
    with pytest.raises(AttributeValueError, match="read by position"):
        DataLoader(Stream(), num_workers=1, workers="processes")
    with pytest.raises(AttributeValueError, match="threads"):
        DataLoader(Samples(4), workers="greenlets")
    with pytest.raises(ValueError, match="worker 0 is not ready"):
        next(iter(DataLoader(Samples(4), num_workers=1, workers="processes", worker_init_fn=fail)))


PROGRAM = """
import sys, time
from stratal.data import DataLoader

class Slow:
    def __len__(self):
        return 1000

    def __getitem__(self, k):
        time.sleep(0.02)
        return k

if __name__ == "__main__":
    loader = DataLoader(Slow(), 2, num_workers=2, workers="processes")
    for k, batch in enumerate(loader):
        if k == 0:
            print("reading", flush=True)
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_one_that_reads(how: signal.Signals, tmp_path: Path) -> None:
    if not Path("/proc/self/task").is_dir():
        pytest.skip("needs /proc")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    run = subprocess.Popen(
        [sys.executable, program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert run.stdout is not None and run.stdout.readline()
        pids = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        assert len(pids) >= 2
        run.send_signal(how)
        _, errors = run.communicate(timeout=20)
    finally:
        run.kill()
        run.wait()
    end = time.monotonic() + 10
    while (left := [*filter(_alive, pids)]) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left
    if how == signal.SIGINT:
        assert errors.count("KeyboardInterrupt") == 1 and "stratal-data" not in errors


def _alive(pid: str) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
