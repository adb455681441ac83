"""The session: a process that forgets what it has seen computes the same, and nothing else is remembered."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np

import stratal
import stratal as st
from stratal.base.session import SESSION
from stratal.tensor.lazy import program_cache

TENSOR = Path(stratal.__file__).parent / "tensor"
FACTS = {  # module-level tables that are no caches: facts of living values and settings of this process
    "LIVE", "FAILED", "LEAVES", "_EARLIER",  # living tensors
    "_STORAGE", "_PENDING", "_GONE",  # living nodes
    "WATCHERS", "COMPILED", "SEVERAL",  # who watches and makes, and counts
    "_DEFAULT",  # the generator: what a seed began goes on
    "_HITS",  # of living caches of Python's
    "_MADE", "_TOKEN_CALLS",  # functions and records by name: each is one thing for good
}  # fmt: skip


def empty_at_first(value: ast.expr | None) -> bool:
    """Return whether an expression makes a table that is filled later."""
    if isinstance(value, (ast.Dict, ast.List)):
        elements = value.values if isinstance(value, ast.Dict) else value.elts
        return not elements or all(isinstance(e, ast.Constant) and e.value == 0 for e in elements)
    if not isinstance(value, ast.Call):
        return False
    made = value.func.value if isinstance(value.func, ast.Subscript) else value.func
    return ast.unparse(made) in {
        "dict", "set", "list", "deque", "OrderedDict", "defaultdict", "WeakValueDictionary",
    }  # fmt: skip


def test_every_table_of_tensors_is_a_cache_of_the_session_or_a_fact() -> None:
    found = set()
    for path in TENSOR.rglob("*.py"):
        for line in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(line, (ast.Assign, ast.AnnAssign)) and empty_at_first(line.value):
                target = line.targets[0] if isinstance(line, ast.Assign) else line.target
                found.add(ast.unparse(target))
    assert found == FACTS


def test_after_a_reset_the_same_is_computed_again() -> None:
    x = st.tensor(np.arange(6.0, dtype=np.float32))
    waiting = st.exp(x) * 3 + 1
    step = st.compile(lambda v: st.sin(v) * 2)
    before = [(st.exp(x) * 3 + 1).tolist(), step(x).tolist()]
    SESSION.reset()
    assert not any(len(table) for table in SESSION.tables)
    compiled = program_cache.COMPILED[0]
    assert [(st.exp(x) * 3 + 1).tolist(), step(x).tolist()] == before
    assert waiting.tolist() == before[0]
    assert program_cache.COMPILED[0] > compiled
    assert len(SESSION.tables) >= 10
