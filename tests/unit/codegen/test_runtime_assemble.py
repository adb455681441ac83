"""Object code: here and in worker processes, the same bytes; the driver for other machines; interrupts."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest
from test_runtime_programs import counting, storage
from waiting import LIMIT_S, joined

from stratal.base import settings
from stratal.base.collector import collector_paused
from stratal.base.errors import CompilerError
from stratal.codegen import assemble_workers
from stratal.codegen import assembly as assembly_module
from stratal.codegen.assemble import Machine, assemble, host_machine, toolchain_digest
from stratal.codegen.assemble_worker import emit_object
from stratal.codegen.assemble_workers import (
    READY_S,
    SCRIPT,
    START_S,
    WORKERS,
    Worker,
    Workers,
    wait_for_answers,
)
from stratal.codegen.assembly import NODES_PER_WORKER, Assembly, compile_all
from stratal.codegen.driver import driver_target, driver_text
from stratal.runtime.program import LoadedProgram

HOST = host_machine()
AVX512 = Machine("x86_64-unknown-linux-gnu", "skylake-avx512", "")


def kernel(name: str, steps: int = 40) -> str:
    """Return a kernel with a chain of operations, so that it takes a moment to compile."""
    lines = ["%v0 = load <16 x float>, ptr %frame, align 4"]
    for k in range(steps):
        lines += [f"%m{k} = fmul <16 x float> %v{k}, %v0", f"%v{k + 1} = fadd <16 x float> %m{k}, %v{k}"]
    lines += [f"store <16 x float> %v{steps}, ptr %frame, align 4", "ret void"]
    return f"define void @{name}(ptr %frame, i64 %chunk, i32 %worker) {{\n  " + "\n  ".join(lines) + "\n}\n"


@pytest.fixture
def eager_workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let worker processes take part in any batch, and start them before the test."""
    monkeypatch.setattr(WORKERS, "seconds_to_start", lambda: 0.0)
    (worker,) = WORKERS.take(1)
    assert started(worker)
    WORKERS.give_back([worker])
    yield
    assert all(_alive(pid) for pid in WORKERS.pids())


def started(worker: Worker) -> bool:
    worker.wait_until_ready(60.0)
    return worker.ready


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def jobs(count: int, steps: int = 40) -> list[tuple[str, str]]:
    return [(f"k{k}", kernel(f"k{k}", steps + k)) for k in range(count)]


def test_vectors_of_16_floats_stay_whole_on_avx512() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(AVX512.triple)
    machine = target.create_target_machine(AVX512.cpu, "", opt=2, reloc="pic", codemodel="default")
    text = machine.emit_assembly(llvm.parse_assembly(kernel("k")))
    assert "zmm" in text and "ymm" not in text


def test_attributes_that_split_vectors_are_refused() -> None:
    text = kernel("k").replace("i32 %worker)", 'i32 %worker) "prefer-vector-width"="256"')
    with pytest.raises(CompilerError, match="rejected") as caught:
        assemble(text, HOST)
    assert "256 bits" in caught.value.got
    assemble(text.replace("256", "512"), HOST)


def test_text_that_llvm_rejects_is_a_compiler_error_with_the_reason() -> None:
    with pytest.raises(CompilerError) as caught:
        assemble("define void @k() { ret i32 0 }", HOST)
    assert "value doesn't match function result type" in caught.value.got


@pytest.mark.usefixtures("eager_workers")
def test_worker_processes_give_the_same_bytes() -> None:
    batch = jobs(12)
    alone = compile_all(batch, HOST, num_workers=0)
    assert compile_all(batch, HOST, num_workers=1) == alone
    assert compile_all(batch, HOST, num_workers=2) == alone
    assert list(alone) == [key for key, _ in batch]


@pytest.mark.usefixtures("eager_workers")
def test_workers_stay_for_the_next_batch() -> None:
    compile_all(jobs(4), HOST, num_workers=1)
    before = WORKERS.pids()
    compile_all(jobs(4), HOST, num_workers=1)
    assert WORKERS.pids() == before


def test_few_small_kernels_take_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly_module, "WORKERS", workers := Workers())
    assert len(compile_all(jobs(5, 2), HOST, num_workers=4)) == 5
    assert len(workers.pids()) == 1
    workers.close()


def test_an_idle_worker_ends_and_the_next_job_starts_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hasty = tmp_path / "worker.py"
    hasty.write_text(SCRIPT.read_text().replace("IDLE_S = 20.0", "IDLE_S = 0.2"))
    monkeypatch.setattr(assemble_workers, "SCRIPT", hasty)
    monkeypatch.setattr(assembly_module, "WORKERS", workers := Workers())
    for _ in range(2):
        assert len(compile_all(jobs(3), HOST, num_workers=1)) == 3
        (worker,) = workers._idle
        deadline = time.time() + 10
        while worker.alive and time.time() < deadline:
            time.sleep(0.05)
        assert workers.pids() == []
    workers.close()


