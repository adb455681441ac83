"""Tables as HTML: what notebooks show of tensors, modules and plans. Every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

STYLE: Final = "border-collapse:collapse;font-variant-numeric:tabular-nums"
CELL: Final = "padding:2px 10px;text-align:{}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, left: Iterable[int] = ()) -> str:
    """Return a table; columns in `left` hold words, all others numbers. An empty `head` is left out."""
    words = frozenset(left)

    def row(tag: str, cells: Sequence[str]) -> str:
        aligned = (CELL.format("left" if k in words else "right") for k in range(len(cells)))
        pairs = zip(aligned, cells, strict=True)
        inside = (f'<{tag} style="{style}">{escape(cell)}</{tag}>' for style, cell in pairs)
        return f"<tr>{''.join(inside)}</tr>"

    titles = f"<thead>{row('th', head)}</thead>" if head else ""
    return f'<table style="{STYLE}">{titles}<tbody>{"".join(row("td", r) for r in rows)}</tbody></table>'


def folded(title: str, inside: str, *, opened: bool = False) -> str:
    """Return HTML that a click on its title opens; `inside` is HTML."""
    return f"<details{' open' if opened else ''}><summary>{escape(title)}</summary>{inside}</details>"


def titled(title: str, inside: str) -> str:
    """Return HTML under a line of text."""
    return f"<div><div><code>{escape(title)}</code></div>{inside}</div>"
