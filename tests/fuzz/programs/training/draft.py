"""The draft of a training program: lines by the place they stand in."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

STEPS = 9
PLACES = ("classes", "setup", "first", "penalties", "between", "after", "ahead", "behind")


@dataclass
class Draft:
    """Places: `classes` and `setup` before the step; in it `first`, `penalties` (terms of the loss), `between` backward
    and update, `after` it; outside, ahead of a step (`ahead`) and behind it (`behind`), where `k` counts steps.

    shape, classes and depth of what the network is given and gives; `seen` names what is observed; `torch` says
    whether PyTorch can run it.
    """

    batch: int
    outputs: int
    optimiser: str = "opt"
    net: str = "net"
    layers: list[str] = field(default_factory=list)
    lines: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    seen: dict[str, str] = field(default_factory=dict)
    forward: str = "net(x)"
    update: list[str] = field(default_factory=lambda: ["opt.step()"])
    zero: list[str] = field(default_factory=lambda: ["opt.zero_grad()"])
    parameters: str = "net.parameters()"
    extra: dict[str, str] = field(default_factory=dict)  # arguments of the step beyond x and t, and their texts
    returns: list[str] = field(default_factory=lambda: ["loss"])
    rebound: list[str] = field(default_factory=list)  # variables that the step or the loop assigns
    torch: bool = True
    sizes: bool = False
    habits: list[str] = field(default_factory=list)

    def add(self, place: str, *lines: str) -> None:
        assert place in PLACES
        self.lines[place] += lines