def test_a_worker_that_idles_is_reaped_without_a_further_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hasty = tmp_path / "worker.py"
    hasty.write_text(SCRIPT.read_text().replace("IDLE_S = 20.0", "IDLE_S = 0.2"))
    monkeypatch.setattr(assemble_workers, "SCRIPT", hasty)
    monkeypatch.setattr(assemble_workers.assemble_worker, "IDLE_S", 0.2)
    monkeypatch.setattr(assemble_workers, "REAP_S", 0.1)
    workers = Workers()
    workers.prepare()
    (worker,) = workers._idle
    deadline = time.time() + 20
    while os.path.exists(f"/proc/{worker.pid}") and time.time() < deadline:
        time.sleep(0.05)
    assert workers._idle == [] and worker._process.returncode is not None
    workers.close()


def test_a_process_that_compiled_ends_without_a_word_in_development_mode(tmp_path: Path) -> None:
    code = "import stratal as st; print(float((st.ones(3) * 2).sum()))"
    environment = {**os.environ, "STRATAL_CACHE_DIR": str(tmp_path), "STRATAL_COMPILE_WORKERS": "2"}
    command = [sys.executable, "-X", "dev", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=600)
    assert (done.stdout, done.stderr) == ("6.0\n", "")


def test_workers_are_started_ahead_for_the_kernels_that_will_come(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers()
    monkeypatch.setattr(assembly_module, "WORKERS", workers)
    with Assembly(HOST, num_workers=3) as assembly:
        assembly.expect(NODES_PER_WORKER - 1)
        assembly.expect(NODES_PER_WORKER - 1)
    (pid,) = workers.pids()
    assert 0 < workers.seconds_to_start() <= START_S
    (worker,) = workers.take(1)
    assert worker.pid == pid
    assert started(worker)
    assert worker.host == list(HOST)
    workers.give_back([worker])
    with Assembly(HOST, num_workers=3) as assembly:
        assembly.expect(10 * NODES_PER_WORKER)
    assert len(workers.pids()) == 2 and workers.pids()[0] == pid
    assert workers.seconds_to_start() == READY_S
    workers.close()


def test_no_worker_is_started_ahead_of_a_process_that_compiles_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly_module, "WORKERS", workers := Workers())
    with settings.compile_workers(0), Assembly(HOST) as assembly:
        assembly.expect(10 * NODES_PER_WORKER)
        assembly.add("k", kernel("k"))
        assert list(assembly.finish()) == ["k"]
    assert workers.pids() == []


@pytest.mark.usefixtures("eager_workers")
def test_a_worker_compiles_while_the_caller_makes_the_next_text() -> None:
    with Assembly(HOST, num_workers=1) as assembly:
        for key, text in jobs(4):
            assembly.add(key, text)
        (worker,) = assembly._helpers
        deadline = time.time() + 20
        while len(assembly._done) < 4 and time.time() < deadline:
            wait_for_answers([worker])
            assembly.add("k0", "")  # looks after the workers; the key is known
        assert len(assembly._done) == 4
        assert list(assembly.finish()) == ["k0", "k1", "k2", "k3"]


@pytest.mark.usefixtures("eager_workers")
def test_cycles_are_looked_for_while_workers_compile(eager_workers: None) -> None:
    """What a pause of the collector left is looked through before the answers are there, not afterwards."""
    seen: list[int] = []

    def collected(phase: str, facts: dict[str, int]) -> None:
        seen.append(len(batch._done) if phase == "stop" else -1)

    for pause, times in ((collector_paused, 1), (nullcontext, 0)):
        with Assembly(HOST) as batch, pause():
            batch.add("a", kernel("a", 400))
            with watching_collections(collected):
                assert batch.finish()["a"]
        assert seen == [-1, 0] * times
        seen.clear()


@contextmanager
def watching_collections(heard: Callable[[str, dict[str, int]], None]) -> Iterator[None]:
    """Hear of collections in a block, in which none happens by itself."""
    was_enabled = gc.isenabled()
    gc.disable()
    gc.callbacks.append(heard)
    try:
        yield
    finally:
        gc.callbacks.remove(heard)
        if was_enabled:
            gc.enable()


def test_a_batch_that_fails_ends_the_workers_that_still_compile_for_it() -> None:
    pid = WORKERS.pids()[0]
    with pytest.raises(ZeroDivisionError), Assembly(HOST, num_workers=1) as assembly:
        assembly.add("long", kernel("long", 3000))
        raise ZeroDivisionError
    assert pid not in WORKERS.pids()


