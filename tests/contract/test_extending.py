"""What the pages add to the compiler works as they say: their examples run, and nothing else is touched."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from doc_examples import DOCS

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="runs in a checkout only")

TACTIC = """
import sys
import numpy as np
import stratal as st
from stratal.nn import functional as F
from stratal.plan.host import current_target
from stratal.schedule import tactics
from stratal.tune.measure import Measurer, Timing
from stratal.tune.session import Watch, tasks_of
from stratal.tune.trial import trial_of

tactics.__path__.append(sys.argv[1])
rng = np.random.default_rng(0)
def array(*shape): return st.tensor(rng.standard_normal(shape, dtype=np.float32))
with Watch() as watch:
    st.compile(lambda a, b: st.relu(a @ b) + 1)(array(37, 50), array(50, 61))
    st.compile(lambda a, b: a @ b.mT)(array(3, 20, 16), array(3, 33, 16))
    st.compile(lambda a, b: F.conv2d(a, b, stride=2, padding=1))(array(2, 5, 9, 9), array(7, 5, 3, 3))
tasks = tasks_of(watch.programs)
assert len(tasks) == 3
with Measurer(current_target()) as measurer:
    for task in tasks:
        (mine,) = [c for c in task.problem.candidates() if c.algorithm == "row by row"]
        found = measurer.compare(trial_of(task.problem, task.default), trial_of(task.problem, mine))
        assert isinstance(found, Timing), found  # it ran and its results agree
"""

ALGORITHM = """
import numpy as np
import stratal as st
from multiply_outer import multiply_outer
from stratal.graph.graph import verify
from stratal.graph.interpret import interpret

x, y = np.arange(6.0).reshape(2, 3), np.arange(4.0)
step = st.compile(lambda x, y: (st.einsum("ab,c->bca", x, y), x.T @ x))
step(st.tensor(x), st.tensor(y))
graph = step.program.graph
after = multiply_outer(graph)
verify(after)
names = [n.op.name for n in after.nodes]
assert names.count("contract") == 1 and "mul" in names, names
for a, b in zip(interpret(graph, [x, y])[0], interpret(after, [x, y])[0]): np.testing.assert_array_equal(a, b)
"""

PRIMITIVE = """
import sys
from stratal.schedule.language import steps
steps.__path__.append(sys.argv[1])
import stratal.schedule.language.steps.reverse
import numpy as np
from stratal import te

assert "reverse" in te.PRIMITIVES
x = te.placeholder((4,), "float32", name="x")
y = te.compute((4,), lambda i: x[i] * 2, name="y")
schedule = te.schedule(y).reverse("i")
assert "(3 - i)" in str(schedule.loops) or "3" in str(schedule), schedule
assert te.parse(str(schedule)) == schedule
values = np.arange(4, dtype=np.float32)
assert np.array_equal(te.build(schedule)(values), 2 * values)
"""

TARGET = """
from target import TARGETS
import stratal as st
from stratal.base.target import class_of
from stratal.codegen.assemble import emit_assembly
from stratal.codegen.module import kernel_module
from stratal.compiler import decided

here = TARGETS["alderlake"]
assert class_of("x86_64", "+sse4.2,+avx2,+fma,+avxvnni") is here
assert class_of("x86_64", "+sse4.2,+avx2,+fma") is TARGETS["haswell"]
step = st.compile(lambda x, y: x.astype("int32") @ y.astype("int32").T)
step(st.ones((64, 64), dtype="uint8"), st.ones((64, 64), dtype="int8"))
kernels = decided(step.program.graph, here).draft.kernels.values()
code = "".join(emit_assembly(kernel_module(k.kernel, here), here) for k in kernels)
assert "vpdpbusd" in code and "%ymm" in code and "%zmm" not in code
"""


def blocks(page: str) -> dict[str, str]:
    """Return the Python blocks of a page by the last name each defines."""
    found = {}
    for text in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL):
        names = [n.name for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)]
        found[names[-1] if names else text.strip().splitlines()[-1]] = text
    return found


def run(program: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """Write the examples of the design's page as modules of a folder."""
    found = blocks("design.md")
    names = {"schedule": "row_by_row", "_multiply_outer": "multiply_outer", ")": "target"}
    for last, name in names.items():
        (tmp_path / f"{name}.py").write_text(found[last], encoding="utf-8")
    return tmp_path


@pytest.mark.sampled(4)
def test_a_tactic_in_a_file_of_its_own_is_offered_and_computes_the_same(examples: Path) -> None:
    folder = examples / "tactics"
    folder.mkdir()
    (examples / "row_by_row.py").rename(folder / "row_by_row.py")
    run(TACTIC, str(folder))


def test_an_algorithm_is_a_function_from_graph_to_graph(examples: Path) -> None:
    run(f"import sys; sys.path.insert(0, {str(examples)!r})\n{ALGORITHM}")


def test_a_target_is_an_entry_and_code_is_made_for_it(examples: Path) -> None:
    run(f"import sys; sys.path.insert(0, {str(examples)!r})\n{TARGET}")


def test_a_primitive_in_a_file_of_its_own_is_a_step_of_every_schedule(tmp_path: Path) -> None:
    (tmp_path / "reverse.py").write_text(blocks("schedule.md")["reverse"], encoding="utf-8")
    run(PRIMITIVE, str(tmp_path))
