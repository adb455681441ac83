"""Frozen models: the module's bits without the module, as an artefact that is verified before it is used."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn
from stratal.base import settings
from stratal.base.errors import CaptureError, DTypeError, FormatError, ShapeError, StratalError
from stratal.cli import main
from stratal.compiler import compile_graph
from stratal.formats.container import read_container, write_container
from stratal.formats.signature import signature_from_json
from stratal.runtime.encode import address_of
from stratal.runtime.workspace import Workspace


def network() -> Any:
    st.manual_seed(3)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5),
        nn.Linear(64, 3),
    )  # fmt: skip
    with st.no_grad():
        net[1].running_mean.add_(0.25)
    return net


def rows(count: int = 5) -> Any:
    return np.random.default_rng(0).random((count, 1, 4, 4), np.float32)


def bits(value: Any) -> bytes:
    return np.ascontiguousarray(np.asarray(value)).tobytes()


@pytest.fixture(scope="module")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artefacts") / "tiny.stratal"
    st.freeze(network(), rows(), batch_sizes=(1, 2, 4), name="tiny").save(path)
    return path


@pytest.mark.row("H1")
def test_a_frozen_model_gives_the_compiled_modules_bits_at_every_batch_size() -> None:
    net = network()
    frozen = st.freeze(net, rows())
    net.eval()
    for size in frozen.batch_sizes:
        x = np.resize(rows(), (size, 1, 4, 4))
        with st.no_grad():
            expected = bits(st.compile(net)(st.tensor(x)))
        assert bits(frozen(x)) == expected, size


@pytest.mark.row("H1")
def test_what_only_training_needs_is_gone_and_what_weights_decide_is_computed_once() -> None:
    net = network()
    frozen = st.freeze(net, rows(), batch_sizes=(4,))
    assert all(part.training for part in net.modules())  # the module itself stays as it was
    graph = frozen.graph(4)
    ops = {node.op.name for node in graph.nodes}
    assert not any("random" in name or "philox" in name for name in ops)
    assert not graph.updates  # no running statistics
    commands = frozen.program(4).plan.to_json()["commands"]
    assert any(command["do"] == "once" for command in commands)  # scale of the batch norm, packed weights


def test_any_number_of_rows_runs_in_pieces_of_the_known_sizes() -> None:
    frozen = st.freeze(network(), rows(), batch_sizes=(1, 2, 4))
    x = rows(11)
    y = np.asarray(frozen(x))
    assert y.shape == (11, 3)
    assert bits(y[:4]) == bits(frozen(x[:4]))
    np.testing.assert_allclose(y, np.concatenate([frozen(x[k : k + 1]) for k in range(11)]), rtol=1e-5)


def test_training_goes_on_without_changing_what_was_frozen() -> None:
    net = network()
    frozen = st.freeze(net, rows(), batch_sizes=(2,))
    before = bits(frozen(rows(2)))
    with st.no_grad():
        for p in net.parameters():
            p.add_(1.0)
    assert bits(frozen(rows(2))) == before


def test_a_module_whose_rows_depend_on_each_other_is_refused_unless_its_shapes_are_fixed() -> None:
    class Centred(nn.Module):
        def forward(self, x: Any) -> Any:
            return x - x.mean(0, keepdim=True)

    with pytest.raises(ShapeError, match="changes with other rows"):
        st.freeze(Centred(), np.ones((2, 3), np.float32))
    frozen = st.freeze(Centred(), np.ones((2, 3), np.float32), batch_sizes=None)
    x = np.array([[1, 2, 3], [3, 2, 1]], np.float32)
    assert np.asarray(frozen(x)).tolist() == [[-1, 0, 1], [1, 0, -1]]
    with pytest.raises(ShapeError, match="frozen model"):
        frozen(x[:1])


def test_outputs_without_rows_and_samples_that_show_nothing_are_refused() -> None:
    class Total(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.sum()

    with pytest.raises(ShapeError, match="does not count the rows"):
        st.freeze(Total(), np.ones((2, 3), np.float32))
    with pytest.raises(CaptureError, match="cannot be tried"):
        st.freeze(nn.Embedding(5, 2), np.zeros((1, 3), np.int64))
    with pytest.raises(FormatError, match="a module"):
        st.freeze(np.sin, np.ones(3))


def test_other_inputs_are_refused_with_the_signature() -> None:
    class Two(nn.Module):
        def forward(self, left: Any, right: Any) -> Any:
            return left + right.sum(1, keepdim=True), left * 2

    x, y = np.ones((2, 3), np.float32), np.ones((2, 4), np.float32)
    frozen = st.freeze(Two(), (x, y), batch_sizes=(1, 2))
    assert [s.name for s in frozen.signature.inputs] == ["left", "right"]
    for wrong, error in [((x,), ShapeError), ((x, y[:1]), ShapeError), ((x, x), ShapeError),
                         ((x.astype(np.float64), y), DTypeError)]:  # fmt: skip
        with pytest.raises(error, match="frozen model"):
            frozen(*wrong)


@pytest.mark.row("B8")
@pytest.mark.parametrize("name", ["model", "model.stratal"])
def test_an_artefact_carries_hash_plan_and_versions_and_gives_the_same_bits_again(
    tmp_path: Path, name: str
) -> None:
    frozen = st.freeze(network(), rows(), batch_sizes=(1, 4), name="tiny")
    frozen.save(tmp_path / name)
    loaded = st.load(tmp_path / name)
    assert bits(loaded(rows(4))) == bits(frozen(rows(4)))
    assert loaded.signature == frozen.signature
    assert loaded.origin.stratal == st.__version__
    assert loaded.origin.content == frozen.origin.content
    assert loaded.origin.plans[4]["hash"] == frozen.program(4).plan.hash
    assert len(loaded.origin.toolchain) == 32


@pytest.mark.row("B8")
def test_the_content_hash_names_the_model_alone(tmp_path: Path) -> None:
    def saved(net: Any, name: str) -> str:
        frozen = st.freeze(net, rows(), batch_sizes=(1,), name=name)
        frozen.save(tmp_path / name)
        assert frozen.origin is not None
        return frozen.origin.content

    other = network()
    with st.no_grad():
        other[5].bias.add_(1e-3)
    assert saved(network(), "a") == saved(network(), "b") != saved(other, "c")


@pytest.mark.sampled(4)
def test_a_fresh_process_loads_an_artefact_without_the_class(artefact: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", rows(4))
    program = (
        "import sys, numpy as np, stratal as st\n"
        "y = st.load(sys.argv[1])(np.load(sys.argv[2]))\n"
        "sys.stdout.write(np.asarray(y).tobytes().hex())\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", program, artefact, tmp_path / "x.npy"], capture_output=True, text=True,
        stdin=subprocess.DEVNULL, check=False, timeout=120,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    assert child.stdout == bits(st.load(artefact)(rows(4))).hex()


def test_inspect_shows_signature_hash_and_plans(
    artefact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(artefact), "--json", str(tmp_path / "i.json"), "--graph", "2"]) == 0
    report = json.loads((tmp_path / "i.json").read_text())
    out = capsys.readouterr().out
    assert report["content"] in out
    assert "input float32[-1, 1, 4, 4] -> output float32[-1, 3]" in out
    assert [row["size"] for row in report["batch_sizes"]] == [1, 2, 4]
    assert "f32[2,1,4,4]" in out
    st.save(network(), tmp_path / "model.stratal")
    assert main(["inspect", str(tmp_path / "model.stratal")]) == 1


def changed(files: dict[str, bytes], rng: random.Random) -> dict[str, bytes]:
    """Return the files of an artefact with one of them changed; the container's checksums will fit again."""
    name = rng.choice(sorted(files))
    data = bytearray(files[name])
    kind = rng.randrange(4)
    at = rng.randrange(len(data))
    if kind == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del data[at : at + rng.randrange(1, 40)]
    elif kind == 2:
        data[at:at] = rng.choice([b"0", b"[", b'"x"', b"-1", b"1" * 20, b"../", b"\xff", b"null,"])
    else:
        other = rng.choice(sorted(files))
        return (
            files | {name: files[other]}
            if rng.random() < 0.5
            else {k: v for k, v in files.items() if k != name}
        )
    return files | {name: bytes(data)}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rehash", [False, True], ids=["hash as it was", "content hash made to fit"])
