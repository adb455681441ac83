"""Saving, tuning and reading that is interrupted, killed, or done by many at once: nothing is ever lost."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import resource
import signal
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import saver
from waiting import LIMIT_S, exit_code, joined

import stratal as st
from stratal.base import files, tuning
from stratal.formats import container

NAMES = ("last", "last.stratal")
TRACED = (str(Path(container.__file__).parent), files.__file__, tuning.__file__)


def epoch(path: Path) -> int:
    """Return the version of a checkpoint, which must be whole."""
    found = st.load(path)
    assert saver.whole(found)
    return int(found["epoch"])


def litter(folder: Path) -> list[str]:
    """Return the drafts in a folder, and the files of its checkpoint that no manifest names."""
    found = [p.name for p in folder.rglob("*") if p.name.endswith((".tmp", ".writing", files.DRAFT))]
    if (folder / "last" / "manifest.json").exists():
        manifest = (folder / "last" / "manifest.json").read_text()
        found += [p.name for p in (folder / "last").iterdir() if p.name not in manifest + " manifest.json"]
    return found


class Stopped(Exception):
    """What a signal handler of the user's raises."""


@contextmanager
def alarms(number: signal.Signals, error: type[BaseException]) -> Iterator[list[int]]:
    """Let SIGALRM, or another signal it passes on to, raise an error; count how often."""
    raised = [0]

    def handler(*_: Any) -> None:
        raised[0] += 1
        raise error("by a handler")

    before = [(n, signal.signal(n, handler)) for n in (number,)]
    if number != signal.SIGALRM:
        before.append((signal.SIGALRM, signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(number))))
    try:
        yield raised
    finally:
        for n, old in before:
            signal.signal(n, old)


def interrupted_at(line: int, interrupt: Callable[[], Any], traced: tuple[str, ...] = TRACED) -> Any:
    """Return a trace function that interrupts at the n-th line run in the code that writes files."""
    left = line

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(traced):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                sys.settrace(None)
                interrupt()
        return trace

    return trace


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_a_save_interrupted_at_any_line_keeps_a_whole_version(
    tmp_path: Path, name: str, error: type[BaseException]
) -> None:
    path = tmp_path / name
    st.save(saver.checkpoint(0), path)
    before = 0
    with alarms(signal.SIGALRM, error) as raised:
        for line in range(1, 5000):
            try:
                sys.settrace(interrupted_at(line, lambda: signal.raise_signal(signal.SIGALRM)))
                st.save(saver.checkpoint(line), path)
                sys.settrace(None)
            except error:
                assert raised == [line]
            else:
                if epoch(path) == line and line > 100:
                    break
                raise AssertionError(f"the interrupt at line {line} was lost")
            finally:
                sys.settrace(None)
            found = epoch(path)
            assert found in (before, line)
            before = found
        else:
            raise AssertionError("saving takes fewer lines")
    gc.collect()  # of tracebacks, which keep files open
    st.save(saver.checkpoint(0), path)
    assert litter(tmp_path) == []


def test_records_of_a_write_interrupted_at_any_line_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    tuning.write_file(path, [saver.record("first")])
    first = path.read_bytes()
    for line in range(1, 5000):
        path.write_bytes(first)
        try:
            sys.settrace(interrupted_at(line, lambda: signal.raise_signal(signal.SIGINT)))
            tuning.write_file(path, [saver.record("second")])
        except KeyboardInterrupt:
            pass
        else:
            break
        finally:
            sys.settrace(None)
        assert {r.kernel for r in tuning.read_file(path)} in ({"first"}, {"first", "second"})
    assert {r.kernel for r in tuning.read_file(path)} == {"first", "second"}
    assert line > 50
    gc.collect()  # of tracebacks, which keep files open
    tuning.write_file(path, [])
    assert litter(tmp_path) == []


@pytest.mark.sampled(4)
@pytest.mark.parametrize("saves", [True, False], ids=["save", "load"])
def test_a_signal_while_a_zip_file_is_made_or_read_raises_what_its_handler_raises(
    tmp_path: Path, saves: bool
) -> None:
    """A ZipFile with a member opened and not yet entered cannot be closed; its finalizer drops exceptions."""
    path, traced = tmp_path / "last.stratal", (zipfile.__file__, container.__file__)
    st.save(saver.checkpoint(0), path)
    with alarms(signal.SIGALRM, Stopped) as raised:
        for line in range(1, 5000):
            try:
                sys.settrace(interrupted_at(line, lambda: signal.raise_signal(signal.SIGALRM), traced))
                st.save(saver.checkpoint(line), path) if saves else st.load(path)
                sys.settrace(None)
            except Stopped:
                assert raised == [line]
            else:
                break
            finally:
                sys.settrace(None)
    assert raised == [line - 1] and line > 300
    assert epoch(path) == line * saves