@pytest.mark.usefixtures("eager_workers")
def test_what_does_not_fit_into_the_pipe_follows_later() -> None:
    batch = [("big", kernel("big") + ";" + "x" * (3 << 20)), *jobs(3)]
    with Assembly(HOST, num_workers=2) as assembly:
        for key, text in batch:
            assembly.add(key, text)
        done = assembly.finish()
    assert done == {key: assemble(text, HOST) for key, text in batch}


@pytest.mark.usefixtures("eager_workers")
def test_a_key_that_comes_twice_is_compiled_once() -> None:
    assert list(compile_all([*jobs(3), *jobs(3)], HOST, num_workers=2)) == ["k0", "k1", "k2"]


@pytest.mark.usefixtures("eager_workers")
def test_bad_text_is_reported_whoever_compiles_it() -> None:
    bad = [*jobs(6), *((f"bad{k}", "define void @k() { ret i32 0 }" + " " * 9000) for k in range(2))]
    with pytest.raises(CompilerError, match="rejected"):
        compile_all(bad, HOST, num_workers=2)
    assert len(compile_all(jobs(6), HOST, num_workers=2)) == 6


@pytest.mark.usefixtures("eager_workers")
def test_a_killed_worker_is_replaced_and_its_kernel_compiled_here() -> None:
    batch = jobs(16, 300)
    victim = WORKERS.pids()[0]
    killer = threading.Timer(0.05, os.kill, (victim, signal.SIGKILL))
    killer.start()
    done = compile_all(batch, HOST, num_workers=2)
    joined(killer)
    assert done == {key: assemble(text, HOST) for key, text in batch}
    compile_all(jobs(4), HOST, num_workers=2)
    assert victim not in WORKERS.pids()


@pytest.mark.usefixtures("eager_workers")
def test_an_interrupt_during_compilation_leaves_everything_usable() -> None:
    killer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    killer.start()
    deadline = time.time() + 60
    with pytest.raises(KeyboardInterrupt):
        while time.time() < deadline:
            compile_all(jobs(60, 300), HOST, num_workers=2)
    joined(killer)
    time.sleep(0.05)
    assert len(compile_all(jobs(6), HOST, num_workers=2)) == 6


def test_no_worker_outlives_its_process() -> None:
    code = (
        "from stratal.codegen.assemble_workers import WORKERS\n"
        "(w,) = WORKERS.take(1)\n"
        "print(w.pid, flush=True)\n"
        "import os; os._exit(0)\n"  # not even atexit runs
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    pid = int(done.stdout)
    deadline = time.time() + 10
    while _alive(pid) and not _zombie(pid) and time.time() < deadline:
        time.sleep(0.05)
    assert not _alive(pid) or _zombie(pid)


def _zombie(pid: int) -> bool:
    """Whether a process has ended and only its parent's look is missing."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return not os.path.isdir("/proc/self")


def test_the_toolchain_digest_is_the_same_in_every_process_and_names_a_scope() -> None:
    code = "from stratal.codegen.assemble import toolchain_digest as d; print(d(), d('program'))"
    seeded = dict(os.environ, PYTHONHASHSEED="7")
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=seeded, timeout=600)
    assert done.stdout.split() == [toolchain_digest(), toolchain_digest("program")]
    assert toolchain_digest() != toolchain_digest("program")


LINUX = [f"{machine}-unknown-linux-gnu" for machine in ("x86_64", "aarch64", "riscv64")]
MACHINES = [*LINUX, "arm64-apple-darwin23"]


@pytest.mark.parametrize("triple", MACHINES)
def test_the_driver_compiles_for_every_machine_it_knows(triple: str) -> None:
    target = driver_target(triple)
    assert (target.futex is None) == ("linux" not in triple)
    features = "+a,+m,+d" if triple.startswith("riscv") else ""
    assert emit_object(triple, "", features, driver_text(target))


def test_the_driver_refuses_a_machine_it_does_not_know() -> None:
    with pytest.raises(CompilerError, match="not a machine it runs on"):
        driver_target("powerpc64-unknown-linux-gnu")


def test_the_driver_without_a_futex_runs_the_same_programs() -> None:
    sleepy = assemble(driver_text(replace(driver_target(HOST.triple), futex=None)), HOST)
    executable = counting(300, threads=3).executable
    out = LoadedProgram(executable, sleepy).run([storage(np.zeros(64))])[0]
    np.testing.assert_array_equal(out.array, sum(range(300)))


def test_a_worker_whose_reader_is_gone_ends_without_a_word():
    command = [sys.executable, "-I", "-S", str(SCRIPT), str(Path(llvm.__file__).parents[2])]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as worker:
        try:
            worker.stdout.close()
            assert worker.wait(LIMIT_S) == 0 and worker.stderr.read() == b""
        finally:
            worker.kill()
