"""The command line: every command helps, writes JSON, and says what is wrong in words."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stratal.base import settings
from stratal.cli import COMMANDS, main
from stratal.graph.op import REGISTRY


def stratal(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stratal", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
        timeout=600,
    )


@pytest.mark.quick
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_that_names_its_json_option(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert "--json FILE" in capsys.readouterr().out


def test_without_a_command_the_usage_is_shown_and_the_status_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["dance"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
    assert "usage: stratal" in capsys.readouterr().err


def test_ops_lists_every_primitive_with_file_and_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ops", "--json", str(tmp_path / "ops.json")]) == 0
    rows = json.loads((tmp_path / "ops.json").read_text())
    ops = {name for name, record in REGISTRY.items() if record.__module__.startswith("stratal.ops.")}
    assert {row["name"] for row in rows} == ops - {"input", "const", "item"}
    for row in rows:
        assert {"name", "file", "differentiable", "lowered"} <= set(row)
        assert row["file"].startswith("stratal/ops/")
        assert bool(row["not_differentiable"]) != row["differentiable"]
        assert bool(row["not_lowered"]) != row["lowered"]
    assert f"{len(rows)} primitives" in capsys.readouterr().out


def test_at_least_nine_in_ten_primitives_are_compiled(tmp_path: Path) -> None:
    main(["ops", "--json", str(tmp_path / "ops.json")])
    rows = json.loads((tmp_path / "ops.json").read_text())
    borrowed = ("ops/linalg/", "ops/fourier/")  # factorisations and transforms of NumPy
    own = [row for row in rows if not any(folder in row["file"] for folder in borrowed)]
    assert sum(row["lowered"] for row in own) >= 0.9 * len(own)


@pytest.mark.quick
def test_ops_can_be_asked_for_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "concat"]) == 0
    out = capsys.readouterr().out
    assert "concatenate" in out
    assert "1 primitive," in out


def test_doctor_lists_every_setting_with_its_origin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with settings.threads(1):
        assert main(["doctor", "--no-measure", "--json", str(tmp_path / "d.json")]) == 0
    report = json.loads((tmp_path / "d.json").read_text())
    rows = {row["name"]: row for row in report["settings"]}
    assert set(rows) == set(settings.SETTINGS)
    assert (rows["threads"]["value"], rows["threads"]["origin"]) == (1, "context")
    assert report["target"]["cpu"]
    assert re.match(r"OpenBLAS \(|NumPy's", report["lapack"])
    out = capsys.readouterr().out
    assert all(setting.variable in out for setting in settings.SETTINGS.values())


@pytest.mark.sampled(8)
def test_doctor_measures_memory_and_arithmetic(tmp_path: Path) -> None:
    assert main(["doctor", "--json", str(tmp_path / "d.json")]) == 0
    ceilings = json.loads((tmp_path / "d.json").read_text())["ceilings"]
    assert {c["name"] for c in ceilings} == {"memory read", "memory copy", "matrix product"}
    assert all(c["rate"] > 1e8 for c in ceilings)


def test_doctor_says_what_the_cache_holds_or_why_it_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    expected = {"fresh": (0, "0 entries"), "file": (1, "not a directory"), "off": (0, "kernel cache: off")}
    for name, (status, says) in expected.items():
        with settings.cache_dir(None if name == "off" else tmp_path / name):
            assert main(["doctor", "--no-measure", "--json", str(tmp_path / "d.json")]) == status
        assert says in capsys.readouterr().out
        assert json.loads((tmp_path / "d.json").read_text())["cache"]["usable"] is (name == "fresh")


@pytest.mark.quick
def test_an_error_is_four_lines_on_stderr_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--json", "/proc/nowhere/ops.json"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("stratal: save: cannot write ops.json")
    assert "Traceback" not in error


def test_an_unknown_setting_stops_every_command() -> None:
    ended = stratal("ops", STRATAL_TREADS="2")
    assert ended.returncode == 1
    assert "did you mean STRATAL_THREADS?" in ended.stderr


OUTPUTS = ["--help", "--version", "demo --help", "ops", "doctor", "explain SCRIPT", "profile SCRIPT", "demo"]


SLOW = {"doctor": pytest.mark.slow}  # it measures the machine
WAYS = [
    *(pytest.param(arguments, "", marks=SLOW.get(arguments, ())) for arguments in OUTPUTS),
    ("--help", "1"), ("ops", "1"),
]  # fmt: skip


@pytest.mark.sampled(16)
@pytest.mark.parametrize("arguments, unbuffered", WAYS)
def test_an_output_that_cannot_be_written_is_told_in_one_line(
    arguments: str, unbuffered: str, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text("import stratal as st\nst.compile(lambda x: x * 2)(st.ones(3))\n")
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}

    def ended(output: int) -> tuple[int, str]:
        command = arguments.replace("SCRIPT", str(tmp_path / "script.py")).split()
        done = subprocess.run(
            [sys.executable, "-m", "stratal", *command], env=environment, stdout=output,
            stderr=subprocess.PIPE, text=True, timeout=600,
        )  # fmt: skip
        os.close(output)
        return done.returncode, done.stderr

    full = os.open("/dev/full", os.O_WRONLY)
    assert ended(full) == (1, "stratal: cannot write the output: No space left on device\n")
    unread, written = os.pipe()
    os.close(unread)  # the reader, `head` say, has seen enough: that is no error
    assert ended(written) == (1, "")


def test_ctrl_c_ends_a_command_with_status_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from stratal.cli import ops

    def interrupted(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(ops, "run", interrupted)
    assert main(["ops"]) == 130
    assert "interrupted" in capsys.readouterr().err


OK = """
import stratal as st
st.compile(lambda x: (x @ x).sum())(st.ones(16, 16))
"""
REFUSED = {  # arguments after a script, the status, and what is said
    "svg": (["explain", "--svg", "no/where.svg", "ok.py"], 1, "save: cannot write where.svg"),
    "png": (["explain", "--svg", "no/where.png", "ok.py"], 1, "save: cannot write where.png"),
    "dot": (["explain", "--dot", "no/where.dot", "ok.py"], 1, "save: cannot write where.dot"),
    "json": (["explain", "--json", "no/where.json", "ok.py"], 1, "save: cannot write where.json"),
    "roofline": (["profile", "--roofline", "no/where.png", "ok.py"], 1, "save: cannot write where.png"),
    "kernel 99": (["explain", "--kernel", "99999", "ok.py"], 1, "no program shown has such a kernel"),
    "kernel 0": (["explain", "--kernel", "0", "ok.py"], 2, "a whole number from 1 on; got '0'"),
    "another name": (["explain", "--only", "nosuch", "ok.py"], 1, "no program whose name contains 'nosuch'"),
    "another profile": (["profile", "--only", "nosuch", "ok.py"], 1, "no program whose name contains"),
    "minus one row": (["profile", "--top", "-1", "ok.py"], 2, "a whole number from 1 on"),
    "junk.ll": (["explain", "junk.ll"], 1, "stage: LLVM refuses this text"),
    "junk.kernel": (["explain", "junk.kernel"], 1, "got:"),
    "junk.graph": (["explain", "junk.graph"], 1, "got:"),
    "seed": (["tune", "--seed", "-1", "ok.py"], 2, "a whole number from 0 on; got '-1'"),
    "limit": (["tune", "--limit", "nan", "ok.py"], 2, "takes seconds, more than 0; got 'nan'"),
    "no limit": (["tune", "--limit", "0", "ok.py"], 2, "takes seconds, more than 0"),
    "no end": (["tune", "--seconds", "inf", "ok.py"], 2, "takes seconds, more than 0"),
    "trials": (["tune", "--trials", "1.5", "ok.py"], 2, "a whole number from 1 on"),
    "seeds": (["demo", "--seeds", "x"], 2, "a whole number from 1 on; got 'x'"),
    "plan": (["plan-serving", "no.toml"], 1, "hint:  `stratal plan-serving --help` says what it takes"),
    "op": (["ops", "add", "nosuch"], 1, "no op whose name contains 'nosuch'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_said_without_a_trace(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, status, says = REFUSED[name]
    if name in ("png", "roofline"):
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    Path("ok.py").write_text(OK)
    for suffix in ("ll", "kernel", "graph"):
        Path(f"junk.{suffix}").write_text("junk")
    try:
        found = main(arguments)
    except SystemExit as ended:
        found = int(ended.code or 0)
    assert found == status
    shown = capsys.readouterr().err
    assert says in shown and "fault of Stratal\n" not in shown and "help()" not in shown


def test_a_script_may_close_its_output(tmp_path: Path) -> None:
    (tmp_path / "closes.py").write_text(OK + "import sys\nsys.stdout.close()\n")
    ended = stratal("explain", str(tmp_path / "closes.py"))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "1 program compiled" in ended.stdout


def test_an_error_does_not_point_into_the_script_that_started_the_command(tmp_path: Path) -> None:
    script = tmp_path / "stratal"  # as an installation has it
    script.write_text("import sys\nfrom stratal.cli import main\nsys.exit(main())\n")
    ended = subprocess.run(
        [sys.executable, script, "train", tmp_path / "absent.toml"], capture_output=True, text=True,
        stdin=subprocess.DEVNULL, check=False, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 1 and "absent.toml" in ended.stderr
    assert "hint:" in ended.stderr and "where:" not in ended.stderr


UNREAD = {  # how a script may end, whether something is left to compute, and the command
    "in a variable": ("y = f(st.ones(2, 3))", True, "view"),
    "in a gradient": ("f(st.ones(2, 3)).backward()", True, "explain"),
    "in an attribute": ("class A: pass\na = A()\na.y = [f(st.ones(2, 3))]", True, "memory"),
    "by nobody": ("f(st.ones(2, 3))", False, "view"),
}


@pytest.mark.parametrize("name", UNREAD)
def test_what_a_script_leaves_unread_is_compiled_or_said_to_be_never_computed(
    name: str, tmp_path: Path
) -> None:
    last, compiles, command = UNREAD[name]
    head = ["import stratal as st", "net = st.nn.Linear(3, 4)", "f = st.compile(lambda x: net(x).sum())"]
    (tmp_path / "script.py").write_text("\n".join([*head, last]))
    page = ["-o", str(tmp_path / "page.html")] if command == "view" else []
    ended = stratal(command, *page, str(tmp_path / "script.py"))
    assert ("are computed when they are read" in ended.stdout) == (not compiles), ended.stdout
    assert (ended.returncode, ended.stderr) == (0 if compiles else 1, "")
