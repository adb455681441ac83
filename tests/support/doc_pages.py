"""The code of the documentation, run as a reader would run it.

    ```python                      runs; the blocks of a page share names, from top to bottom
    ```sh                          runs in a shell, in an empty folder
    ```output                      what the block before it printed, or the error it raised

    <!-- not run: REASON -->       before a block that is only shown
    <!-- needs: MODULE ... -->     before a block that runs where those modules are installed
    <!-- run by: FILE -->          before a block that another test takes and runs
    <!-- printed by NAME -->       before a block that `doc_examples` writes
    <!-- on: TARGET -->            before an output that other targets print otherwise
    <!-- setup
    ...                            code that runs and is not shown
    -->

Outputs are compared word for word, but for numbers with a point, which may differ by 1 % or in their last
digit (other processors add in another order), and for `...`, which stands for anything.

    python tests/support/doc_pages.py [PAGE ...]     runs pages, writes what they print into them
    python tests/support/doc_pages.py --json FILE    runs all, writes what is wrong into a file
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from stratal.base import settings
from stratal.base.errors import StratalError

ROOT: Final = Path(__file__).parents[2]
BLOCK: Final = re.compile(
    r"(?:^<!-- (?P<mark>not run|needs|run by|printed by|on):? (?P<what>[^\n]*?) -->\n)?"
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$"
    r"|^<!-- setup\n(?P<setup>.*?)^-->$",
    re.DOTALL | re.MULTILINE,
)
FLOAT: Final = re.compile(r"-?\d+\.\d*(?:e[+-]?\d+)?")
RUNS: Final = ("python", "sh")
LIMIT_S: Final = 300


@dataclass(frozen=True)
class Block:
    """A block of code, the output shown for it, and where that output stands in the page's text."""

    language: str
    text: str
    line: int
    mark: str = ""
    what: str = ""
    shown: str | None = None
    place: tuple[int, int] = (0, 0)
    target: str = ""

    @property
    def runs(self) -> bool:
        if self.mark == "needs":
            return all(importlib.util.find_spec(module) for module in self.what.split())
        return not self.mark and self.language in RUNS

    def shows(self, printed: str) -> bool:
        """Return whether the page shows what was printed, where it shows it for this machine."""
        from stratal.plan.host import current_target

        elsewhere = self.target and self.target != current_target().name
        return self.shown is None or bool(elsewhere) or agrees(self.shown, printed)


def pages() -> list[Path]:
    """Return the pages that are kept as files: the README and all of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page in order, each joined with the output that follows it."""
    text, found = page.read_text(encoding="utf-8"), list[Block]()
    for m in BLOCK.finditer(text):
        line = text.count("\n", 0, m.start()) + 1
        if m["setup"] is not None:
            found.append(Block("python", m["setup"], line))
        elif m["language"] == "output":
            target = m["what"] if m["mark"] == "on" else ""
            found[-1] = replace(found[-1], shown=m["text"], place=m.span("text"), target=target)
        else:
            found.append(Block(m["language"], m["text"], line, m["mark"] or "", m["what"] or ""))
    return found


def run(page: Path) -> list[tuple[Block, str, str]]:
    """Run a page in a folder of its own; return each block that ran, what it printed, and how it failed."""
    import stratal as st

    names: dict[str, Any] = {"__name__": "__main__"}
    to_run, done, before = [b for b in blocks(page) if b.runs], list[tuple[Block, str, str]](), Path.cwd()
    with tempfile.TemporaryDirectory() as folder, settings.using(threads=2):  # estimates depend on them
        os.chdir(folder)
        st.manual_seed(0)
        try:
            for k, block in enumerate(to_run):
                once = _python if block.language == "python" else _shell
                printed, fault = once(block, names, Path(folder) / f"block{k}")
                done.append((block, printed, fault))
                if fault:
                    break
        finally:
            os.chdir(before)
    return done


def _python(block: Block, names: dict[str, Any], folder: Path) -> tuple[str, str]:
    """Run a block as the lines of a file example.py, so that errors name lines a reader can count."""
    folder.mkdir()
    (folder / "example.py").write_text(block.text, encoding="utf-8")
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(block.text, str(folder / "example.py"), "exec"), names)
    except Exception as e:
        new = block.shown == "" and isinstance(e, StratalError)
        if not new and type(e).__name__ not in (block.shown or ""):
            return printed.getvalue(), traceback.format_exc()
        printed.write(f"{type(e).__name__}: {e}\n")
    return _trimmed(printed.getvalue()), ""


def _shell(block: Block, names: dict[str, Any], folder: Path) -> tuple[str, str]:
    bin_first = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-e"], input=block.text, capture_output=True, text=True, timeout=LIMIT_S, env=bin_first
    )
    return _trimmed(done.stdout), "" if done.returncode == 0 else done.stderr[-3000:]


def _trimmed(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.rstrip().splitlines())


def agrees(shown: str, printed: str) -> bool:
    """Return whether a page shows what was printed; `...` stands for anything."""
    parts = [
        re.escape(FLOAT.sub("\0", part)).replace("\0", f"({FLOAT.pattern})") for part in shown.split("...")
    ]
    found = re.fullmatch(".*?".join(parts), printed, re.DOTALL)
    return found is not None and all(map(_close, FLOAT.findall(shown.replace("...", " ")), found.groups()))


def _close(shown: str, printed: str) -> bool:
    digits = len(shown.partition("e")[0].partition(".")[2])
    unit = 10.0**-digits * 10.0 ** int(shown.partition("e")[2] or 0)
    return abs(float(shown) - float(printed)) <= max(0.01 * abs(float(shown)), 1.5 * unit)


def faults(page: Path) -> Iterator[str]:
    """Run a page and yield what is wrong with it."""
    name = page.relative_to(ROOT)
    for block, printed, fault in run(page):
        if fault:
            yield f"{name}:{block.line}: {fault}"
        elif not block.shows(printed):
            yield f"{name}:{block.line}: the page shows\n{block.shown}\nand the code prints\n{printed}"


def renew(page: Path) -> list[str]:
    """Run a page, write the outputs that differ into it, and return what failed."""
    text, failed = page.read_text(encoding="utf-8"), list[str]()
    for block, printed, fault in reversed(run(page)):
        if fault:
            failed.append(f"{page}:{block.line}: {fault}")
        elif not block.shows(printed):
            text = text[: block.place[0]] + printed + text[block.place[1] :]
    if text != page.read_text(encoding="utf-8"):
        page.write_text(text, encoding="utf-8")
    return failed


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--json"]:
        chosen = [Path(a) for a in arguments[2:]] or pages()
        report = {str(page.relative_to(ROOT)): list(faults(page)) for page in chosen}
        Path(arguments[1]).write_text(json.dumps(report), encoding="utf-8")
        return 0
    failed = [fault for page in [Path(a) for a in arguments] or pages() for fault in renew(page)]
    for fault in failed:
        print(fault, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
