"""A module as notebooks show it: the tree of its parts, with the parameters each has."""

from __future__ import annotations

from html import escape
from typing import Any

from stratal.base.markup import folded
from stratal.plan.text import plural


def module_html(module: Any, name: str = "") -> str:
    """Return a module and its parts as nested HTML; a part shows what prints between its parentheses."""
    count = sum(p.numel() for p in module.parameters())
    extra = " ".join(module.extra_repr().split())
    shown = f"{type(module).__name__}({extra})" if extra else type(module).__name__
    title = f"{name}: {shown}" if name else shown
    if count:
        title += f"  {plural(count, 'parameter') if count < 1000 else f'{count:,} parameters'}"
    parts = [module_html(part, key) for key, part in module.named_children()]
    if not parts:
        return f"<div><code>{escape(title)}</code></div>"
    inside = f'<div style="margin-left:1.4em">{"".join(parts)}</div>'
    return folded(title, inside, opened=not name)
