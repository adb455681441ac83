"""The explorer's data and page: what it holds, what cannot break out of it, saved plans, the command."""

from __future__ import annotations

import base64
import copy
import json
import re
import zlib
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim
from stratal.base import settings
from stratal.base.errors import AttributeValueError, FormatError, StratalError
from stratal.base.types import TensorType
from stratal.cli import main
from stratal.compiler import compile_graph
from stratal.explorer.page import SCRIPTS, Page, escaped
from stratal.explorer.saved import read_plans
from stratal.explorer.subject import describe
from stratal.explorer.view import view
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import graph_input
from stratal.inspect import recorder
from stratal.inspect.explored import explored
from stratal.inspect.memory_map import KINDS, memory_svg
from stratal.models import resnet18

HOSTILE = "</script><script>document.title='broken'</script><!--\u2028\"'&lt;%3Cimg src=x onerror=alert(1)>"

SCRIPT = """
import numpy as np
import stratal as st

@st.compile
def norm(x):
    return ((x - x.mean()) ** 2).sum()

print(norm(st.tensor(np.ones((64, 8), np.float32))).item())
"""


class Scripts(HTMLParser):
    """Collects the script elements of a page: attributes and text of each."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[dict[str, str | None], str]] = []
        self.tags: set[str] = set()
        self._inside = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self._inside = tag == "script"
        if self._inside:
            self.found.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.found[-1] = (self.found[-1][0], self.found[-1][1] + data)


def data_of(html: str) -> list[dict[str, Any]]:
    """Return the data in a page, as a browser would read it."""
    data = next(text for attributes, text in Scripts(html).found if attributes.get("id") == "data")
    rows: list[dict[str, Any]] = json.loads(data)
    return rows


@pytest.fixture(scope="module")
def step() -> Any:
    st.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = optim.SGD(net.parameters(), lr=0.1)

    @st.compile
    def train_step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    x = st.tensor(np.ones((16, 32), np.float32))
    train_step(x, st.tensor(np.arange(16) % 10)).item()
    return train_step


def unpacked(text: str) -> str:
    return zlib.decompress(base64.b64decode(text)).decode()


def hostile_program() -> Any:
    """Return a program whose labels, name and source would break out of a careless page."""
    x = graph_input(HOSTILE, TensorType(st.float32, (4, 8)))
    b = Builder()
    return compile_graph(Graph([x], [b.mul(b.exp(x), x)], name=HOSTILE))


@pytest.mark.quick
def test_a_page_holds_graphs_kernels_code_memory_decisions_and_source(step: Any) -> None:
    (row,) = data_of(step.view().html)
    plan = step.plan
    assert row["hash"] == plan.hash
    assert len(row["kernels"]) == len(plan.kernels)
    assert {k["symbol"] for k in plan.kernels} == set(row["code"])
    assert len(row["decisions"]) == len(step.program.log)
    assert row["memory"]["bytes"] == plan.memory["arena_bytes"]
    captured = row["graphs"]["captured"]["nodes"]
    assert {n[0] for n in captured} >= {"input", "contract"}
    assert all(i < k for k, n in enumerate(captured) for i in n[1] if n[0] != "input")
    texts = {f["name"]: f["text"] for f in row["source"]["files"]}
    assert "def train_step" in texts[Path(__file__).name]


def test_every_node_of_a_kernel_is_in_the_graph_as_compiled_with_its_number(step: Any) -> None:
    row = describe(step.program)
    graph = row["graphs"]["optimised"]
    of_kernel: dict[int, list[str]] = {}
    for node, numbers in graph["kernels"].items():
        for number in numbers:
            of_kernel.setdefault(number, []).append(graph["nodes"][node][0])
    for kernel in step.plan.kernels:
        if kernel["ops"]:
            assert sorted(of_kernel[kernel["number"]]) == sorted(kernel["ops"])


@pytest.mark.parametrize("share", [1.0, 0.6])
def test_the_memory_view_shows_the_offsets_that_the_program_has(share: float) -> None:
    """Arenas of 1 to 8 MB are laid out in two ways, of which budgets take the smaller."""
    x, b = graph_input("x", TensorType(st.float32, (512, 128))), Builder()
    links = [x]
    for _ in range(16):
        links.append(b.sin(b.mul(links[-1], links[-1])))
    pulled = links[-1]
    for link in reversed(links):
        pulled = b.mul(pulled, b.cos(link))
    graph = Graph([x], [b.sum(pulled, axes=(0, 1))], name="chain")
    budget = int(compile_graph(graph, fused=False).plan.planned_peak_bytes * share)
    with st.base.settings.memory(budget):
        program = compile_graph(graph, fused=False)
    shown = describe(program, assembled=0)["memory"]
    offset_of = {value.id: value.offset for value in program.executable.values}
    assert 1 << 20 < shown["bytes"] == program.plan.memory["arena_bytes"] < 8 << 20
    assert [block["offset"] for block in shown["blocks"]] == [offset_of[b["root"]] for b in shown["blocks"]]


def test_loops_llvm_and_assembly_of_a_kernel_are_unpacked_from_the_page(step: Any) -> None:
    row = describe(step.program)
    for symbol, scheduled in step.program.draft.kernels.items():
        assert unpacked(row["code"][symbol]["loops"]) == str(scheduled.kernel)
        assert "define" in unpacked(row["code"][symbol]["llvm"])
    assert "assembly" not in next(iter(describe(step.program, assembled=0)["code"].values()))


@pytest.mark.slow
def test_the_page_of_a_resnets_training_step_takes_less_than_five_megabytes() -> None:
    net = resnet18(num_classes=10)
    optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    @st.compile
    def train_step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    x = st.tensor(np.random.default_rng(0).standard_normal((8, 3, 64, 64)).astype(np.float32))
    train_step(x, st.tensor(np.arange(8))).item()
    page = train_step.view()
    assert len(page.html.encode()) < 5_000_000
    nested = {tuple(path) for path in page.programs[0]["graphs"]["captured"]["paths"]}
    assert ("ResNet", "layer1", "0", "conv1", "convolution") in nested


# -- nothing breaks out --------------------------------------------------------------------------------------
def test_hostile_labels_stay_data() -> None:
    program = hostile_program()
    html = view([program]).html
    scripts = Scripts(html)
    assert [a.get("type") for a, _ in scripts.found] == ["application/json", None]
    assert not scripts.tags & {"img", "iframe", "link", "object", "base", "form"}
    assert data_of(html)[0]["name"] == HOSTILE
    assert HOSTILE in {n[5] for n in data_of(html)[0]["graphs"]["captured"]["nodes"]}
    assert "<!--" not in html


@pytest.mark.parametrize(
    "text", ["</script>", "<!--", "]]>", "\u2028\u2029", "&lt;/script&gt;", "\\u003c", "\0\ud83d"]
)
def test_what_is_escaped_has_no_sign_that_html_reads_and_is_the_same_text(text: str) -> None:
    written = escaped({"x": text, text: [text]})
    assert not set(written) & set("<>&\u2028\u2029")
    assert json.loads(written) == {"x": text, text: [text]}


def test_the_page_asks_for_nothing_from_elsewhere(step: Any) -> None:
    html = step.view().html
    without_data = re.sub(r'<script type="application/json".*?</script>', "", html, flags=re.DOTALL)
    assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttpRequest|innerHTML|eval\(", without_data)
    assert "default-src &#x27;none&#x27;" in html
    assert all("unsafe" not in line for line in without_data.split("\n")[:8])


def test_a_notebook_shows_the_page_in_a_frame_that_cannot_reach_it(step: Any) -> None:
    shown = step.view()._repr_html_()
    assert shown.startswith("<iframe sandbox=\"allow-scripts\"") and shown.count("<") == 2


def test_the_script_and_style_are_files_of_the_package() -> None:
    assets = Path(st.__file__).parent / "explorer" / "assets"
    assert {p.name for p in assets.iterdir()} == {*SCRIPTS, "explorer.css", "explorer.html"}
    project = Path(st.__file__).parents[2] / "pyproject.toml"
    if project.exists():
        assert '"explorer/assets/*"' in project.read_text(encoding="utf-8")


# -- plans from files, and two beside each other -------------------------------------------------------------
def test_a_saved_plan_is_shown(step: Any, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(step.plan.to_json()), encoding="utf-8")
    (row,) = read_plans(tmp_path / "plan.json")
    assert row["hash"] == step.plan.hash and "graphs" not in row
    assert data_of(Page([row]).html)[0]["plan"] == json.loads(json.dumps(step.plan.to_json()))


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "7", "[7]", '{"format": 1}', '{"plan": []}', "[" * 100_000, "nul"], ids=range(9)
)
def test_what_is_no_plan_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(text, encoding="utf-8")
    with pytest.raises(FormatError):
        read_plans(tmp_path / "plan.json")


def test_a_plan_that_was_altered_is_refused(step: Any, tmp_path: Path) -> None:
    value = copy.deepcopy(step.plan.to_json())
    value["commands"][0]["chunks"] = 77
    (tmp_path / "plan.json").write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(FormatError, match="altered"):
        read_plans(tmp_path / "plan.json")


def test_two_plans_are_set_side_by_side() -> None:
    @st.compile
    def before(x: Any) -> Any:
        return (x.exp() + 1).sum()

    @st.compile
    def now(x: Any) -> Any:
        return (x.exp() + 1).sum() * x.max()

    x = st.tensor(np.ones((64, 64), np.float32))
    assert before(x).item() > 0 and now(x).item() > 0
    (row,) = now.view(diff=before).programs
    assert row["diff"]["hash"] == before.plan.hash
    assert [a for _, a, _ in row["diff"]["rows"] if a] == list(range(1, len(before.plan.kernels) + 1))
    assert [b for _, _, b in row["diff"]["rows"] if b] == list(range(1, len(now.plan.kernels) + 1))
    assert {what for what, _, _ in row["diff"]["rows"]} >= {"changed"}
    (same,) = now.view(diff=now.plan).programs
    assert {what for what, _, _ in same["diff"]["rows"]} == {"same"}


def test_a_diff_without_a_plan_is_refused(step: Any) -> None:
    with pytest.raises(AttributeValueError, match="diff takes a plan"):
        step.view(diff="before")


def test_a_function_that_did_not_run_has_no_page() -> None:
    with pytest.raises(StratalError):
        st.compile(lambda x: x + 1).view()


# -- budgets -------------------------------------------------------------------------------------------------
def budgeted(folder: Path) -> Any:
    """Return a training step within half of its memory, and states that wait in a folder."""
    net = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(192, 192), nn.Tanh())])
    optimizer = optim.Adam(net.parameters(), lr=1e-3)

    def train_step(x: Any) -> Any:
        loss = (net(x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    x = st.ones(1024, 192)
    whole = st.compile(train_step)
    whole(x)
    with settings.offload_dir(folder):
        small = st.compile(train_step, memory=int(0.5 * whole.plan.planned_peak_bytes))
        small(x)
    return small


def test_a_budget_shows_what_runs_again_and_what_waits_in_a_file(tmp_path: Path) -> None:
    small = budgeted(tmp_path)
    (row,) = small.view().programs
    memory = row["memory"]
    kinds = {block["kind"] for block in memory["blocks"]}
    assert {"copied from or to a file", "recomputed"} <= kinds and any(k.get("again") for k in row["kernels"])
    recomputed = [block for block in memory["blocks"] if block["kind"] == "recomputed"]
    launches = zip(row["kernels"], small.plan.kernels, strict=True)
    again = {value for about, launch in launches if about.get("again") for value in launch["writes"]}
    assert {block["root"] for block in recomputed} <= again
    copies = [c for c in row["plan"]["commands"] if c["do"] == "copy-done"]
    assert len(memory["copies"]) == len(copies) and {reads for *_, reads in memory["copies"]} == {True, False}
    assert all(first < last < memory["moments"] for first, last, *_ in memory["copies"])
    assert "copied from or to a file" in memory_svg(small.program)


def test_copies_to_a_file_are_not_said_to_want_a_better_schedule(tmp_path: Path) -> None:
    small = budgeted(tmp_path)
    with settings.offload_dir(tmp_path):
        found = st.profile(small, st.ones(1024, 192), repeats=3).programs[0].kernels
    copies = [row for row in found if "copy" in row.name]
    assert copies and {row.bound for row in copies} == {"overhead"}


def test_every_kind_of_buffer_has_its_colour() -> None:
    script = (resources.files("stratal.explorer") / "assets" / "plots.js").read_text(encoding="utf-8")
    coloured = re.search(r"BLOCK_KINDS = \{(.*?)\};", script, re.DOTALL)
    assert coloured is not None
    assert {kind.strip() for kind in re.findall(r'"?([a-z ]+)"?: "', coloured[1])} == set(KINDS)


# -- measured ------------------------------------------------------------------------------------------------
def test_a_profile_gives_times_and_a_timeline() -> None:
    @st.compile
    def work(x: Any) -> Any:
        return (x @ x).tanh().sum()

    x = st.tensor(np.ones((64, 64), np.float32))
    profile = st.profile(work, x, repeats=3, trace=True)
    (row,) = work.view(profile=profile).programs
    times = row["profile"]
    assert {k["number"] for k in times["kernels"]} >= {k["number"] for k in work.plan.kernels}
    tracks = times["timeline"]["tracks"]
    assert tracks[0] == "kernels" and min(e[1] for e in times["timeline"]["events"]) == 0
    assert {e[0] for e in times["timeline"]["events"]} <= set(range(len(tracks)))


def test_a_timeline_shows_the_last_runs_of_which_every_thread_has_its_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorder, "EVENTS_PER_LOG", 500)
    work = st.compile(lambda x: ((x @ x).tanh() @ x).sum())
    x = st.tensor(np.ones((256, 256), np.float32))
    program = st.profile(work, x, repeats=30, trace=True).programs[0]
    timeline = explored(program)["timeline"]
    assert program.times.events[1] > 0  # no room for all
    commands, thread = ([e for e in timeline["events"] if e[0] == track] for track in (0, 1))
    last = max(e[1] + e[2] for e in commands)
    assert any(e[1] + e[2] > last / 2 for e in thread)
    monkeypatch.setattr("stratal.inspect.explored.MOST_EVENTS", 5)
    short = explored(program)["timeline"]
    assert len(short["events"]) == 5 and short["about"] == f"1 of {program.num_runs} runs"


# -- the command ---------------------------------------------------------------------------------------------
def test_the_command_writes_a_page_and_compares_with_a_saved_plan(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "norm.py").write_text(SCRIPT, encoding="utf-8")
    assert main(["explain", "--only", "norm", "--json", "before.json", "norm.py"]) == 0
    assert main(["view", "--only", "norm", "--diff", "before.json", "norm.py", "--epochs", "1"]) == 0
    assert "norm.html: 1 program, " in capfd.readouterr().out
    (row,) = data_of((tmp_path / "norm.html").read_text(encoding="utf-8"))
    assert row["name"] == "norm" and {what for what, *_ in row["diff"]["rows"]} == {"same"}
    assert main(["view", "-o", "saved.html", "before.json"]) == 0
    (saved,) = data_of((tmp_path / "saved.html").read_text(encoding="utf-8"))
    assert saved["graphs"]["captured"]["nodes"] and saved["decisions"]


def test_the_command_says_what_is_wrong(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(tmp_path / "none.json")]) == 1
    assert "none.json" in capfd.readouterr().err
    assert main(["view", str(tmp_path / "none.py")]) == 1
    assert "there is no such script" in capfd.readouterr().err
    assert main(["view", str(tmp_path / "none.json"), "-o", "page.html"]) == 1
    assert "options stand before FILE" in capfd.readouterr().err
    (tmp_path / "empty.py").write_text("print(1)\n", encoding="utf-8")
    assert main(["view", "--only", "nothing has this name", str(tmp_path / "empty.py")]) == 1
