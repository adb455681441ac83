"""Pictures of the documentation, as SVG: a graph, the kernels of a step, its memory.

Boxes stand in layers, each below all it reads; inside a layer they move towards what they are joined with
(Sugiyama, Tagawa and Toda, 1981, without crossings counted).

    python docs/generate/pictures.py     writes them to docs/pictures
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import stratal as st
from stratal import nn, optim
from stratal.base import settings
from stratal.graph.graph import Graph
from stratal.graph.node import Const, Input
from stratal.inspect.memory_map import memory_svg
from stratal.plan.text import nested

FOLDER: Final = Path(__file__).parent.parent / "pictures"
WIDE, HIGH, LINE, GAP = 6.7, 46.0, 15.0, 18.0  # of a letter; from layer to layer; of a line; between boxes
SWEEPS: Final = 24
GIVEN, MADE, STATE = "#ffffff", "#eef2f7", "#cfe3c8"


class Box(NamedTuple):
    """What is drawn as one box: lines of text and a colour."""

    lines: Sequence[str]
    colour: str = MADE

    @property
    def width(self) -> float:
        return WIDE * max(map(len, self.lines)) + 18

    @property
    def height(self) -> float:
        return LINE * len(self.lines) + 10


def drawing(boxes: Mapping[Any, Box], arrows: Sequence[tuple[Any, Any]]) -> str:
    """Return boxes and arrows as SVG; `boxes` come in an order in which every arrow points forward."""
    layers = _layers(boxes, arrows)
    middle = _middles(boxes, arrows, layers)
    heights = [max(boxes[b].height for b in row) for row in layers]
    tops = [20 + sum(heights[:k]) + HIGH * k for k in range(len(layers))]
    top = {b: tops[k] for k, row in enumerate(layers) for b in row}
    width = max(middle[b] + boxes[b].width / 2 for b in boxes) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {tops[-1] + heights[-1] + 20:.0f}"'
        f' width="{width:.0f}" font-family="ui-monospace,DejaVu Sans Mono,monospace" font-size="11">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
        ' orient="auto"><path d="M0 0 8 4 0 8z" fill="#778"/></marker></defs>',
    ]
    for a, b in arrows:
        y, z = top[a] + boxes[a].height, top[b]
        bend = (z - y) / 2
        path = f"M{middle[a]:.0f} {y:.0f}C{middle[a]:.0f} {y + bend:.0f} {middle[b]:.0f} {z - bend:.0f}"
        path += f" {middle[b]:.0f} {z:.0f}"
        parts.append(f'<path d="{path}" fill="none" stroke="#99a" marker-end="url(#tip)"/>')
    for b, box in boxes.items():
        left = middle[b] - box.width / 2
        parts.append(
            f'<rect x="{left:.0f}" y="{top[b]:.0f}" width="{box.width:.0f}" height="{box.height:.0f}" rx="5"'
            f' fill="{box.colour}" stroke="#9aa"/>'
        )
        for k, line in enumerate(box.lines):
            y = top[b] + 5 + LINE * (k + 0.75)
            parts.append(f'<text x="{middle[b]:.0f}" y="{y:.0f}" text-anchor="middle">{escape(line)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _layers(boxes: Mapping[Any, Box], arrows: Sequence[tuple[Any, Any]]) -> list[list[Any]]:
    """Return the boxes by how far they stand below what they need; what needs nothing, by its reader."""
    depth = dict.fromkeys(boxes, 0)
    for b in boxes:
        depth[b] = max((depth[a] + 1 for a, to in arrows if to == b), default=0)
    needy = {b for _, b in arrows}
    for a in boxes:
        if a not in needy:
            depth[a] = min((depth[b] - 1 for frm, b in arrows if frm == a), default=0)
    return [[b for b in boxes if depth[b] == k] for k in range(max(depth.values()) + 1)]


def _middles(
    boxes: Mapping[Any, Box], arrows: Sequence[tuple[Any, Any]], layers: list[list[Any]]
) -> dict[Any, float]:
    """Return where each box stands from left to right."""
    joined: dict[Any, list[Any]] = {b: [] for b in boxes}
    for a, b in arrows:
        joined[a].append(b)
        joined[b].append(a)
    x = {b: 100.0 * k for row in layers for k, b in enumerate(row)}
    for _ in range(SWEEPS):
        for row in layers:
            wanted = {b: sum(x[n] for n in joined[b]) / len(joined[b]) if joined[b] else x[b] for b in row}
            row.sort(key=wanted.__getitem__)
            edge = -1e9
            for b in row:
                x[b] = max(wanted[b], edge + boxes[b].width / 2)
                edge = x[b] + boxes[b].width / 2 + GAP
            shift = sum(wanted[b] - x[b] for b in row) / len(row)
            for b in row:
                x[b] += shift
    left = min(x[b] - boxes[b].width / 2 for b in boxes) - 20
    return {b: x[b] - left for b in boxes}


def graph_picture(graph: Graph) -> str:
    """Return a graph, a box per node: its op, and its type."""
    nodes = list(dict.fromkeys((*graph.inputs, *graph.nodes)))
    states = {state for state, _ in graph.updates}
    boxes: dict[Any, Box] = {}
    for node in nodes:
        name = node.op.name
        if isinstance(node.op, Input):
            name = str(node.op.label)
        elif isinstance(node.op, Const):
            name = str(node.op.value.array)
        colour = STATE if node in states else GIVEN if not node.inputs else MADE
        boxes[node] = Box([name, str(node.type)], colour)
    arrows = [(operand, node) for node in nodes for operand in dict.fromkeys(node.inputs)]
    for k, node in enumerate(graph.outputs):
        boxes[f"out{k}"] = Box([f"output {k}"], GIVEN)
        arrows.append((node, f"out{k}"))
    for state, node in graph.updates:
        boxes["new", state] = Box([f"new {state.op.label}"], STATE)
        arrows.append((node, ("new", state)))
    return drawing(boxes, arrows)


def kernels_picture(plan: Any) -> str:
    """Return the kernels of a plan, a box each, with arrows for what passes from one to the next."""
    boxes: dict[int, Box] = {}
    arrows: list[tuple[int, int]] = []
    made: dict[int, int] = {}
    for k, (row, _) in enumerate(nested(plan.commands)):
        if row["do"] not in ("kernel", "host", "copy"):
            continue
        name = row.get("name") or row.get("op") or row["do"]
        boxes[k] = Box([f"{row.get('number', '')} {name}".strip(), str(row.get("tactic", ""))], _colour(name))
        arrows += [(made[v], k) for v in dict.fromkeys(row["reads"]) if v in made]
        made |= dict.fromkeys(row["writes"], k)
    return drawing(boxes, list(dict.fromkeys(arrows)))


def _colour(name: str) -> str:
    return STATE if "->" in name else "#f2d7b6" if name.startswith(("linear", "convolution")) else MADE


def training_step(hidden: Sequence[int] = (32,), rows: int = 64, memory: str | None = None) -> Any:
    """Return a compiled training step that has run once: linear layers and Adam."""
    widths = [64, *hidden]
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    net = nn.Sequential(*layers, nn.Linear(widths[-1], 10))
    opt = optim.Adam(net.parameters())

    @st.compile(memory=memory)
    def step(x: Any, y: Any) -> Any:
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step(st.ones((rows, 64)), st.arange(rows) % 10)
    return step


def pictures() -> dict[str, str]:
    """Return all pictures by the name of their file."""
    slope = st.compile(st.grad(lambda w, x: ((x @ w) ** 2).sum()))
    slope(st.ones((4, 3)), st.ones((8, 4)))
    with settings.using(threads=2):
        step = training_step()
        return {
            "graph.svg": graph_picture(slope.graph),
            "kernels.svg": kernels_picture(step.plan),
            "memory.svg": memory_svg(step.program),
            "budget.svg": memory_svg(training_step([64] * 12, 2048, memory="5.5 MB").program),
        }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pictures().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
