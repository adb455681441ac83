"""What the README and the site's home claim first, taken from docs/performance.md: sentences, and a picture.

    python docs/generate/first_screen.py     prints the sentences, draws docs/pictures/beside.svg

tests/docs/test_first_screen.py compares both pages and the picture with what is measured now.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

DOCS: Final = Path(__file__).parent.parent
PICTURE: Final = DOCS / "pictures" / "beside.svg"
NAMES: Final = {
    "mlp": "MLP, batch 32", "mlp128": "MLP, batch 128", "lenet": "LeNet-5, batch 64",
    "resnet18": "ResNet-18, batch 32", "lstm": "LSTM, batch 32", "gpt": "GPT, 6 layers, batch 8",
    "gcn": "graph network, 20,000 nodes", "resnet50_b1": "ResNet-50, one image",
    "resnet50_b16": "ResNet-50, 16 images", "bert": "BERT, 128 tokens",
    "gpt2_decode": "GPT-2, one more token",
}  # fmt: skip


class Measured(NamedTuple):
    """One workload: time over the fastest peer's, and of each system first calls in seconds and peak MB."""

    ratio: float
    cold: Mapping[str, float]
    warm: Mapping[str, float]
    peak_mb: Mapping[str, float]

    @property
    def memory(self) -> float:
        """Peak memory over PyTorch's."""
        return self.peak_mb["stratal"] / self.peak_mb["torch"]


def measured(page: str, title: str) -> dict[str, Measured]:
    """Return the workloads of a section of docs/performance.md, by their short names."""
    section = page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    times, calls = (_rows(table) for table in section.strip().split("\n\n"))
    found = {}
    for time, call in zip(times, calls, strict=True):
        name, *cells = call.values()
        parts = {s: _NUMBERS.findall(c) for s, c in zip(list(call)[1:], cells, strict=True) if c}
        columns = [{s: float(numbers[k]) for s, numbers in parts.items()} for k in range(3)]
        found[name] = Measured(float(time["ratio"]), *columns)
    return found


_NUMBERS: Final = re.compile(r"[\d.]+")


def _rows(table: str) -> list[dict[str, str]]:
    head, _, *lines = ([c.strip() for c in line.strip("|").split("|")] for line in table.splitlines())
    return [dict(zip(head, line, strict=True)) for line in lines]


def claims(page: str) -> list[str]:
    """Return the sentences, which both pages repeat word for word."""
    train, forward = measured(page, "Training steps"), measured(page, "Forward only")
    served = [forward[name] for name in ("resnet50_b1", "resnet50_b16", "bert", "gpt2_decode")]
    time, memory = _span(m.ratio for m in train.values()), _span(m.memory for m in train.values())
    resnet, gpt = train["resnet18"].ratio, train["gpt"].ratio
    calls = [(m.cold["stratal"], m.warm["stratal"]) for m in train.values()]
    first, later = map(_span, zip(*calls, strict=True))
    jax, torch = (_span(m.cold[system] for m in train.values()) for system in ("jax", "torch"))
    return [
        f"A training step takes {time} of the time of the faster of PyTorch and jax (ResNet-18 {resnet:.2f}, "
        f"GPT {gpt:.2f}) and {memory} of PyTorch's peak memory",
        f"ResNet-50, BERT and GPT-2 take {_span(m.ratio for m in served)} of the time of the fastest of "
        "PyTorch, jax, ONNX Runtime and OpenVINO",
        f"The first call of a training step takes {first} s, later processes {later} s; jax {jax} s, "
        f"PyTorch, which compiles nothing, {torch} s",
    ]


def _span(values: Iterable[float]) -> str:
    found = sorted(values)
    return f"{found[0]:.2f} to {found[-1]:.2f}"


# -- the picture ---------------------------------------------------------------------------------------------
WIDTH, MARGIN, LABELS, BAR, STEP, MOST = 860, 12, 190, 13, 21, 1.25
PANEL: Final = (WIDTH - LABELS - 40) / 2
STYLE: Final = """
.page{fill:#fff}text{font:12px system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;fill:#24292f}
.dim{fill:#59636e}.less{fill:#2a9d5c}.more{fill:#c8553d}
.line{stroke:#59636e}.grid{stroke:#d1d9e0}.head{font-weight:600}
@media (prefers-color-scheme:dark){.page{fill:#14181f}text{fill:#e6edf3}.dim{fill:#9198a1}
.less{fill:#3fb574}.more{fill:#e07a5f}.line{stroke:#9198a1}.grid{stroke:#30363d}}
"""


def picture(page: str) -> str:
    """Return bars of time and memory beside the others', as SVG for light and dark pages."""
    groups = [("Training steps", "a training step"), ("Forward only", "an answer")]
    rows: list[tuple[str, Measured | None]] = []
    for title, called in groups:
        rows.append((called, None))
        rows += [(NAMES[name], m) for name, m in measured(page, title).items() if name in NAMES]
    height = 34 + STEP * len(rows) + 24
    wide, high = WIDTH + 2 * MARGIN, height + 2 * MARGIN
    box = f"{-MARGIN} {-MARGIN} {wide} {high}"
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" width="{wide}">']
    parts.append(f"<title>{escape(_title(rows))}</title><style>{STYLE}</style>")
    parts.append(f'<rect class="page" x="{-MARGIN}" y="{-MARGIN}" width="{wide}" height="{high}" rx="6"/>')
    for k, head in enumerate(("time, of the fastest other system's", "peak memory, of PyTorch's")):
        parts += _panel(_left(k), head, [m and (m.ratio, m.memory)[k] for _, m in rows], height)
    for row, (label, m) in enumerate(rows):
        kind = ' class="head"' if m is None else ""
        parts.append(f'<text x="0" y="{_middle(row) + 4:.0f}"{kind}>{escape(label)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _title(rows: Sequence[tuple[str, Measured | None]]) -> str:
    return "; ".join(f"{label}: time {m.ratio:.2f}, memory {m.memory:.2f}" for label, m in rows if m)


def _left(panel: int) -> float:
    return LABELS + panel * (PANEL + 40)


def _middle(row: int) -> float:
    return 34 + STEP * (row + 0.5)


def _panel(left: float, head: str, values: Sequence[float | None], height: int) -> list[str]:
    def at(x: float) -> float:
        return left + x / MOST * (PANEL - 24)

    parts = [f'<text x="{left:.0f}" y="14" class="head">{escape(head)}</text>']
    for tick in (0.0, 0.5, 1.0):
        kind, dashes = ("line", "") if tick == 1 else ("grid", ' stroke-dasharray="2 3"')
        x = f"{at(tick):.1f}"
        parts.append(f'<path class="{kind}" d="M{x} 26V{height - 20}"{dashes}/>')
        parts.append(f'<text x="{x}" y="{height - 6}" class="dim" text-anchor="middle">{tick:g}</text>')
    for row, value in enumerate(values):
        if value is None:
            continue
        y, kind = _middle(row), "less" if value <= 1 else "more"
        box = f'x="{left:.1f}" y="{y - BAR / 2:.1f}" width="{at(value) - left:.1f}" height="{BAR}"'
        parts.append(f'<rect class="{kind}" {box} rx="2"/>')
        parts.append(f'<text x="{at(value) + 5:.1f}" y="{y + 4:.1f}">{value:.2f}</text>')
    return parts


if __name__ == "__main__":
    text = (DOCS / "performance.md").read_text(encoding="utf-8")
    PICTURE.write_text(picture(text), encoding="utf-8")
    print("\n".join(claims(text)))
