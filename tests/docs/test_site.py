"""The site: its reference has every public name, and its pages are whole and load nothing from elsewhere."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from layout import ROOT

import stratal as st

GENERATE = ROOT / "docs" / "generate"
pytestmark = pytest.mark.skipif(not GENERATE.exists(), reason="runs in a checkout only")
sys.path.insert(0, str(GENERATE))


@pytest.fixture(scope="module")
def reference() -> dict[str, str]:
    import reference as made

    return made.pages()


def test_every_public_namespace_has_a_page_with_all_its_names(reference: dict[str, str]) -> None:
    import namespaces

    for name, module in namespaces.namespaces():
        missing = [
            e.name for e in namespaces.entries(module) if f"{{ #{name}.{e.name} }}" not in reference[name]
        ]
        assert missing == []
    functions = [e.name for group in namespaces.functions().values() for e in group]
    assert [n for n in functions if f"{{ #stratal.{n} }}" not in reference["stratal"]] == []
    assert {"conv2d", "cross_entropy"} <= {e.name for e in namespaces.entries(st.nn.functional)}
    assert set(st._MODULES) - {"compat"} <= set(reference)


def test_an_entry_has_its_signature_its_docstring_and_its_place(reference: dict[str, str]) -> None:
    entry = reference["nn"].partition("{ #nn.Linear }")[2].partition("\n## ")[0]
    assert "Linear(in_features: int, out_features: int, bias: bool = True" in entry
    assert re.search(r"`nn/linear\.py:\d+`", entry)
    assert "Another name of [`stratal.grad`](stratal.md#stratal.grad)" in reference["func"]


def test_a_docstring_becomes_markdown() -> None:
    import docstrings

    text = """Return x[i] * y_1 <- 2, see `a*b`.

    Shapes: [m, n]
    """
    assert docstrings.markdown(text.replace("    ", "")) == (
        "Return x\\[i\\] \\* y\\_1 &lt;- 2, see `a*b`.\n\n**Shapes:** \\[m, n\\]"
    )
    assert (
        docstrings.markdown("An example:\n    f(x)\n      .g()")
        == "An example:\n\n```text\nf(x)\n  .g()\n```"
    )

    def f(self, x: int, y="a", *, z: None = None) -> None: ...

    assert docstrings.signature("f", f) == "f(x: int, y='a', *, z=None)"


def test_pictures_are_drawn_with_every_box_and_arrow_inside() -> None:
    import pictures

    boxes = {name: pictures.Box([name, "f32[2]"]) for name in "abcde"}
    arrows = [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("e", "d")]
    text = pictures.drawing(boxes, arrows)
    root = ElementTree.fromstring(text)
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    rects = [r.attrib for r in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert len(rects) == len(boxes) and text.count("marker-end") == len(arrows)
    for r in rects:
        assert float(r["x"]) >= 0 and float(r["x"]) + float(r["width"]) <= width + 1
        assert float(r["y"]) >= 0 and float(r["y"]) + float(r["height"]) <= height + 1
    rows: dict[str, list[dict[str, str]]] = {}
    for r in rects:
        rows.setdefault(r["y"], []).append(r)
    for row in rows.values():
        ends = sorted((float(r["x"]), float(r["x"]) + float(r["width"])) for r in row)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(ends))
    for name, svg in pictures.pictures().items():
        ElementTree.fromstring(svg)
        assert (pictures.FOLDER / name).exists()


def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"([^\"]*)", text)
        assert [place for place in loaded if "//" in place] == []
        if page.name != "404.html":
            assert "style.css" in text and re.search(r"<h1[ >]", text)
    for style in (tmp_path / "site").rglob("*.css"):
        assert "//" not in re.sub(r"/\*.*?\*/", "", style.read_text(encoding="utf-8"))
