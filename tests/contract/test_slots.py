"""The private slots of a tensor have one owner: no other module of the package writes them."""

from __future__ import annotations

import ast
import gc
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import stratal
import stratal as st
from stratal import nn, optim
from stratal.graph.node import Node
from stratal.tensor.tensor import Tensor
from stratal.tensor.values import handle
from stratal.tensor.values.deferred import Deferred
from stratal.tensor.values.handle import CONSUMED, Handle
from stratal.tensor.values.state import tracing
from stratal.tensor.values.trace import Trace

pytestmark = pytest.mark.quick

PACKAGE = Path(stratal.__file__).parent
SLOTS = {
    name
    for kind in Tensor.__mro__
    for name in getattr(kind, "__slots__", ())
    if name.startswith("_") and not name.startswith("__")
}
WRITERS = ("setattr", "delattr", "__setattr__", "__delattr__", "__set__")


class Writes(ast.NodeVisitor):
    """Lines of a module where a slot is written: by assignment of any form, or by a function given its name.

    `self._slot` is another class's own attribute where the class around it is no handle.
    """

    def __init__(self, source: str, handles: frozenset[str] = frozenset()) -> None:
        self.handles = handles  # classes of the module that are handles, by their names in the module
        self.path: list[str] = []
        self.found: list[int] = []
        self.visit(ast.parse(source))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.path.append(node.name)
        self.generic_visit(node)
        self.path.pop()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        stored = isinstance(node.ctx, (ast.Store, ast.Del)) and node.attr in SLOTS
        if (stored and not self._own(node.value)) or (node.attr == "__set__" and _names_slot(node.value)):
            self.found.append(node.lineno)
        self.generic_visit(node)

    def _own(self, owner: ast.expr) -> bool:
        inside = bool(self.path) and ".".join(self.path) not in self.handles
        return inside and isinstance(owner, ast.Name) and owner.id == "self"

    def visit_Call(self, node: ast.Call) -> None:
        names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        if _writes(node.func) and SLOTS.intersection(names):
            self.found.append(node.lineno)
        if any(_writes(argument) for argument in node.args):  # map(setattr, ..): of what, is not to be seen
            self.found.append(node.lineno)
        self.generic_visit(node)


def _writes(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in WRITERS


def _names_slot(value: ast.expr) -> bool:
    return isinstance(value, ast.Attribute) and value.attr in SLOTS


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[-1] != "__main__":
            yield ".".join(("stratal", *(parts[:-1] if parts[-1] == "__init__" else parts))), path


def kinds_of_handles(name: str) -> frozenset[str]:
    found = vars(importlib.import_module(name)).values()
    return frozenset(k.__qualname__ for k in found if isinstance(k, type) and issubclass(k, Handle))


def test_no_module_but_the_owner_writes_a_private_slot_of_a_tensor() -> None:
    wrong = []
    for name, path in modules():
        source = path.read_text(encoding="utf-8")
        if name != handle.__name__ and any(word in source for word in (*SLOTS, "setattr")):
            wrong += [f"{name}:{line}" for line in Writes(source, kinds_of_handles(name)).found]
    assert not wrong, "\n".join(wrong)


def test_a_tensor_has_no_slots_but_those_of_its_handle() -> None:
    assert {name for name in Handle.__slots__ if not name.startswith("__") and name != "type"} == SLOTS
    assert len(SLOTS) >= 11


@pytest.mark.parametrize(
    "line",
    [
        "x._ir = None",
        "x.y[0]._track = 1",
        "x._track += 1",
        "x._destination, y = None, 1",
        "for x._leaf in (): pass",
        "with open('f') as x._view: pass",
        "del x._storage",
        "x._grad: int = 1",
        "setattr(x, '_trace', None)",
        "object.__setattr__(x, '_previous', None)",
        "Tensor._guarded.__set__(x, True)",
        "list(map(setattr, names, values))",
    ],
)
def test_a_write_of_any_form_is_found(line: str) -> None:
    assert Writes(line).found == [1]


def test_only_a_class_that_is_no_handle_has_such_attributes_of_its_own() -> None:
    source = "class Other:\n    def f(self, x):\n        self._ir = 1\n"
    assert Writes(source).found == []
    assert Writes(source, frozenset({"Other"})).found == [3]
    assert Writes(source.replace("self._ir", "x._ir")).found == [3]


def states(x: Handle) -> set[str]:
    """Return the states whose row in the table of `handle` fits what a handle holds."""
    node, promise, known = isinstance(x._ir, Node), isinstance(x._ir, Deferred), x._storage is not None
    traced, spent = x._trace is not None, x._track == CONSUMED
    undo = (x._destination is not None) + (x._previous is not None)
    rows = {
        "stored": known and not (promise or traced or spent or undo),
        "pending": node and not (known or traced) and undo <= 1,
        "promised": promise and not (known or traced or undo),
        "traced": node and traced and not (known or undo),
        "spent": known and spent and x._ir is None and not (traced or undo),
    }
    return {name for name, fits in rows.items() if fits}


def living() -> dict[int, set[str]]:
    made = [x for x in gc.get_objects() if isinstance(x, Handle) and hasattr(x, "_ir")]
    return {id(x): states(x) for x in made}


def test_every_handle_is_in_one_state_of_the_table_and_each_state_occurs() -> None:
    seen: set[str] = set()

    def look() -> None:
        found = living()
        assert all(len(names) == 1 for names in found.values()), [n for n in found.values() if len(n) != 1]
        seen.update(*found.values())

    x, w = st.ones(3), st.ones(3).requires_grad_(True)
    kept = [st.exp(x) for _ in range(4)]
    look()
    with tracing(Trace("test")):
        kept.append(x * 2)
        look()
    loss = (w * w).sum()
    old = w * 3
    loss.backward()
    with st.no_grad():
        w.add_(w.grad, alpha=-0.1)
        look()
    row = x[0]
    row.add_(1)
    look()
    net = nn.Linear(3, 2)
    step = optim.Adam(net.parameters(), 0.1)
    for _ in range(3):
        step.zero_grad()
        net(x).sum().backward()
        look()
        step.step()
        look()
    held = [float(w.sum()), x.numpy(), old.tolist()]
    with st.no_grad():
        w.mul_(2)
    held.append(w.tolist())
    look()
    assert seen == {"stored", "pending", "promised", "traced", "spent"}
    del kept, held
