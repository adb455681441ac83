"""Offload: states wait in a file, the bits stay, and whatever goes wrong there loses nothing."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim
from stratal.base import settings
from stratal.base.artifact import CopyDone, CopyStart, Launch
from stratal.base.errors import CaptureError, DTypeError, OffloadError
from stratal.nn import functional as F
from stratal.plan.offload import BYTES_PER_SECOND, copy_waits
from stratal.runtime import far_memory
from stratal.runtime.pack import pack, unpack

WIDTH = 192


class Tied(nn.Module):
    """An embedding whose weights are the output layer's too, with dropout and batch norm between."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(256, WIDTH)
        self.middle = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh(), nn.Dropout(0.2)
        )

    def forward(self, rows: Any) -> Any:
        return self.middle(self.table(rows)) @ self.table.weight.T


def deep() -> nn.Module:
    return nn.Sequential(nn.Embedding(256, WIDTH), *[
        m for _ in range(5) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())
    ], nn.Linear(WIDTH, 256))  # fmt: skip


MODELS: dict[str, Callable[[], nn.Module]] = {"deep": deep, "tied": Tied}
OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda p: optim.AdamW(p, lr=1e-3), "momentum": lambda p: optim.SGD(p, lr=0.01, momentum=0.9),
    "amsgrad": lambda p: optim.Adam(p, lr=1e-3, amsgrad=True), "rmsprop": lambda p: optim.RMSprop(p, lr=1e-3),
}  # fmt: skip
ROWS = np.random.default_rng(0).integers(0, 256, (5, 64))


class Training:
    """A model, its optimizer and a compiled step within a budget."""

    def __init__(self, model: str = "deep", optimizer: str = "adamw", memory: int | None = None) -> None:
        st.manual_seed(3)
        self.net = MODELS[model]()
        self.opt = OPTIMIZERS[optimizer](list(self.net.parameters()))
        self.compiled = st.compile(self.step, memory=memory)

    def step(self, rows: Any) -> Any:
        loss = F.cross_entropy(self.net(rows), (rows + 1) % 256)
        loss.backward()
        self.opt.step()
        self.opt.zero_grad()
        return loss

    def run(self, steps: int = 4) -> list[bytes]:
        """Return the bytes of losses, parameters and buffers after some steps."""
        losses = [self.compiled(st.tensor(ROWS[k % len(ROWS)])).numpy().tobytes() for k in range(steps)]
        return losses + [v.numpy().tobytes() for v in self.net.state_dict().values()]

    def least(self) -> int:
        """Return the least budget in bytes."""
        self.step(st.tensor(ROWS[0]))  # the optimizer has state from the first step on
        with pytest.raises(st.DoesNotFit) as refused:
            st.fits(self.step, st.tensor(ROWS[0]), memory=1)
        return refused.value.least_bytes


@pytest.fixture()
def folder(tmp_path: Path) -> Any:
    with settings.offload_dir(tmp_path):
        yield tmp_path


