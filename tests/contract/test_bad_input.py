"""Bad input ends in a four-line error that names the user's line, and nothing is lost.

Elsewhere: caches that cannot be trusted (test_runtime_cache), model files (test_model_files and
test_safetensors), settings (test_settings), Python control flow (test_capture, test_seed_listings).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import next_line

import stratal as st
from stratal import nn, optim
from stratal.base.artifact import Launch, flat
from stratal.base.errors import (
    AttributeValueError,
    CaptureError,
    DonatedBufferError,
    DTypeError,
    FormatError,
    IndexOutOfRangeError,
    ShapeError,
    StratalError,
)
from stratal.memory.liveness import roots

F = nn.functional


def assert_four_lines(error: StratalError) -> None:
    """Rule, got, where, hint; and the line is one of this file."""
    lines = str(error).splitlines()
    assert [line.strip().split(":")[0] for line in lines[1:]] == ["got", "where", "hint"], str(error)
    assert Path(__file__).name in lines[2]


# -- shapes and dtypes ---------------------------------------------------------------------------------------
X = np.ones((2, 3), np.float32)
WRONG: dict[str, tuple[type[StratalError], Callable[[Any], Any]]] = {
    "matmul": (ShapeError, lambda x: x @ x),
    "add": (ShapeError, lambda x: x + st.ones((2, 4))),
    "linear": (ShapeError, lambda x: nn.Linear(4, 2)(x)),
    "channels": (ShapeError, lambda x: nn.Conv2d(3, 4, 3)(st.ones((1, 2, 8, 8)))),
    "window": (ShapeError, lambda x: nn.Conv2d(3, 4, 5)(st.ones((1, 3, 4, 4)))),
    "reshape": (ShapeError, lambda x: x.reshape(4, 2)),
    "concat": (ShapeError, lambda x: st.concat([x, st.ones((3, 4))], axis=0)),
    "classes": (ShapeError, lambda x: F.cross_entropy(x, st.tensor([0, 1, 2]))),
    "float classes": (DTypeError, lambda x: F.cross_entropy(x, st.ones((2,)))),
    "float rows": (DTypeError, lambda x: nn.Embedding(4, 2)(st.ones((2,)))),
    "batch norm": (ShapeError, lambda x: nn.BatchNorm2d(4)(st.ones((2, 3, 4, 4)))),
    "layer norm": (ShapeError, lambda x: nn.LayerNorm(4)(x)),
    "float bits": (DTypeError, lambda x: st.bitwise_and(x, x)),
    "axis": (AttributeValueError, lambda x: x.sum(dim=3)),
    "axis twice": (AttributeValueError, lambda x: x.permute(0, 0)),
    "int index": (IndexOutOfRangeError, lambda x: x[5]),
    "too many": (IndexOutOfRangeError, lambda x: x[0, 0, 0]),
    "assignment": (ShapeError, lambda x: x.__setitem__(0, st.ones((4,)))),
    "attention": (ShapeError, lambda x: F.scaled_dot_product_attention(x, st.ones((2, 4)), x)),
    "ragged": (ShapeError, lambda x: st.tensor([[1, 2], [3]])),
    "item": (ShapeError, lambda x: x.item()),
    "dtype": (DTypeError, lambda x: st.zeros((2,), dtype="float99")),
    "integer gradient": (DTypeError, lambda x: st.grad(lambda a: a)(st.tensor([1]))),
    "state dict": (StratalError, lambda x: nn.Linear(3, 2).load_state_dict({"weight": np.zeros((3, 3))})),
    "learning rate": (AttributeValueError, lambda x: optim.SGD(nn.Linear(2, 2).parameters(), lr=-1)),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("compiled", [False, True], ids=["lazy", "compiled"])
def test_a_wrong_shape_dtype_or_argument_is_refused_at_once(name: str, compiled: bool) -> None:
    kind, wrong = WRONG[name]
    x = st.tensor(X)
    with pytest.raises(kind) as caught:
        (st.compile(wrong) if compiled else wrong)(x)
    assert_four_lines(caught.value)
    assert np.array_equal(np.asarray(x), X)


# -- values that are no longer there -------------------------------------------------------------------------
def test_a_gradient_through_an_overwritten_parameter_is_refused_not_wrong() -> None:
    """A step writes parameters where they stand: their old memory is donated to the new value."""
    layer = nn.Linear(3, 1)
    opt = optim.SGD(layer.parameters(), lr=0.1)
    first = layer(st.tensor(X)).sum()
    first.backward(retain_graph=True)
    opt.step()
    weight = np.asarray(layer.weight).copy()
    with pytest.raises((DonatedBufferError, StratalError)) as caught:
        first.backward()
        np.asarray(layer.weight.grad)
    assert_four_lines(caught.value)
    assert np.array_equal(np.asarray(layer.weight), weight)


def test_memory_numpy_looks_at_is_never_donated() -> None:
    layer = nn.Linear(3, 1)
    opt = optim.SGD(layer.parameters(), lr=0.1)
    view = np.asarray(layer.weight)
    before = view.copy()
    layer(st.tensor(X)).sum().backward()
    opt.step()
    assert np.array_equal(view, before) and not np.array_equal(np.asarray(layer.weight), before)


# -- Python control flow -------------------------------------------------------------------------------------
@pytest.mark.parametrize("python", [
    lambda x: x if x.sum() > 0 else -x,
    lambda x: [x for _ in range(x.sum().astype("int64"))],
    lambda x: float(x.sum()),
    lambda x: np.asarray(x),
    lambda x: [1, 2][x.sum().astype("int64")],
], ids=["if", "range", "float", "asarray", "index"])  # fmt: skip
def test_python_that_needs_a_traced_value_is_refused(python: Callable[[Any], Any]) -> None:
    with pytest.raises(CaptureError) as caught:
        st.compile(python)(st.tensor(X))
    assert_four_lines(caught.value)


# -- indices inside kernels ----------------------------------------------------------------------------------
TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)
INDEXED: dict[str, Callable[[Any, Any], Any]] = {
    "take": lambda x, i: st.take(x, i, axis=0) * 2,
    "x[i]": lambda x, i: x[i] + 1,
    "embedding": lambda x, i: F.embedding(i, x),
    "gather": lambda x, i: st.take_along_axis(x, i.reshape(-1, 1), axis=0),
    "cross entropy": lambda x, i: F.cross_entropy(st.concat([x, x[:, :1]], axis=1), i),
    "in a row of sums": lambda x, i: x[st.stack([i, st.zeros_like(i)]).sum(axis=0)],
    "in a loop": lambda x, i: st.scan(lambda c, row: (c + x[row], row), x[0], i)[0],
}


@pytest.mark.parametrize("name", INDEXED)
@pytest.mark.parametrize("style", ["lazy", "compiled", "eager"])
def test_an_index_out_of_range_is_found_inside_the_kernel(name: str, style: str) -> None:
    function = INDEXED[name]
    run = st.compile(function) if style == "compiled" else function
    x = st.tensor(TABLE)
    for bad in (4, -5, 1 << 40, -(1 << 62)):
        with pytest.raises(IndexOutOfRangeError) as caught:
            if style == "eager":
                with st.eager():
                    run(x, st.tensor([0, 1, bad, 2]))
            else:
                np.asarray(run(x, st.tensor([0, 1, bad, 2])))
        assert_four_lines(caught.value)
    good = st.tensor([0, 3, 1, 2])
    assert np.array_equal(np.asarray(run(x, good)), np.asarray(function(x, good)))


def test_a_write_at_an_index_out_of_range_writes_nothing() -> None:
    x = st.tensor(TABLE)
    with pytest.raises(IndexOutOfRangeError):
        x[st.tensor([0, 7])] = 1.0
        np.asarray(x)
    assert np.array_equal(np.asarray(x), TABLE)


@pytest.mark.parametrize("size", [1, 7, 100_003])
def test_one_bad_index_among_many_is_found_wherever_it_stands(size: int) -> None:
    take = st.compile(lambda x, i: x[i])
    x = st.tensor(np.arange(50, dtype=np.float32))
    index = np.random.default_rng(0).integers(0, 50, size)
    assert np.array_equal(np.asarray(take(x, st.tensor(index))), np.arange(50)[index])
    for place in {0, size // 2, size - 1}:
        bad = index.copy()
        bad[place] = 50
        with pytest.raises(IndexOutOfRangeError):
            take(x, st.tensor(bad)).numpy()


class Tagger(nn.Module):
    """Embedding, normalisation with running statistics, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.head = nn.Embedding(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 5)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.norm(self.table(tokens)))