@pytest.mark.sampled(7)
@pytest.mark.usefixtures("no_callbacks_of_the_collector")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGALRM, TimeoutError)]
)
@pytest.mark.parametrize("count", [50, pytest.param(500, marks=pytest.mark.slow)])
def test_signals_while_saving_lose_no_version_and_are_never_swallowed(
    tmp_path: Path, name: str, number: signal.Signals, error: type[BaseException], count: int
) -> None:
    path, rng = tmp_path / name, random.Random(0)
    st.save(saver.checkpoint(0), path)
    caught = before = n = 0
    with alarms(number, error) as raised:
        while raised[0] < count and n < 100 * count:
            n += 1
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 0.02))
                st.save(saver.checkpoint(n), path)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except error:
                caught += 1
            assert caught == raised[0]
            assert epoch(path) in (before, n)
            before = epoch(path)
    gc.collect()
    st.save(saver.checkpoint(-1), path)
    assert epoch(path) == -1 and litter(tmp_path) == []


PROCESSES = multiprocessing.get_context("forkserver")  # of one that has imported Stratal: started in no time
PROCESSES.set_forkserver_preload(["saver"])


def start(folder: Path, who: int, rounds: int) -> ForkServerProcess:
    process = PROCESSES.Process(target=saver.work, args=(folder, who, rounds), daemon=True)
    process.start()
    return process


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kills", [30, pytest.param(300, marks=pytest.mark.slow)])
def test_processes_killed_while_they_save_tune_and_read_leave_all_whole_and_no_litter(
    tmp_path: Path, kills: int
) -> None:
    rng = random.Random(kills)
    saver.save(tmp_path, 1)
    running = [start(tmp_path, who, 10**6) for who in range(3)]
    for kill in range(kills):
        time.sleep(rng.uniform(0.0, 0.1))
        who = kill % 3
        assert running[who].exitcode is None, "a process failed by itself"
        running[who].kill()
        saver.read(tmp_path)
        running[who] = start(tmp_path, who, 10**6)
    for process in running:
        process.kill()
    joined(*running)
    saver.save(tmp_path, 1)
    saver.tune(tmp_path, 9, 9)
    saver.read(tmp_path)
    assert litter(tmp_path) == []


@pytest.mark.sampled(4)
def test_savers_tuners_and_readers_of_one_folder_do_not_disturb_each_other(tmp_path: Path) -> None:
    saver.save(tmp_path, 0)
    processes = [start(tmp_path, who, 12) for who in (0, 3, 1, 4, 2, 5)]
    deadline = time.monotonic() + LIMIT_S
    while any(p.exitcode is None for p in processes) and time.monotonic() < deadline:
        saver.read(tmp_path)
    joined(*processes)
    assert [p.exitcode for p in processes] == [0] * len(processes)
    kernels = {r.kernel for r in tuning.read_file(tmp_path / "tuning.json")}
    assert kernels == {f"{who} {number}" for who in (1, 4) for number in range(12)}
    saver.save(tmp_path, 0)
    assert litter(tmp_path) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_keeps_the_version_that_stands_and_says_so(tmp_path: Path, name: str) -> None:
    st.save({"epoch": 1, "w": []}, tmp_path / name)
    listed = sorted(p.name for p in tmp_path.rglob("*"))
    child = os.fork()
    if child == 0:  # the limit cannot be raised again
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
            st.save(saver.checkpoint(2), tmp_path / name)
        except OSError as error:
            code = 0 if "untouched" in str(error) and "File too large" in str(error) else 2
        finally:
            os._exit(code)
    assert exit_code(child) == 0
    assert st.load(tmp_path / name) == {"epoch": 1, "w": []}
    assert sorted(p.name for p in tmp_path.rglob("*")) == listed


def test_drafts_of_the_living_stay_and_those_of_the_dead_go(tmp_path: Path) -> None:
    living = files.new_draft(tmp_path, "living")
    dead = files.new_draft(tmp_path, "dead")
    dead.close()
    files.remove_drafts(tmp_path)
    assert os.path.exists(living.name) and not os.path.exists(dead.name)
    living.close()
    files.remove_drafts(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_save_by_another_process_does_not_remove_files_that_are_being_written(tmp_path: Path) -> None:
    st.save(saver.checkpoint(1), tmp_path / "last")
    with files.create_locked(tmp_path / "last" / "weights.0123456789abcdef.safetensors") as file:
        st.save(saver.checkpoint(2), tmp_path / "last")
        assert os.path.exists(file.name)
    st.save(saver.checkpoint(3), tmp_path / "last")
    assert not os.path.exists(file.name) and epoch(tmp_path / "last") == 3
