"""The memory of one program as a picture: where each buffer lies in the arena, and when it lives.

Time runs right, one moment per command; offsets run up. The strip above shows the bytes alive, the bar on top
what a run needs in all. The picture is an SVG written by hand: it needs nothing installed, and every buffer
tells its name, size, life and source line where the mouse rests on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple

from stratal.base.artifact import Value
from stratal.base.errors import MissingExtraError, StratalError
from stratal.formats.files import write_atomically, writing
from stratal.memory.liveness import Interval, analyse, roots
from stratal.memory.plan import ArenaPlan, Block, arranged
from stratal.memory.render import format_bytes
from stratal.plan.arena_map import block_kinds, kernel_numbers
from stratal.plan.explain import Explained

WIDTH: Final = 1160
LEFT, RIGHT, TOP = 92, 28, 128
STRIP: Final = 70  # height of the curve of live bytes
MAP: Final = 420
GAP: Final = 26
KINDS: Final = {
    "kept for later": "#4e79a7",
    "passed on": "#a0cbe8",
    "packed operand": "#f28e2b",
    "carried by a loop": "#59a14f",
    "recomputed": "#e15759",
    "written as output": "#b07aa1",
    "copied from or to a file": "#76b7b2",
}
PARTS: Final = {
    "arena": "#4e79a7", "state": "#59a14f", "input": "#9c755f", "output": "#b07aa1",
    "scratch": "#f28e2b", "constant": "#bab0ac",
}  # fmt: skip
STYLE: Final = (
    "text{font-family:ui-sans-serif,system-ui,Helvetica,Arial,sans-serif;font-size:11px;fill:#222}"
    ".title{font-size:16px;font-weight:600}.dim{fill:#667}.in{fill:#fff;pointer-events:none}"
    ".dark{fill:#123;pointer-events:none}.b{stroke:#fff;stroke-width:0.6}.b:hover{stroke:#000;stroke-width:1.5}"
)


class Box(NamedTuple):
    """One block as drawn."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    name: str
    tip: str