def test_a_changed_artefact_is_refused_or_is_the_same_model(
    artefact: Path, tmp_path: Path, rehash: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container is written anew, so that its checksums fit: only the artefact's own checks are left."""
    files = {name: bytes(data) for name, data in read_container(artefact).items()}
    if rehash:  # whoever can write the file can compute the hash, too: data must be checked behind it
        content = json.loads(files["artifact.json"])["content"]
        monkeypatch.setattr("stratal.formats.artifact.content_hash", lambda *_: content)
    rng, refused = random.Random(7), 0
    expected = bits(st.load(artefact)(rows(2)))
    for k in range(120):
        path = tmp_path / f"m{k % 2}.stratal"
        write_container(path, {name: [data] for name, data in changed(files, rng).items()})
        try:
            loaded = st.load(path)
        except StratalError as error:
            assert isinstance(error, FormatError), error
            refused += 1
            continue
        if not rehash:  # what the hash does not cover: versions, plans, the name
            assert bits(loaded(rows(2))) == expected
    assert refused > 60


@pytest.mark.parametrize("text", ["\ud800", "(2,", ",", "float99"])
def test_a_signature_with_text_that_is_no_dtype_is_refused(text: str) -> None:
    tensors = [{"name": "x", "dtype": text, "shape": [4]}]
    with pytest.raises(FormatError, match="dtype"):
        signature_from_json({"batched": False, "inputs": tensors, "outputs": tensors})


def test_no_file_of_an_artefact_is_python(artefact: Path) -> None:
    files = read_container(artefact)
    assert set(files) == {
        "artifact.json", "graphs.json", "plans.json", "weights.safetensors", "constants.safetensors"
    }  # fmt: skip
    for name in files:
        if name.endswith(".json"):
            json.loads(bytes(files[name]))
    assert os.path.getsize(artefact) < 200_000


def test_batch_sizes_compute_in_one_workspace_and_keep_what_they_returned() -> None:
    st.manual_seed(5)
    net = nn.Sequential(
        nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 24), nn.Softmax(-1), nn.Linear(24, 5)
    ).eval()
    frozen = st.freeze(net, np.ones((2, 24), np.float32), batch_sizes=(1, 4, 16))
    workspace = Workspace()
    with settings.verify(False):  # whose blocks have guards, each its own
        loaded = [compile_graph(frozen.graph(n), workspace=workspace).loaded for n in (16, 4, 1)]
        alone = compile_graph(frozen.graph(16)).loaded
    assert len({address_of(p.memory.arena) for p in loaded}) == 1
    assert address_of(alone.memory.arena) != address_of(loaded[0].memory.arena)
    assert loaded[0].memory.arena.nbytes > loaded[-1].memory.arena.nbytes > 0
    x = np.random.default_rng(1).random((16, 24), np.float32)
    compiled = st.compile(net)
    with st.no_grad():
        expected = {n: bits(compiled(st.tensor(x[:n]))) for n in (1, 4, 16)}
    outputs = [(n, frozen(x[:n])) for _ in range(3) for n in (16, 1, 4)]
    assert all(bits(y) == expected[n] for n, y in outputs)


class Spectrum(nn.Module):
    def forward(self, x: Any) -> Any:
        return st.linalg.eigvalsh(x * 2 + x.mT) * 2


def test_a_program_with_host_calls_stays_out_of_a_workspace() -> None:
    sample = np.random.default_rng(2).random((2, 3, 3), np.float32)
    frozen = st.freeze(Spectrum(), sample, batch_sizes=(2, 4))
    workspace = Workspace()
    with settings.verify(False):
        loaded = [compile_graph(frozen.graph(n), workspace=workspace).loaded for n in (4, 2)]
    assert all(p.calls_back and p.memory.arena.nbytes for p in loaded)
    assert len({address_of(p.memory.arena) for p in loaded}) == 2