@pytest.mark.row("E8")
@pytest.mark.row("E12")
@pytest.mark.parametrize(
    ("model", "optimizer"),
    [("deep", "adamw"), ("deep", "momentum"), ("tied", "amsgrad"), ("tied", "rmsprop")],
)
def test_offload_needs_less_than_any_plan_without_and_changes_no_bit(
    model: str, optimizer: str, tmp_path: Path
) -> None:
    free = Training(model, optimizer)
    wanted = free.run()
    without = Training(model, optimizer).least()
    with settings.offload_dir(tmp_path):
        least = Training(model, optimizer).least()
        assert least < 0.8 * without
        for budget in (least, (least + without) // 2):
            small = Training(model, optimizer, budget)
            assert small.run() == wanted
            assert small.compiled.plan.planned_peak_bytes <= budget
            assert " in a file; a run copies" in str(small.compiled.memory)
            assert small.compiled.plan.memory["offloaded_bytes"] > 0
    assert not list(tmp_path.iterdir())


def test_without_a_folder_nothing_is_offloaded_and_the_error_says_what_would_help() -> None:
    training = Training()
    least = training.least()
    with pytest.raises(st.DoesNotFit, match="STRATAL_OFFLOAD_DIR"):
        st.fits(training.step, st.tensor(ROWS[0]), memory=least - 1)


def _small(folder: Path) -> Training:
    return Training(memory=Training().least())


def test_offloaded_states_are_seen_as_they_are_and_can_be_written(folder: Path) -> None:
    small, free = _small(folder), Training()
    for training in (small, free):
        training.run(2)
    weight, other = small.net[1].weight, free.net[1].weight
    assert far_memory.location(small.opt.state[weight]["exp_avg"]._storage) is not None
    seen = weight.numpy()
    np.testing.assert_array_equal(seen, other.numpy())
    before = seen.copy()
    assert small.run(1) == free.run(1)
    np.testing.assert_array_equal(seen, before)  # NumPy keeps what it saw
    for training in (small, free):
        training.opt.state[training.net[1].weight]["exp_avg"].mul_(0.5)
        with st.no_grad():
            training.net[1].weight.add_(1.0)
    assert small.run(2) == free.run(2)
    kept = {k: v.numpy().copy() for k, v in small.net.state_dict().items()}
    small.run(1)
    small.net.load_state_dict({k: st.tensor(v) for k, v in kept.items()})
    free.run(1)
    free.net.load_state_dict({k: st.tensor(v) for k, v in kept.items()})
    assert small.run(2) == free.run(2)


def test_a_run_that_fails_leaves_offloaded_states_as_they_were(folder: Path) -> None:
    small = _small(folder)
    small.run(1)
    before = [v.numpy().tobytes() for v in small.net.state_dict().values()]
    with pytest.raises(st.StratalError, match="out of range"):
        small.compiled(st.tensor(np.full(64, 300)))
    assert [v.numpy().tobytes() for v in small.net.state_dict().values()] == before
    free = Training()
    free.run(1)
    assert small.run(2) == free.run(2)


def test_a_checked_run_finds_no_fault_and_the_same_bits(folder: Path) -> None:
    budget = Training().least()
    wanted = Training().run(2)
    with settings.verify(True):
        assert Training(memory=budget).run(2) == wanted


def test_programs_that_offload_are_cached_like_others(folder: Path) -> None:
    small = _small(folder)
    small.run(1)
    executable = small.compiled.program.executable
    again = unpack(pack(executable))
    assert again.commands == executable.commands
    kinds = {type(c) for c in again.commands}
    assert {CopyStart, CopyDone, Launch} <= kinds


def opened_in(folder: Path) -> list[str]:
    """Return the files of a folder that this process has open, where the system tells of them."""
    links = Path("/proc/self/fd")
    names = [os.readlink(link) for link in links.iterdir() if link.is_symlink()] if links.is_dir() else []
    return [name for name in names if name.startswith(str(folder))]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_file_that_cannot_be_made_is_an_error_and_nothing_is_lost(
    code: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = _small(folder)
    before = [v.numpy().tobytes() for v in small.net.state_dict().values()]

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch, pytest.raises(OffloadError, match=os.strerror(code)) as refused:
        patch.setattr(os, "posix_fallocate", fail)
        small.run(1)
    assert "STRATAL_OFFLOAD_DIR" in str(refused.value)
    assert not opened_in(folder)
    assert [v.numpy().tobytes() for v in small.net.state_dict().values()] == before
    assert small.run(2) == Training().run(2)


def test_a_fork_does_not_train_what_another_process_trains(folder: Path) -> None:
    small = _small(folder)
    small.run(1)
    before = [v.numpy().tobytes() for v in small.net.state_dict().values()]
    child = os.fork()
    if not child:
        try:
            small.run(1)
        except OffloadError as error:
            os._exit(7 if "fork" in str(error) else 8)
        finally:
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert [v.numpy().tobytes() for v in small.net.state_dict().values()] == before


def test_what_a_fork_writes_to_states_in_a_file_is_its_own(folder: Path) -> None:
    small = _small(folder)
    small.run(1)
    before = [v.numpy().tobytes() for v in small.net.state_dict().values()]
    child = os.fork()
    if not child:
        with st.no_grad():
            for p in small.net.parameters():
                p.mul_(2)
        changed = [v.numpy().tobytes() for v in small.net.state_dict().values()]
        os._exit(7 if all(a != b for a, b in zip(before, changed, strict=True)) else 8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert [v.numpy().tobytes() for v in small.net.state_dict().values()] == before


def test_tensors_that_come_and_go_leave_no_more_than_a_few_files(folder: Path) -> None:
    for _ in range(30):
        net = nn.Linear(512, 512)
        st.offload(net)
        del net
        gc.collect()
    st.offload(st.ones(4))
    assert sum(file.nbytes for file in far_memory._FILES) < 6 << 24


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with settings.offload_dir(tmp_path / "none"), pytest.raises(OffloadError, match="none"):
        st.offload(nn.Linear(200, 200))


def test_a_copy_that_fails_ends_the_run_with_its_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = _small(folder)
    small.run(1)

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch, pytest.raises(OffloadError, match="reading the file failed"):
        patch.setattr(os, "preadv", fail)
        small.run(1)
    small.run(1)


def test_modules_and_tensors_are_offloaded_by_hand(folder: Path) -> None:
    net = st.offload(nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)))
    assert all(far_memory.location(t._storage) for t in (*net.parameters(), *net.buffers()))
    wanted = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64))
    wanted.load_state_dict(net.state_dict())
    x = st.randn(8, 64)
    np.testing.assert_array_equal(net(x).numpy(), wanted(x).numpy())
    tensor = st.arange(12).reshape(3, 4).T
    assert st.offload(tensor) is tensor
    np.testing.assert_array_equal(tensor.numpy(), np.arange(12).reshape(3, 4).T)
    seen = st.ones(5)
    view = seen.numpy()
    st.offload(seen)
    view[0] = 7.0
    assert seen[0].item() == 7.0
    with pytest.raises(DTypeError, match="a tensor or a module"):
        st.offload([tensor])  # type: ignore[type-var]
    with pytest.raises(CaptureError, match="captured"):
        st.compile(lambda x: st.offload(x) + 1)(st.ones(3))


