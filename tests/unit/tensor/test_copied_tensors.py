"""Copies of tensors, parameters, modules and optimizers are PyTorch's, whatever their values wait for.

Each case is a program: something is copied, then both are written to and differentiated. It is run eagerly,
lazily, compiled and, where it is installed, by PyTorch.
"""

from __future__ import annotations

import importlib.util
import textwrap

import pytest
from programs.execute import judge

KINDS = {
    "tensor": "a = lib.tensor([1.0, 2.0])",
    "tensor that waits": "a = lib.tensor([1.0, 2.0]) * 3",
    "leaf": "a = lib.tensor([1.0, 2.0]).requires_grad_()",
    "leaf with a gradient": "a = lib.tensor([1.0, 2.0]).requires_grad_(); (a * a).sum().backward()",
    "leaf that waits": "a = (lib.tensor([1.0, 2.0]) * 3).requires_grad_()",
    "leaf that was frozen": "a = lib.tensor([1.0, 2.0]).requires_grad_().requires_grad_(False)",
    "parameter": "a = lib.nn.Parameter(lib.tensor([1.0, 2.0]))",
    "parameter with a gradient": "a = lib.nn.Parameter(lib.tensor([1.0, 2.0])); (a * a).sum().backward()",
    "parameter that waits": "a = lib.nn.Parameter(lib.tensor([1.0, 2.0]) * 3)",
    "parameter written by hand": """
a = lib.nn.Parameter(lib.tensor([1.0, 2.0]))
with lib.no_grad(): a.mul_(lib.tensor([3.0, 4.0]))""",
    "frozen parameter": "a = lib.nn.Parameter(lib.tensor([1.0, 2.0]) * 2, requires_grad=False)",
    "detached parameter": "keep = lib.nn.Parameter(lib.tensor([1.0, 2.0]) * 2); a = keep.detach()",
    "parameter with an attribute": "a = lib.nn.Parameter(lib.tensor([1.0, 2.0])); a.tag = [3]",
    "row": "keep = lib.tensor([[1.0, 2.0], [3.0, 4.0]]); a = keep[0]",
    "row of what waits": "keep = lib.tensor([[1.0, 2.0], [3.0, 4.0]]) * 2; a = keep[0]",
}
COPIES = {
    "copy": "b = copy.copy(a)",
    "deepcopy": "b = copy.deepcopy(a)",
    "pickle": "b = pickle.loads(pickle.dumps(a))",
    "deepcopy of a pair": "b, same = copy.deepcopy((a, a)); assert b is same",
    "copy of a copy": "b = copy.deepcopy(copy.copy(a))",
}
USES = {
    "written": "with lib.no_grad(): b.add_(1)",
    "filled": "with lib.no_grad(): b.data.fill_(5.0)",
    "both differentiated": """
for t in (a, b):
    if not t.requires_grad: t.requires_grad_()
(a * 2 + b * b).sum().backward()
(b * 3).sum().backward()""",
    "original differentiated": """
if not a.requires_grad: a.requires_grad_()
(a * 2).sum().backward()""",
    "copy frozen and thawed": """
b.requires_grad_()
y = (b * b).sum()
b.requires_grad_(False)
b.requires_grad_()
y.backward()""",
    "gradient written": """
if b.grad is not None: b.grad.mul_(7)""",
}
WAYS = ("eager", *(("torch",) if importlib.util.find_spec("torch") else ()), "lazy", "compiled")
_HEAD = """import copy, pickle
def seen(t): return [type(t).__name__, t.is_leaf, getattr(t, 'tag', None), t, t.grad]
"""


def _indented(*blocks: str) -> str:
    return "".join(textwrap.indent(block.strip("\n"), "    ") + "\n" for block in blocks)


def _wrong(text: str) -> str:
    verdict = judge(text, WAYS)
    return "" if verdict.verdict == "right" else f"{verdict}\n{text}"


@pytest.mark.sampled(7)
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_is_that_of_pytorch(kind: str) -> None:
    found = []
    for how in COPIES:
        for use in USES.values():
            body = _indented(KINDS[kind], COPIES[how], use, "yield {'seen': look(seen(a), seen(b))}")
            found.append(_wrong(f"{_HEAD}def program(lib, compiled):\n{body}"))
    if any(found):
        pytest.fail("\n".join(filter(None, found)), pytrace=False)


@pytest.mark.sampled(24)
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_in_a_compiled_function_is_that_of_the_uncompiled_one(kind: str) -> None:
    found = []
    for how in ("copy", "deepcopy"):
        for use in USES.values():
            body = _indented(COPIES[how], use, "return b, b.grad, b.is_leaf, b.requires_grad")
            step = f"    @compiled\n    def step(a):\n{_indented(body)}"
            calls = "for k in range(3): yield {'seen': look(step(a), seen(a))}"
            text = f"{_HEAD}def program(lib, compiled):\n{_indented(KINDS[kind])}{step}{_indented(calls)}"
            found.append(_wrong(text))
    if any(found):
        pytest.fail("\n".join(filter(None, found)), pytrace=False)


PAIRS = {
    "tied parameters": """
a, c = lib.nn.Linear(2, 2), lib.nn.Linear(2, 2)
c.weight = a.weight; start(a); start(c); parts = lib.nn.ModuleList([a, c])""",
    "network and optimizer": """
a = lib.nn.Linear(2, 2); start(a); opt = lib.optim.Adam(a.parameters(), lr=0.1)
(a(lib.ones(3, 2)) ** 2).sum().backward(); opt.step(); parts = [a, opt]""",
    "network with gradients": """
a = lib.nn.Linear(2, 2); start(a); (a(lib.ones(3, 2)) ** 2).sum().backward(); parts = [a]""",
    "gradient and its owner": """
a = lib.ones(2).requires_grad_(); (a * a).sum().backward(); parts = [a.grad, a]""",
}
ACTS = {
    "tied parameters": "(p[0](lib.ones(1, 2)) + p[1](lib.ones(1, 2))).sum().backward()",
    "network and optimizer": "(p[0](lib.ones(3, 2)) ** 2).sum().backward(); p[1].step()",
    "network with gradients": "(p[0](lib.ones(3, 2)) ** 2).sum().backward()",
    "gradient and its owner": "p[0].mul_(5)",
}
_START = """def start(module):
    with lib.no_grad():
        for p in module.parameters(): p.copy_(lib.arange(p.numel()).reshape(p.shape) * 0.3 - 0.5)"""


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("how", ["copy.deepcopy(parts)", "pickle.loads(pickle.dumps(parts))"])
def test_what_is_copied_together_stays_together(pair: str, how: str) -> None:
    look = "yield facts(p=parts, q=made)"
    acts = f"for p in (made, parts, made):\n    {ACTS[pair]}\n    {look}"
    body = _indented(_START, PAIRS[pair], f"made = {how}", look, acts)
    assert not _wrong(f"{_HEAD}def program(lib, compiled):\n{body}")