class Scale(NamedTuple):
    """From moments and bytes to places in the picture."""

    moments: int
    arena_bytes: int

    def x(self, moment: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * moment / max(self.moments, 1)

    def y(self, offset: float) -> float:
        top = TOP + STRIP + GAP
        return top + MAP * (1 - offset / max(self.arena_bytes, 1))


def memory_svg(program: Explained) -> str:
    """Return the memory map of a program as SVG text."""
    made = program.executable
    arena = arranged(made.values, made.commands, made.outputs)
    scale = Scale(arena.num_moments, arena.arena_bytes)
    numbers = kernel_numbers(program)
    boxes = list(_boxes(program, arena, scale, numbers))
    height = TOP + STRIP + GAP + MAP + 64
    loops = analyse(made.commands).loops
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        *_head(program, arena),
        *_live(arena, scale),
        *_axes(scale, numbers),
        *_loops(scale, loops),
        *map(_box, boxes),
        *_legend(boxes, height),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _boxes(
    program: Explained, arena: ArenaPlan, scale: Scale, numbers: Sequence[int | None]
) -> Iterator[Box]:
    values = program.executable.values
    by_id = {value.id: value for value in values}
    sharing = roots(values)
    for block, offset, kind in zip(arena.blocks, arena.offsets, block_kinds(program, arena), strict=True):
        members = [by_id[m] for m in block.members]
        x, right = scale.x(block.life.first), scale.x(min(block.life.last + 1, scale.moments))
        y, bottom = scale.y(offset + block.nbytes), scale.y(offset)
        name = _name(by_id[block.root])
        first = by_id[sharing[block.root]]
        tip = (
            f"{name}\n{first.type}, {format_bytes(block.nbytes)} at {offset}\n{_life(block, numbers)}"
            + (f"\n{', '.join(dict.fromkeys(map(str, first.where)))}" if first.where else "")
            + (f"\nin place: {', '.join(m.label or f'%{m.id}' for m in members)}" if len(members) > 1 else "")
        )
        yield Box(x, y, right - x, bottom - y, kind, name, tip)


def _name(value: Value) -> str:
    """Return the composite a value belongs to, its op and its line."""
    name = value.label or f"%{value.id}"
    if not value.where:
        return name
    line = value.where[0]
    return " ".join((*line.scope[:1], name, str(line)))


def _life(block: Block, numbers: Sequence[int | None]) -> str:
    alive = [n for n in numbers[block.life.first : block.life.last + 1] if n is not None]
    if not alive:
        return f"moments {block.life.first} to {block.life.last}"
    return f"kernels {alive[0]} to {alive[-1]}" if alive[0] != alive[-1] else f"kernel {alive[0]}"


# -- drawing -------------------------------------------------------------------------------------------------
def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    shown = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{shown}>{escape(text)}</text>'


def _rect(x: float, y: float, width: float, height: float, fill: str, rest: str = "") -> str:
    size = f'width="{max(width, 0):.2f}" height="{max(height, 0):.2f}"'
    return f'<rect x="{x:.2f}" y="{y:.2f}" {size} fill="{fill}"{rest}'


def _head(program: Explained, arena: ArenaPlan) -> Iterator[str]:
    """Draw the title and the bar of all a run needs."""
    plan = program.plan
    yield _text(LEFT, 28, f"{plan.name}: memory of one run", "title")
    counted = f"{len(plan.kernels)} kernels, {len(arena.blocks)} buffers in the arena, plan {plan.hash[:8]}"
    yield _text(WIDTH - RIGHT, 28, counted, "dim", "end")
    whole = max(plan.planned_peak_bytes, 1)
    wide, x, y = WIDTH - LEFT - RIGHT, float(LEFT), 46
    yield _text(LEFT - 8, y + 14, format_bytes(plan.planned_peak_bytes), anchor="end")
    legend = float(LEFT)
    for part, colour in PARTS.items():
        nbytes = plan.memory[f"{part}_bytes"]
        if not nbytes:
            continue
        share = wide * nbytes / whole
        yield _rect(x, y, share, 20, colour, f"><title>{part} {format_bytes(nbytes)}</title></rect>")
        label = f"{part} {format_bytes(nbytes)}"
        yield _rect(legend, y + 28, 10, 10, colour, "/>")
        yield _text(legend + 14, y + 37, label)
        legend += 26 + 6.2 * len(label)
        x += share


def _live(arena: ArenaPlan, scale: Scale) -> Iterator[str]:
    """Draw the bytes alive at each moment, and the arena's size as a line."""
    change = [0] * (arena.num_moments + 2)
    for block in arena.blocks:
        change[block.life.first] += block.nbytes
        change[min(block.life.last, arena.num_moments) + 1] -= block.nbytes
    live = list(accumulate(change))[: arena.num_moments]
    bottom, whole = TOP + STRIP, max(arena.arena_bytes, 1)
    corners = [f"M{scale.x(0):.1f},{bottom}"]
    for moment, nbytes in enumerate(live):
        y = bottom - STRIP * nbytes / whole
        corners.append(f"L{scale.x(moment):.1f},{y:.1f}L{scale.x(moment + 1):.1f},{y:.1f}")
    corners.append(f"L{scale.x(len(live)):.1f},{bottom}Z")
    yield f'<path d="{"".join(corners)}" fill="#dde6f0" stroke="#4e79a7" stroke-width="1"/>'
    yield _line(LEFT, TOP, WIDTH - RIGHT, TOP, "#888", dashed=True)
    yield _text(LEFT - 8, TOP - 9, "arena", "dim", "end")
    yield _text(LEFT - 8, TOP + 4, format_bytes(arena.arena_bytes), "dim", "end")
    least = bottom - STRIP * arena.live_minimum / whole
    if least - TOP > 12:
        yield _text(LEFT - 8, least + 4, format_bytes(arena.live_minimum), "dim", "end")
    yield _text(LEFT - 8, bottom, "alive", "dim", "end")


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{dash}/>'


def _axes(scale: Scale, numbers: Sequence[int | None]) -> Iterator[str]:
    """Draw the frame of the map: bytes at the left, kernel numbers below."""
    top, bottom = scale.y(scale.arena_bytes), scale.y(0)
    yield _rect(LEFT, top, WIDTH - LEFT - RIGHT, MAP, "#f6f7f9", "/>")
    for k in range(5):
        offset = scale.arena_bytes * k / 4
        yield _line(LEFT, scale.y(offset), WIDTH - RIGHT, scale.y(offset), "#dcdfe4")
        yield _text(LEFT - 8, scale.y(offset) + 4, format_bytes(int(offset)), "dim", "end")
    every = max(1, -(-len(numbers) // 40))
    for moment, number in enumerate(numbers):
        if number is not None and (number - 1) % every == 0:
            yield _text(scale.x(moment + 0.5), bottom + 15, str(number), "dim", "middle")
    yield _text(LEFT - 8, bottom + 15, "kernel", "dim", "end")


def _loops(scale: Scale, loops: Sequence[Interval]) -> Iterator[str]:
    """Shade the moments that are repeated."""
    for loop in loops:
        x, right = scale.x(loop.first), scale.x(loop.last + 1)
        yield _rect(x, scale.y(scale.arena_bytes), right - x, MAP, "#e3ecd9", "/>")
        yield _text(x + 3, scale.y(scale.arena_bytes) - 5, "repeated", "dim")


def _box(box: Box) -> str:
    """Draw one buffer, with as much of its name as fits."""
    rest = f' class="b"><title>{escape(box.tip)}</title></rect>'
    place = _rect(box.x, box.y, box.width, box.height, KINDS[box.kind], rest)
    fits = int((box.width - 8) / 6.9)
    if box.height < 13 or fits < 3:
        return place
    name = box.name if len(box.name) <= fits else box.name[: fits - 1] + "…"
    ink = "dark" if box.kind == "passed on" else "in"
    return place + _text(box.x + 4, box.y + min(box.height / 2 + 4, 15), name, ink)


def _legend(boxes: Sequence[Box], height: int) -> Iterator[str]:
    x, y = float(LEFT), height - 18
    present = {b.kind for b in boxes}
    if not boxes:
        yield _text(x, y, "nothing lives in the arena", "dim")
    for kind, colour in KINDS.items():
        if kind in present:
            yield _rect(x, y - 9, 10, 10, colour, "/>")
            yield _text(x + 14, y, kind)
            x += 34 + 6.2 * len(kind)


# -- files ---------------------------------------------------------------------------------------------------
def save_memory_map(program: Explained, path: Path) -> None:
    """Write the map as .svg, or with the extra `viz` as .png. Raises: MissingExtraError, StratalError."""
    if path.suffix == ".svg":
        write_atomically(path, [memory_svg(program).encode()])
    elif path.suffix == ".png":
        _save_png(program, path)
    else:
        raise StratalError("memory map: a picture is an .svg or a .png file", got=str(path))


def _save_png(program: Explained, path: Path) -> None:
    """Draw the same boxes with matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch, Rectangle
    except ImportError:
        hint = "pip install 'stratal[viz]'; an .svg file needs nothing"
        raise MissingExtraError("memory map: a .png file needs matplotlib", hint=hint) from None
    made = program.executable
    arena = arranged(made.values, made.commands, made.outputs)
    scale = Scale(arena.num_moments, arena.arena_bytes)
    boxes = list(_boxes(program, arena, scale, kernel_numbers(program)))
    figure = Figure(figsize=(11.6, 6), dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    bottom = scale.y(0)
    for box in boxes:
        corner = (box.x, bottom - box.y - box.height)
        axes.add_patch(Rectangle(corner, box.width, box.height, facecolor=KINDS[box.kind], edgecolor="white"))
        fits = int(box.width / 7)
        if box.height >= 13 and fits >= 4:
            ink = "#112233" if box.kind == "passed on" else "white"
            middle = corner[1] + box.height / 2
            axes.text(box.x + 4, middle, box.name[:fits], fontsize=6, va="center", color=ink, clip_on=True)
    axes.set_xlim(scale.x(0), scale.x(scale.moments))
    axes.set_ylim(0, MAP)
    axes.set_xticks([])
    axes.set_yticks(
        [MAP * k / 4 for k in range(5)], [format_bytes(arena.arena_bytes * k // 4) for k in range(5)]
    )
    axes.set_xlabel(f"{len(program.plan.kernels)} kernels in order")
    axes.set_title(
        f"{program.plan.name}: arena of {format_bytes(arena.arena_bytes)}, plan {program.plan.hash[:8]}",
        loc="left",
    )
    present = [kind for kind in KINDS if any(b.kind == kind for b in boxes)]
    if present:
        axes.legend(handles=[Patch(color=KINDS[k], label=k) for k in present], fontsize=7, ncols=len(present),
                    loc="upper center", bbox_to_anchor=(0.5, -0.08), frameon=False)  # fmt: skip
    with writing(path.name):
        figure.savefig(path, bbox_inches="tight")
