"""Ctrl-C during the imports at first use: it is raised, and the next use finds everything."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import signal
import stratal as st
from stratal.graph import op

class Interrupting(dict):
    left = 0
    def __setitem__(self, name, record):
        super().__setitem__(name, record)
        self.left -= 1
        if self.left == 0:
            {interrupt}

op.REGISTRY = Interrupting(op.REGISTRY)
raised = 0
for moment in (1, 4, 20, 60):
    op.REGISTRY.left = moment
    try:
        {use}
    except KeyboardInterrupt:
        raised += 1
op.REGISTRY.left = 0
assert raised >= {least}, raised
assert st.erf(st.tensor([0.0])).sum().item() == 0.0
assert st.nn.Linear(2, 3)(st.ones(1, 2)).shape == (1, 3)
"""


@pytest.mark.parametrize(
    "interrupt, use, least",
    [
        ("signal.raise_signal(signal.SIGINT)", "st.erf, st.nn.Linear", 1),
        ("raise KeyboardInterrupt", "st.erf, st.nn.Linear", 3),
        pytest.param("raise KeyboardInterrupt", "import stratal.nn.linear", 3, marks=pytest.mark.slow),
    ],
    ids=["signal", "raised", "import statement"],
)
def test_an_import_that_was_interrupted_is_made_again(interrupt: str, use: str, least: int) -> None:
    program = PROGRAM.format(interrupt=interrupt, use=use, least=least)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
