"""The documentation shows what the code prints, its examples run, and what it names is there."""

from __future__ import annotations

import ast
import builtins
import json
import operator
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import doc_pages
import pytest
from doc_examples import DOCS, blocks, printed
from test_tiers import TIER

ROOT = DOCS.parent
PACKAGE = ROOT / "src" / "stratal"
PAGES = sorted(DOCS.rglob("*.md"))
PAGE_NAME = operator.methodcaller("relative_to", DOCS)
pytestmark = pytest.mark.skipif(not PACKAGE.exists(), reason="runs in a checkout only")
RENEW = "out of date: look at the difference, then run `python tests/support/doc_examples.py`"


@pytest.mark.parametrize(
    ("page", "name", "shown"), blocks(), ids=lambda v: v if str(v).isidentifier() else ""
)
def test_the_documentation_shows_what_the_code_prints(page: Path, name: str, shown: str) -> None:
    assert shown == printed(name), f"{page.name}: {RENEW}"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, list[str]]:
    """Run all pages that are asked for in one process, which declares ops and targets the tests here must not
    see, with a cache of its own: what other tests measured and tuned changes plans.
    """
    report = tmp_path_factory.mktemp("pages") / "report.json"
    around = os.environ | {"STRATAL_CACHE_DIR": str(report.parent / "cache")}
    test = test_the_code_of_a_page_runs_and_prints_what_the_page_shows.__name__
    asked = [i for i in request.session.items if getattr(i, "originalname", "") == test]
    chosen = [str(item.callspec.params["page"]) for item in asked]  # type: ignore[attr-defined]
    program = [sys.executable, doc_pages.__file__, "--json", str(report), *chosen]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600, env=around)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(report.read_text(encoding="utf-8"))


def _with_rows(page: Path) -> Any:
    """Return a page with the row that it shows where all of its code runs."""
    if page.name != "lifecycle.md":
        return page
    whole = all(block.runs for block in doc_pages.blocks(page) if block.mark == "needs")
    lacks = pytest.mark.skipif(not whole, reason="needs the extras [serve], [data] and [sklearn]")
    return pytest.param(page, marks=[pytest.mark.row("B9"), lacks])


@pytest.mark.sampled(13)
@pytest.mark.parametrize(
    "page", [_with_rows(page) for page in doc_pages.pages()], ids=lambda p: str(p.relative_to(ROOT))
)
def test_the_code_of_a_page_runs_and_prints_what_the_page_shows(
    page: Path, ran: dict[str, list[str]]
) -> None:
    assert ran[str(page.relative_to(ROOT))] == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("page", doc_pages.pages(), ids=lambda p: str(p.relative_to(ROOT)))
def test_every_block_of_code_runs_or_says_why_it_does_not(page: Path) -> None:
    for block in doc_pages.blocks(page):
        assert block.language in ("python", "sh", "text"), (
            f"{page.name}:{block.line}: {block.language or 'no'}"
        )
        if block.mark == "run by":
            assert page.name in (ROOT / block.what).read_text(encoding="utf-8")
        assert block.runs or block.mark or block.language == "text"


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("loss 1.77\n", "loss 1.78\n", True),
        ("loss 1.77\n", "loss 1.87\n", False),
        ("3 kernels\n", "4 kernels\n", False),
        ("a ... 0.5\nend\n", "a 1.7 b 0.5\nend\n", True),
        ("a ... 0.5\nend\n", "a 1.7 b 0.9\nend\n", False),
        ("1e3 2.0e-05\n", "1e3 2.01e-05\n", True),
        ("2.0e-05\n", "2.0e-04\n", False),
        ("[1.]\n", "[1.]\nmore\n", False),
    ],
)
def test_outputs_are_compared_word_for_word_and_floats_as_floats(
    shown: str, printed: str, same: bool
) -> None:
    assert doc_pages.agrees(shown, printed) == same


@pytest.mark.sampled(2)
@pytest.mark.parametrize("page", PAGES, ids=PAGE_NAME)
def test_every_file_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    places = (ROOT, PACKAGE, PACKAGE / "ops", PACKAGE / "tensor", PACKAGE / "schedule" / "tactics")
    named = set(re.findall(r"`((?:[\w.]+/)+(?:[\w]+\.\w+)?|\w+\.py)", text))
    assert [n for n in sorted(named) if not any((p / n).exists() for p in places)] == []
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    links = re.findall(r"\]\(([^)h#][^)#]*)\)", prose)
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("page", PAGES, ids=PAGE_NAME)
def test_every_module_attribute_a_page_names_is_there(page: Path) -> None:
    """A name in a table of pipeline steps or of the form `module.py` (`name`) must be defined somewhere."""
    text = page.read_text(encoding="utf-8")
    source = "\n".join(p.read_text(encoding="utf-8") for p in PACKAGE.rglob("*.py"))
    if page.name.startswith("from-"):
        text = re.sub(r"^\| .*? \|", "|", text, flags=re.MULTILINE)  # the other library's names stand there
    called = set(re.findall(r"`(\w+)\(", text))
    missing = [
        n
        for n in called
        if not re.search(rf"\b(def|class) {n}\b", source) and n not in (*dir(builtins), *WORDS)
    ]
    assert missing == []


def test_the_tier_table_of_the_design_has_every_folder_and_agrees_with_the_tier_test() -> None:
    rows = re.findall(
        r"^\| (\d+) \| (.*?) \|", (DOCS / "design.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    tier = {name: int(k) for k, names in rows for name in re.findall(r"`(\w+)(?:/|\.py)`", names)}
    folders = {p.parent.name for p in PACKAGE.glob("*/*.py")} | {"compiler"}
    assert set(tier) == folders
    assert all((tier[a] < tier[b]) == (TIER[a] < TIER[b]) for a in tier for b in tier)


WORDS = ("guard", "lanes")  # of the loop language


def test_the_op_of_the_page_on_ops_is_annotated_as_the_type_checker_asks_in_the_package() -> None:
    code = re.findall(r"```python\n(.*?)```", (DOCS / "ops.md").read_text(), re.DOTALL)
    (file,) = (text for text in code if text.startswith(("import ", "from ")) and "@record" in text)
    found = [node for node in ast.walk(ast.parse(file)) if isinstance(node, ast.FunctionDef)]
    assert found
    for function in found:
        arguments = [*function.args.args[1:], *filter(None, [function.args.vararg, function.args.kwarg])]
        assert function.returns is not None, function.name
        assert all(a.annotation is not None for a in arguments), function.name