def test_the_state_of_an_optimizer_is_where_its_parameter_is(folder: Path) -> None:
    far, near = st.offload(nn.Linear(64, 64)), nn.Linear(64, 64)
    opt = optim.Adagrad([*far.parameters(), *near.parameters()], initial_accumulator_value=0.5)
    (far(st.ones(2, 64)) + near(st.ones(2, 64))).sum().backward()
    opt.step()
    for net, where in ((far, True), (near, False)):
        for p in net.parameters():
            assert (far_memory.location(opt.state[p]["sum"]._storage) is not None) is where
            np.testing.assert_allclose(opt.state[p]["sum"].numpy(), 0.5 + p.grad.numpy() ** 2, rtol=1e-6)


def test_files_of_the_dead_are_closed(folder: Path) -> None:
    gc.collect()
    before = len(far_memory._FILES)
    for _ in range(40):
        st.offload(st.randn(64, 64))
    assert len(far_memory._FILES) <= before + 2


def test_a_process_that_is_killed_leaves_no_file(folder: Path) -> None:
    script = textwrap.dedent("""
        import os, signal
        import stratal as st
        net = st.offload(st.nn.Linear(300, 300))
        print(net(st.ones(2, 300)).sum().item(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    environment = {**os.environ, "STRATAL_OFFLOAD_DIR": str(folder)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == -9
    assert done.stdout
    assert not list(folder.iterdir())


def test_copies_wait_for_one_another_and_kernels_for_copies() -> None:
    mb = int(BYTES_PER_SECOND / 1000)  # a millisecond each
    values = [_value(k, mb) for k in range(4)]
    commands = (
        CopyStart(0, 1), CopyStart(2, 3), _launch(), CopyDone(0, 1), _launch(), CopyDone(2, 3),
    )  # fmt: skip
    found = copy_waits(commands, values, lambda _: 0.25e-3)
    assert [round(waiting * 1e3, 3) for _, waiting in found] == [0, 0, 0, 0.75, 0, 0.5]
    assert round(sum(map(sum, found)) * 1e3, 3) == 2.5


def test_copies_take_a_processor_from_the_kernels_they_run_beside() -> None:
    mb = int(BYTES_PER_SECOND / 1000)  # a millisecond
    commands = (CopyStart(0, 1), _launch(), CopyDone(0, 1))
    beside = copy_waits(commands, [_value(0, mb), _value(1, mb)], lambda _: 2e-3)
    assert [tuple(round(s * 1e3, 3) for s in pair) for pair in beside] == [(0, 0), (2, 0), (1, 0)]
    waited = copy_waits((commands[0], commands[2]), [_value(0, mb), _value(1, mb)], lambda _: 2e-3)
    assert round(sum(map(sum, waited)) * 1e3, 3) == 1


def _value(number: int, nbytes: int) -> Any:
    from stratal.base.artifact import Value
    from stratal.base.dtypes import uint8
    from stratal.base.types import TensorType

    return Value(number, TensorType(uint8, (nbytes,)), (1,))


def _launch() -> Launch:
    return Launch("k", (), (), 1)
