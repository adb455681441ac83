"""How a value can be passed, and which tensors of a call can be one another."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Way:
    """`parameter` of the function, the text of an argument with `{value}`, an expression that reads it."""

    name: str
    parameter: str
    given: str
    read: str


WAYS = {
    w.name: w
    for w in (
        Way("argument", "a{n}", "{value}", "a{n}"),
        Way("keyword", "*, a{n}", "a{n}={value}", "a{n}"),
        Way("keyword with a default", "a{n}=None", "a{n}={value}", "a{n}"),
        Way("star argument", "*a{n}", "{value}", "a{n}[0]"),
        Way("keyword of keywords", "**a{n}", "key={value}", "a{n}['key']"),
        Way("in a list", "a{n}", "[{value}, 1]", "a{n}[0]"),
        Way("in a tuple", "a{n}", "({value}, 1)", "a{n}[0]"),
        Way("in a dict", "a{n}", "{'k': {value}}", "a{n}['k']"),
        Way("in a nested container", "a{n}", "[{'k': ({value},)}]", "a{n}[0]['k'][0]"),
        Way("in an object", "a{n}", "types.SimpleNamespace(k={value})", "a{n}.k"),
        Way("in a deque", "a{n}", "deque([{value}])", "a{n}[0]"),
        Way("in a closure", "a{n}", "(lambda v: lambda: v)({value})", "a{n}()"),
        Way("in a partial", "a{n}", "functools.partial(lambda v: v, {value})", "a{n}()"),
    )
}

# Tensors a call may be given; `a` and `b` are made anew before each call, `h` and `w` live in the closure.
POOL = (
    "a", "b", "a[:2]", "a[1:]", "a[:]", "a.T", "a.detach()", "a.clone()", "a.reshape(3, 1)", "h", "h[1:]", "w", "w.data",
    "lib.from_numpy(shared)", "q[0]", "q[1]", "q.view(-1)[3:]", "a.requires_grad_(True)",
)  # fmt: skip
ALIASING = (
    "out = out + ({0}.sum() - 2 * {1}.sum())",
    "{0}.add_(1)\nout = out + {1}.sum()",
    "{0}.mul_(2)\n{1}.add_(1)\nout = out + {0}.sum() + 3 * {1}.sum()",
    "h.add_(1)\nout = out + {0}.sum() + 3 * {1}.sum()",
    "{0}[0] = 7.0\nout = out + {1}.sum() + w.sum()",
    "v = {0}[-1:]\n{1}.sub_(1)\nout = out + v.sum()",
    "{1}.copy_({0}.sum())\nout = out + {0}.sum()",
    "out = out + (w * {0}.sum()).sum() - h.sum() * {1}.sum()",
)
