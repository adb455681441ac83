"""Tensors while Python ends: functions given to `atexit` compute, finalizers after them are refused."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import atexit

@atexit.register
def last():  # registered before Stratal's own, hence called after them
    print("at exit", (st.ones(300, 300) @ st.ones(300, 300)).sum().item(), step(st.ones(3, 3)).tolist()[0])

import stratal as st

def attempt(name, work):
    try:
        print(name, work())
    except Exception as error:
        print(name, type(error).__name__, str(error).partition(",")[0])

class Last:
    def __del__(self):
        self.attempt("stored", lambda: self.stored.tolist())
        self.attempt("pending", lambda: self.pending.tolist())
        self.attempt("op", lambda: self.stored.exp().tolist())
        self.attempt("write", lambda: self.stored.sinh_().tolist())
        self.attempt("compiled", lambda: self.compile(lambda x: x + 1)(self.stored))
        self.attempt("array", lambda: self.pending.numpy())
        self.attempt("made", lambda: len(self.stratal.ones(2).numpy().tobytes()))
        for name in ("softmax", "linalg", "no_grad", "save"):  # used for the first time
            self.attempt(name, lambda: getattr(self.stratal, name))
        self.attempt("ReLU", lambda: self.stratal.nn.ReLU)

step = st.compile(lambda x: (x @ x) * 2)
for around in (True, False):
    made = Last()
    made.stored, made.pending, made.compile, made.attempt = st.ones(2), st.ones(3).exp(), st.compile, attempt
    made.stored.numpy()
    made.stratal = st
    st.ones, st.nn
    if around:
        made.around = made
    globals()[f"kept{around}"] = made
del made
"""


def test_values_at_exit_are_computed_or_refused_in_one_way() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == ""
    refused = "CallOrderError flush: Python is shutting down"
    missing = "AttributeError stratal.{}: Python is shutting down"
    each = ["stored [1.0, 1.0]", *(f"{n} {refused}" for n in ("pending", "op", "write", "compiled", "array"))]
    each.append("made 8")
    each += [f"{n} {missing.format(n)}" for n in ("softmax", "linalg", "no_grad", "save", "nn.ReLU")]
    each[-1] = each[-1].removeprefix("nn.")
    assert done.stdout.splitlines() == ["at exit 27000000.0 [6.0, 6.0, 6.0]", *each, *each]
