"""Prints the resident memory, in bytes, of a process that trains or recompiles: one line per sample.

python tests/support/steady_memory.py steps COUNT
python tests/support/steady_memory.py recompiles COUNT
"""

from __future__ import annotations

import gc
import mmap
import sys
from pathlib import Path
from typing import Any

import numpy as np

import stratal as st
from stratal import nn, optim

SAMPLES = 10


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def step_of(n_in: int, n_out: int) -> Any:
    """Return a compiled training step of a small network."""
    net = nn.Sequential(nn.Linear(n_in, n_out), nn.Dropout(0.1), nn.Tanh(), nn.Linear(n_out, 2))
    optimizer = optim.Adam(net.parameters())

    @st.compile
    def step(x: Any) -> Any:
        loss = (net(x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def main(kind: str, count: int) -> None:
    step, x = step_of(5, 6), st.tensor(np.ones((3, 5), np.float32))
    for k in range(count):
        if kind == "steps":
            loss = step(x)
            if k % 7 == 0:
                float(loss)
        else:  # sizes never seen before: a new program each time
            n = 2 + k % 97
            float(step_of(n, 3 + k // 97)(st.tensor(np.ones((3, n), np.float32))))
        if (k + 1) % max(1, count // SAMPLES) == 0:
            print(resident_bytes(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