@pytest.mark.parametrize("compiled", [False, True], ids=["lazy", "compiled"])
@pytest.mark.parametrize("warm", [0, 2])
@pytest.mark.parametrize(("token", "target"), [(16, 0), (-1, 0), (3, 5), (3, -1)])
def test_a_step_that_meets_a_bad_index_changes_no_parameter_and_no_state(
    compiled: bool, warm: int, token: int, target: int
) -> None:
    st.manual_seed(0)
    model = Tagger()
    opt = optim.Adam(model.parameters(), lr=1e-2)

    def train(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step = st.compile(train) if compiled else train
    x, y = st.tensor(np.arange(12) % 16), st.tensor(np.arange(12) % 5)
    if warm:
        for _ in range(warm):
            float(step(x, y))
        before = {name: np.asarray(v).copy() for name, v in model.state_dict().items()}
        moments = [np.asarray(v).copy() for v in tensors_of(opt.state_dict())]
    else:
        before, moments = {}, []
    with pytest.raises(IndexOutOfRangeError) as caught:
        float(step(st.full((12,), token), st.full((12,), target)))
    assert_four_lines(caught.value)
    after = {name: np.asarray(v).copy() for name, v in model.state_dict().items()}
    for name, old in before.items():
        assert np.array_equal(old, after[name]), name
    for old, new in zip(moments, tensors_of(opt.state_dict()), strict=bool(warm)):
        assert np.array_equal(old, np.asarray(new))
    opt.zero_grad()
    assert np.isfinite(float(step(x, y)))


def tensors_of(value: Any) -> list[Any]:
    """Return the tensors of nested containers."""
    if isinstance(value, dict):
        return [t for v in value.values() for t in tensors_of(v)]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors_of(v)]
    return [value] if isinstance(value, (st.Tensor, np.ndarray)) else []


