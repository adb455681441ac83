"""The explorer in a real browser: no complaint in its console, and clicks lead where they should."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import CHROMIUM, Browser
from test_explorer import HOSTILE, budgeted, hostile_program, step

import stratal as st
from stratal import optim
from stratal.explorer.view import view
from stratal.models import GPT2Config, GPT2LMHeadModel

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
__all__ = ["step"]
DRAWN = """(() => { const g = app.drawn; let n = 0; const node = g.node; g.node = (c, i) => { n++; };
    g.zoom = 1; g.surface.paint(); g.node = node; return n; })()"""  # nodes of a graph at its full size


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as made:
        yield made


@pytest.fixture(scope="module")
def page(step: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "step.html"
    step.view(path, diff=step.plan)
    return path.as_uri()


def text(browser: Browser, selector: str) -> str:
    return str(browser.evaluate(f"document.querySelector('{selector}').textContent"))


def views(browser: Browser) -> list[str]:
    buttons = "[...document.querySelectorAll('nav button')]"
    found: list[str] = browser.evaluate(f"{buttons}.map((b) => b.dataset.view)")
    return found


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_view_opens_without_a_complaint(browser: Browser, page: str, dark: bool) -> None:
    browser.open(page, dark=dark)
    assert browser.evaluate("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    shown = views(browser)
    assert shown == ["overview", "graph", "kernels", "memory", "roofline", "decisions", "source", "compare"]
    for name in shown:
        browser.click(f"nav [data-view={name}]")
        assert browser.evaluate("document.querySelector('nav .on').dataset.view") == name
        assert browser.evaluate("document.querySelector('main').childElementCount") == 1
    assert browser.complaints == []


def test_a_click_on_a_kernel_shows_its_panel_its_code_and_its_lines(browser: Browser, page: str) -> None:
    browser.open(f"{page}#0/kernels")
    name = browser.evaluate("app.program.byKernel.get(2).name")
    browser.click(".list [data-kernel='2']")
    assert "kernel 2 of" in text(browser, "aside .crumb")
    assert text(browser, "aside h2") == name
    browser.until("document.querySelector('pre[data-code]').textContent.startsWith('kernel')")
    browser.click("aside .seg button:nth-child(2)")
    browser.until("document.querySelector('pre[data-code]').textContent.includes('define')")
    assert browser.evaluate("document.querySelectorAll('.text .ln.on').length") >= 1
    browser.click(".text button.ln")
    assert text(browser, "aside .crumb") == "line of the program"
    browser.click("aside .links + h3 + .links .link, aside h3 + .links .link")
    assert "kernel " in text(browser, "aside .crumb")
    assert browser.complaints == []


def test_search_finds_and_takes_one_there(browser: Browser, page: str) -> None:
    browser.open(page)
    browser.click("header input")
    browser.type("cross_entropy")
    assert browser.evaluate("document.querySelectorAll('.found button').length") > 1
    browser.key("Enter")
    assert browser.evaluate("app.selected.type") == "kernel"
    assert "cross_entropy" in text(browser, "aside h2")
    browser.click("header input")
    browser.type(" no such thing at all")
    assert text(browser, ".found") == "nothing found"
    assert browser.complaints == []


def test_a_click_on_a_group_opens_it_and_on_a_node_shows_it(browser: Browser, page: str) -> None:
    browser.open(f"{page}#0/graph")
    browser.evaluate("app.drawn.all(false)")
    browser.painted()
    place = """(i => { const g = app.drawn, r = g.surface.canvas.getBoundingClientRect(), item = i(g);
        return [r.x + (item.ax + item.width / 2 - g.left) * g.zoom,
                r.y + (item.ay + Math.min(item.height, 20) / 2 - g.top) * g.zoom]; })"""
    before = browser.evaluate("app.drawn.items.length")
    browser.click_at(*browser.evaluate(f"{place}((g) => g.items.find((i) => i.group && i.parent))"))
    assert browser.evaluate("app.drawn.items.length") > before
    browser.evaluate("app.drawn.all(true)")
    browser.evaluate("app.drawn.fit([app.drawn.items.find((i) => !i.group)])")
    browser.painted()
    browser.click_at(*browser.evaluate(f"{place}((g) => g.items.find((i) => !i.group))"))
    assert browser.evaluate("app.selected.type") == "node"
    assert "as compiled" in text(browser, "aside .crumb")
    assert browser.complaints == []


def test_the_theme_can_be_switched(browser: Browser, page: str) -> None:
    browser.open(page)
    light = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    browser.click("button.theme")
    assert browser.evaluate("document.documentElement.dataset.theme") == "dark"
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") != light


def test_hostile_labels_are_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    view([hostile_program()], tmp_path / "hostile.html")
    browser.open((tmp_path / "hostile.html").as_uri())
    for name in views(browser):
        browser.click(f"nav [data-view={name}]")
    browser.evaluate("app.select({ type: 'node', graph: 'captured', id: 0 })")
    assert HOSTILE in text(browser, "aside")
    assert browser.evaluate("document.title") != "broken"
    assert browser.evaluate("document.images.length") == 0
    assert browser.complaints == []


def test_a_budget_is_drawn_with_its_copies_and_what_runs_again(browser: Browser, tmp_path: Path) -> None:
    budgeted(tmp_path).view(tmp_path / "small.html")
    browser.open((tmp_path / "small.html").as_uri())
    assert "kernels run again, to save memory" in text(browser, ".tiles")
    browser.click("nav [data-view=memory]")
    assert "of state in a file" in text(browser, "main .bar") and "recomputed" in text(browser, "main .foot")
    lane = "(() => { const m = app.drawn; return [m.copies.length, m.y(m.map.bytes) - MARGIN.top]; })()"
    copies, room = browser.evaluate(lane)
    assert copies > 0 and room > 20  # above the arena, below what is alive
    browser.click("nav [data-view=kernels]")
    browser.click("main input")
    browser.type("copy")
    assert browser.evaluate("document.querySelectorAll('.list .sheet .row').length") > 0
    assert browser.complaints == []


def test_kernels_of_one_code_count_together_in_the_overview(browser: Browser, tmp_path: Path) -> None:
    def layers(x: Any) -> Any:
        for _ in range(5):
            x = st.exp(x @ x).sum(0, keepdim=True) + x
        return x

    deep = st.compile(layers)
    deep(st.ones(48, 48))
    deep.view(tmp_path / "deep.html")
    browser.open((tmp_path / "deep.html").as_uri())
    found = browser.evaluate("app.program.alike.map((g) => [g.kernels.length, g.share])")
    assert max(n for n, _ in found) > 1 and sum(n for n, _ in found) == len(deep.plan.kernels)
    assert sum(part for _, part in found) == pytest.approx(1)
    assert browser.evaluate("document.querySelectorAll('.heavy').length") == min(len(found), 12)


def test_the_source_view_leaves_the_panel_to_what_is_selected(browser: Browser, page: str) -> None:
    browser.open(page)
    shown = "document.querySelectorAll('aside .source').length"
    assert browser.evaluate(shown) == 1
    browser.click("nav [data-view=source]")
    assert browser.evaluate(shown) == 0
    browser.click("nav [data-view=kernels]")
    assert browser.evaluate(shown) == 1


def odd_programs() -> list[Any]:
    """Return programs with loops, branches, calls of Python, without kernels, and with nothing to do."""
    x = st.tensor(np.ones((16, 8), np.float32))
    functions = (
        lambda x: st.scan(lambda c, row: (c * 0.5 + row, c.sum()), st.zeros(8), x),
        lambda x: st.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - 1, x),
        lambda x: st.while_loop(lambda c: c.sum() < 100, lambda c: c * 2, x),
        lambda x: st.linalg.svd(x)[1],
        lambda x: x,
    )
    compiled = [st.compile(f) for f in functions]
    for function in compiled:
        function(x)
    return [function.program for function in compiled]


def test_programs_of_all_kinds_open_whatever_is_selected(browser: Browser, tmp_path: Path) -> None:
    programs = odd_programs()
    view(programs, tmp_path / "odd.html")
    for number in range(len(programs)):
        browser.open(f"{(tmp_path / 'odd.html').as_uri()}#{number}/overview")
        for name in views(browser):
            browser.click(f"nav [data-view={name}]")
        browser.evaluate("""(() => {
            const p = app.program;
            for (const k of p.kernels) app.select({ type: "kernel", id: k.number });
            for (const which of ["captured", "optimised"])
                p.graphs[which].nodes.forEach((_, id) => app.select({ type: "node", graph: which, id }));
            p.memory.blocks.forEach((_, id) => app.select({ type: "block", id }));
            for (const line of p.lineKernels.keys()) app.select({ type: "line", id: line }); })()""")
        browser.painted()
    assert browser.complaints == []


@pytest.mark.slow
def test_the_step_of_a_gpt_with_48_layers_opens_and_draws_only_what_is_in_sight(
    browser: Browser, tmp_path: Path
) -> None:
    config = GPT2Config(n_embd=32, n_layer=48, n_head=2, vocab_size=64, n_positions=32)
    net = GPT2LMHeadModel(config)
    optimizer = optim.AdamW(net.parameters(), lr=1e-3)

    @st.compile
    def train_step(ids: Any) -> Any:
        loss = net(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    train_step(st.tensor(np.arange(32)[None])).item()
    train_step.view(tmp_path / "gpt.html")
    browser.open((tmp_path / "gpt.html").as_uri())
    for name in views(browser):
        browser.click(f"nav [data-view={name}]")
    browser.click("nav [data-view=graph]")
    browser.evaluate("app.drawn.all(true)")
    browser.painted()
    nodes, items = browser.evaluate("[app.drawn.nodes.length, app.drawn.items.length]")
    assert items > nodes > 5000
    assert browser.evaluate(DRAWN) < 500
    assert browser.complaints == []


def test_a_graph_of_five_thousand_nodes_draws_only_what_is_in_sight(browser: Browser, page: str) -> None:
    browser.open(page)
    browser.evaluate("""(() => {
        const nodes = [["input", [], "f32[8]", [], 0, "x"]];
        for (let k = 1; k < 5000; k++)
            nodes.push([["add", "mul", "exp"][k % 3], [k - 1, Math.max(0, k - 7)], "f32[8]", [], k % 50, ""]);
        const paths = [...Array(50)].map((_, k) => ["net", `layer ${k}`]);
        app.program.graphs.captured = { nodes, paths, outputs: [4999], updates: [] };
        app.graphs = {}; app.which = "captured"; app.go("graph"); })()""")
    browser.evaluate("app.drawn.all(true)")
    browser.painted()
    assert browser.evaluate("app.drawn.items.length") >= 4999
    assert browser.evaluate(DRAWN) < 500
    assert browser.complaints == []
