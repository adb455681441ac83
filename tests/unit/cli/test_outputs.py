"""Files that commands write: no command replaces what it reads."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from stratal.cli import COMMANDS, build_parser, main
from stratal.cli.outputs import INPUTS, OUTPUTS

SCRIPT = "import stratal as st\nst.compile(lambda x: (x * 2).sum())(st.ones(8)).item()\n"


def test_every_path_of_every_command_is_known_as_an_input_or_an_output() -> None:
    for name in COMMANDS:
        commands = next(a for a in build_parser([name])._actions if isinstance(a, argparse._SubParsersAction))
        for action in commands.choices[name]._actions:
            if action.type is Path or action.dest == "arguments":
                assert (action.dest in INPUTS) != (action.dest in OUTPUTS), f"{name}: {action.dest}"


REPLACING = {
    "a page": ["view", "-o", "s.py", "s.py"],
    "by a link": ["view", "-o", "link.py", "s.py"],
    "by a hard link": ["explain", "--svg", "hard.py", "s.py"],
    "by another name": ["explain", "--json", "sub/../s.py", "s.py"],
    "a file for the script": ["profile", "--json", "own.txt", "s.py", "own.txt"],
    "a trace": ["profile", "--trace", "s.py", "s.py"],
    "memory": ["memory", "--json", "s.py", "s.py"],
    "tuning": ["tune", "--db", "s.py", "s.py"],
    "ranks": ["launch", "--json", "s.py", "s.py"],
    "a plan": ["view", "--diff", "s.json", "--json", "s.json", "s.py"],
    "a plan by default": ["view", "s.html"],
    "an artefact": ["inspect", "--json", "own.txt", "own.txt"],
    "rules": ["discover", "--check", "--rules", "own.txt", "--json", "own.txt"],
    "two": ["explain", "--svg", "new.svg", "--dot", "./new.svg", "s.py"],
}


@pytest.mark.parametrize("name", REPLACING)
def test_an_output_never_replaces_what_a_command_reads(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sub").mkdir()
    for file in ("s.py", "own.txt", "s.json", "s.html"):
        Path(file).write_text("raise SystemExit(3)")
    Path("link.py").symlink_to("s.py")
    os.link("s.py", "hard.py")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    assert main(REPLACING[name]) == 1
    assert "output" in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()} == before


def test_outputs_that_replace_nothing_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.py").write_text(SCRIPT)
    long_or_odd = ["x" * 5000, "a\nb"]
    for _ in range(2):  # a second run replaces what the first wrote
        assert main(["explain", "--dot", "/dev/null", "--json", "s.json", "s.py", *long_or_odd]) == 0
    assert Path("s.json").read_text().startswith("[")


def test_a_page_of_a_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (".", str(tmp_path), ".."):
        assert main(["view", folder]) == 1
        assert "there is no such script" in capsys.readouterr().err