def checks_of(function: Any) -> list[Launch]:
    return [c for c in flat(function.program.executable.commands) if isinstance(c, Launch) and c.may_fail]


def test_checks_come_before_any_state_is_written_and_each_once() -> None:
    model = Tagger()
    opt = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    @st.compile
    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step(st.tensor(np.arange(6)), st.tensor(np.arange(6) % 5))
    executable = step.program.executable
    checks = checks_of(step)
    assert len(checks) == 2  # tokens and classes; the backward pass reads the same
    root = roots(executable.values)
    states = {executable.inputs[k] for k in executable.states}
    order = list(flat(executable.commands))
    last = max(order.index(c) for c in checks)
    for command in order[:last]:
        assert states.isdisjoint(root[w] for w in getattr(command, "writes", ()))


def test_what_cannot_be_out_of_range_is_not_checked() -> None:
    x = st.tensor(np.arange(300, dtype=np.float32))
    small = st.tensor(np.array([3, 255], np.uint8))
    for function, index in (
        (lambda x, i: x[st.arange(7)], small),
        (lambda x, i: st.take(x, i, axis=0), small),
        (lambda x, i: st.take(x, st.clip(i, 0, 9), axis=0), st.tensor([-3, 700])),
    ):
        compiled = st.compile(function)
        compiled(x, index)
        assert not checks_of(compiled)


def test_a_value_that_cannot_be_computed_does_not_keep_others_from_theirs() -> None:
    x = st.tensor(TABLE)
    shared = x * 2.0
    bad, good, counter = shared[st.tensor([9])], shared + 1.0, st.zeros(())
    counter += shared.sum()
    for _ in range(2):
        with pytest.raises(IndexOutOfRangeError):
            np.asarray(bad)
    assert np.array_equal(np.asarray(good), TABLE * 2 + 1)
    assert float(counter) == TABLE.sum() * 2
    later = shared - 1.0
    assert np.array_equal(np.asarray(later), TABLE * 2 - 1)


# -- the environment -----------------------------------------------------------------------------------------
TRAIN = """
import sys, numpy as np, stratal as st
from stratal import nn, optim
st.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
opt = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
@st.compile
def step(x):
    loss = (model(x) ** 2).mean(); opt.zero_grad(); loss.backward(); opt.step(); return loss
x = st.ones((3, 4))
for _ in range(3): step(x)
print(np.asarray(model[0].weight).tobytes().hex())
"""


def run_with(cache: Path, code: str = TRAIN, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "STRATAL_CACHE_DIR": str(cache), **env},
        capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600, check=False,
    )  # fmt: skip


