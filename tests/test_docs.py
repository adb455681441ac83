"""The documentation shows what the code prints, its examples run, and what it names is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from doc_examples import DOCS, blocks, printed
from test_tiers import TIER

ROOT = DOCS.parent
PACKAGE = ROOT / "src" / "stratal"
PAGES = sorted(DOCS.glob("*.md"))
pytestmark = pytest.mark.skipif(not PACKAGE.exists(), reason="runs in a checkout only")
RENEW = "out of date: look at the difference, then run `python tests/doc_examples.py`"


@pytest.mark.parametrize(
    ("page", "name", "shown"), blocks(), ids=lambda v: v if str(v).isidentifier() else ""
)
def test_the_documentation_shows_what_the_code_prints(page: Path, name: str, shown: str) -> None:
    assert shown == printed(name), f"{page.name}: {RENEW}"


def test_the_example_of_a_new_op_runs_from_top_to_bottom(tmp_path: Path) -> None:
    text = (DOCS / "ops.md").read_text(encoding="utf-8")
    text = re.sub(r"<!-- printed by .*?```python.*?```", "", text, flags=re.DOTALL)
    program = tmp_path / "softsign.py"
    program.write_text("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)), encoding="utf-8")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "1 kernel" in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_file_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    places = (ROOT, PACKAGE, PACKAGE / "ops", PACKAGE / "schedule" / "tactics")
    named = set(re.findall(r"`((?:[\w.]+/)+(?:[\w]+\.\w+)?|\w+\.py)", text))
    assert [n for n in sorted(named) if not any((p / n).exists() for p in places)] == []
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    links = re.findall(r"\]\(([^)h#][^)#]*)\)", prose)
    assert [link for link in links if not (DOCS / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_module_attribute_a_page_names_is_there(page: Path) -> None:
    """A name in a table of pipeline steps or of the form `module.py` (`name`) must be defined somewhere."""
    text = page.read_text(encoding="utf-8")
    source = "\n".join(p.read_text(encoding="utf-8") for p in PACKAGE.rglob("*.py"))
    called = set(re.findall(r"`(\w+)\(", text))
    missing = [n for n in called if not re.search(rf"\b(def|class) {n}\b", source) and n not in BUILTINS]
    assert missing == []


def test_the_tier_table_of_the_design_has_every_folder_and_agrees_with_the_tier_test() -> None:
    rows = re.findall(
        r"^\| (\d+) \| (.*?) \|", (DOCS / "design.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    tier = {name: int(k) for k, names in rows for name in re.findall(r"`(\w+)(?:/|\.py)`", names)}
    folders = {p.parent.name for p in PACKAGE.glob("*/*.py")} | {"compiler"}
    assert set(tier) == folders
    assert all((tier[a] < tier[b]) == (TIER[a] < TIER[b]) for a in tier for b in tier)


BUILTINS = {"print", "sum", "bool", "guard", "lanes"}
