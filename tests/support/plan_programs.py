"""Small programs for the tests of plans, explanations and stages."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratal.compiler import Program, compile_graph
from stratal.graph.graph import Graph
from stratal.graph.text import parse_graph
from stratal.runtime.storage import Storage

DENSE = """graph "dense"(%0: f32[8,6] = "x", %1: f32[6,5] = "w", %2: f32[5] = "b") {
  %3 = contract(%0, %1) spec="ab,bc->ac" dtype=none : f32[8,5]
  %4 = broadcast(%2) shape=(8, 5) axes=(1,) : f32[8,5]
  %5 = add(%3, %4) : f32[8,5]
  %6 = tanh(%5) : f32[8,5]
  %7 = sum(%6) axes=(0,) : f32[5]
  return %6
  update %2 <- %7
}"""

LOOP = """graph "loop"(%0: f32[4,4] = "w", %1: f32[2,4] = "h", %2: f32[7,2,4] = "xs") {
  %3 = scan(%1, %2, %0) body=graph "body"(%0: f32[2,4], %1: f32[2,4], %2: f32[4,4], %3: i64[]) {
    %4 = contract(%0, %2) spec="ab,bc->ac" dtype=none : f32[2,4]
    %5 = add(%4, %1) : f32[2,4]
    %6 = tanh(%5) : f32[2,4]
    return %6, %6
  } length=7 num_carries=1 num_xs=1 reverse=false dynamic_length=false : (f32[2,4], f32[7,2,4])
  %4 = item(%3) index=0 : f32[2,4]
  %5 = item(%3) index=1 : f32[7,2,4]
  return %4, %5
}"""

HOST = """graph "host"(%0: f32[4,4] = "x") {
  %1 = matrix_exp(%0) : f32[4,4]
  %2 = exp(%1) : f32[4,4]
  return %2
}"""


def dense() -> Graph:
    return parse_graph(DENSE)


def compiled(graph: Graph, **options: Any) -> Program:
    return compile_graph(graph, **options)


def run(program: Program, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Run a program on random inputs; return its outputs and the new states."""
    rng = np.random.default_rng(seed)
    inputs = [
        Storage.copy_of(rng.standard_normal(t.ints).astype(np.float32), t) for t in program.graph.input_types
    ]
    outputs = program.run(inputs)
    states = [inputs[k] for k in program.executable.states]
    return [np.array(s.array) for s in (*outputs, *states)]