@pytest.mark.sampled(5)
def test_training_is_the_same_with_a_corrupt_cache_and_with_none(tmp_path: Path) -> None:
    good = run_with(tmp_path / "cache")
    assert good.returncode == 0, good.stderr
    entries = [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]
    assert entries
    for k, entry in enumerate(entries):
        data = entry.read_bytes()
        entry.write_bytes(data[: len(data) // 2] if k % 2 else data[:-9] + bytes(9))
    corrupt = run_with(tmp_path / "cache")
    (tmp_path / "file").write_text("no directory")
    without = run_with(tmp_path / "file")
    assert corrupt.stdout == without.stdout == good.stdout
    assert "Traceback" not in corrupt.stderr + without.stderr
    assert "not a directory" in without.stderr


def test_an_unknown_setting_stops_with_four_lines(tmp_path: Path) -> None:
    refused = run_with(tmp_path, STRATAL_THREDS="2")
    assert refused.returncode != 0 and not refused.stdout
    message = refused.stderr.strip().splitlines()[-4:]
    assert [line.strip().split(":")[0] for line in message[1:]] == ["got", "where", "hint"]
    assert "STRATAL_THREADS" in refused.stderr


# -- files ---------------------------------------------------------------------------------------------------
def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)


def grow(file: Path) -> None:
    """Say that the header of the weights is 2^60 bytes long."""
    file.write_bytes((1 << 60).to_bytes(8, "little") + file.read_bytes()[8:])


def climb(file: Path) -> None:
    manifest = file.parent / "manifest.json"
    manifest.write_text(manifest.read_text().replace(file.name, f"../{file.name}"))


@pytest.mark.parametrize("damage", [cut, flip, grow, climb, Path.unlink])
def test_a_damaged_model_file_is_refused_in_four_lines_and_left_alone(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    folder = tmp_path / "net"
    st.save(nn.Linear(3, 2), folder, inputs=st.tensor(X))
    (weights,) = folder.glob("weights.*")
    damage(weights)
    files = {p.name: p.read_bytes() for p in folder.iterdir()}
    with pytest.raises(FormatError) as caught:
        st.load(folder)
    assert_four_lines(caught.value)
    assert files == {p.name: p.read_bytes() for p in folder.iterdir()}


# -- Ctrl-C --------------------------------------------------------------------------------------------------
INTERRUPTED = """
import signal, sys, threading, time, numpy as np, stratal as st
from stratal import nn, optim
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
st.manual_seed(0)
compiled, when = sys.argv[1] == "compiled", sys.argv[2]
model = nn.Sequential(
    nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 8))
opt = optim.Adam(model.parameters(), lr=1e-3)
def train(x):
    loss = (model(x) ** 2).mean(); opt.zero_grad(); loss.backward(); opt.step(); return loss
step = st.compile(train) if compiled else train
x = st.tensor(np.random.default_rng(0).standard_normal((256, 64), dtype=np.float32))
def state():
    moments = [v for s in opt.state.values() for v in s.values()]
    return [np.asarray(v).copy() for v in [*model.parameters(), *moments]]
if when == "step":
    for _ in range(3): step(x)
print("ready", flush=True)
count = 0
try:
    while True:
        step(x)
        count += 1
except KeyboardInterrupt:
    pass
a = state()
steps = {float(s["step"]) for s in opt.state.values()}
assert len(steps) <= 1, steps                      # all parameters have taken the same steps
b = state()
assert all(np.array_equal(p, q) for p, q in zip(a, b))
loss = float(step(x)); assert np.isfinite(loss)    # and training goes on
after = {float(s["step"]) for s in opt.state.values()}
assert not steps or after == {steps.pop() + 1}
print("fine", flush=True)
"""


@pytest.mark.sampled(7)
@pytest.mark.parametrize("style", ["lazy", "compiled"])
@pytest.mark.parametrize(("when", "delays"), [("compile", (0.15, 0.5)), ("step", (0.11, 0.207))])
def test_an_interrupt_loses_nothing(style: str, when: str, delays: tuple[float, ...], tmp_path: Path) -> None:
    for k, delay in enumerate(delays):
        cache = tmp_path / str(k) if when == "compile" else tmp_path
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(INTERRUPTED), style, when],
            env={**os.environ, "STRATAL_CACHE_DIR": str(cache)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert child.stdout is not None
        assert next_line(child) == "ready\n"
        time.sleep(delay)
        child.send_signal(signal.SIGINT)
        try:
            out, err = child.communicate(timeout=600)
        finally:
            child.kill()
        assert out == "fine\n", err
        assert child.returncode == 0


@pytest.mark.parametrize("name", ["identity", "tri"])
def test_a_matrix_has_a_number_of_rows(name):
    with pytest.raises(st.StratalError, match="numbers of rows and of columns are ints"):
        getattr(st, name)((1, 2))
    assert getattr(st, name)(np.int64(2)).shape == (2, 2)
