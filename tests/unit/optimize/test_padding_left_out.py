"""Products with padding are not made where the batch lies innermost: results, counts, how loops say it."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from guarded_run import KERNEL, Frame

import stratal as st
from stratal import nn
from stratal.base.artifact import KernelObject, Launch, flat
from stratal.base.dtypes import float32
from stratal.base.types import TensorType
from stratal.codegen.assemble import assemble
from stratal.codegen.module import kernel_module
from stratal.graph.interpret import interpret
from stratal.loops.interpret import run_kernel
from stratal.loops.parse import parse_kernel
from stratal.loops.stmt import For, stmt_to_text
from stratal.loops.verify import verify_kernel
from stratal.ops.linear.conv import Conv
from stratal.plan.host import current_target
from stratal.runtime.loader import load_kernels
from stratal.schedule.guard_hoisting import hoist
from stratal.schedule.primitives import Schedule

F = nn.functional
CASES = {  # images, channels, filters, size of the image, window, padding, stride, dilation, dtype
    "full": (64, 16, 6, (10, 10), (5, 5), (4, 4), 1, 1, "float32"),
    "border": (16, 3, 5, (9, 7), (3, 3), (1, 1), 1, 1, "float32"),
    "tails": (37, 4, 17, (5, 6), (3, 2), (2, 1), 1, 1, "float32"),
    "strides": (64, 2, 7, (7, 8), (4, 3), (3, 2), 2, 1, "float64"),
    "dilation": (32, 5, 3, (6, 6), (3, 3), (4, 3), 1, 2, "float64"),
    "one channel": (48, 1, 2, (5, 5), (3, 5), (2, 4), 1, 1, "float32"),
    "mostly padding": (16, 2, 3, (3, 3), (2, 2), (4, 4), 1, 1, "float32"),
    "long sums": (16, 130, 3, (4, 4), (4, 4), (3, 3), 1, 1, "float32"),  # more than one block of them
}


def program_of(name: str) -> tuple[Any, list[np.ndarray[Any, Any]]]:
    """Return two convolutions, the second with padding, and operands: what it reads has its batch last."""
    n, channels, filters, size, window, padding, stride, dilation, dtype = CASES[name]
    rng = np.random.default_rng(len(name))
    shapes = (n, 1, *(s + 1 for s in size)), (channels, 1, 2, 2), (filters, channels, *window)
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]

    def both(x: Any, w: Any, v: Any) -> Any:
        image = F.relu(F.conv2d(x, w))
        return F.relu(F.conv2d(image, v, padding=padding, stride=stride, dilation=dilation)) * 2

    return st.compile(both), arrays


def left_out(program: Any) -> int:
    """Return how many kernels leave iterations out."""
    return sum("pass" in str(s.kernel).split() for s in program.program.draft.kernels.values())


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_reference(name: str) -> None:
    program, arrays = program_of(name)
    got = program(*map(st.tensor, arrays)).numpy()
    (want,), _ = interpret(program.program.graph, arrays)
    error = np.abs(got - want).max() / np.abs(want).max()
    assert error < (1e-5 if got.dtype == np.float32 else 1e-13)
    assert left_out(program) == 1


@pytest.mark.parametrize("name", ["full", "tails"])
def test_the_kernel_obeys_the_rules_and_reads_back_from_its_text(name: str) -> None:
    program, arrays = program_of(name)
    program(*map(st.tensor, arrays))
    (kernel,) = (s.kernel for s in program.program.draft.kernels.values() if "pass" in str(s.kernel).split())
    verify_kernel(kernel)
    assert str(parse_kernel(str(kernel))) == str(kernel)


@pytest.mark.torch
def test_gradients_are_those_of_pytorch() -> None:
    """The gradient of an image is a convolution with much padding; that of a strided one has gaps as well."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    for stride, padding in (1, 0), (1, 2), (2, 1):
        shapes = (32, 2, 9, 9), (6, 2, 3, 3), (10, 6, 5, 5)  # channels fill no vectors
        arrays = [rng.standard_normal(shape) for shape in shapes]

        def loss(f: Any, x: Any, w: Any, v: Any, stride: int = stride, padding: int = padding) -> Any:
            image = f.relu(f.conv2d(x, w, padding=1))
            return (f.conv2d(image, v, stride=stride, padding=padding) ** 2).sum()

        theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
        loss(torch.nn.functional, *theirs).backward()
        gradients = st.compile(st.grad(lambda *a, loss=loss: loss(F, *a), argnums=(0, 1, 2)))
        for got, want in zip(gradients(*map(st.tensor, arrays)), theirs, strict=True):
            np.testing.assert_allclose(got.numpy(), want.grad.numpy(), rtol=1e-9, atol=1e-9)
        assert left_out(gradients) > 0 or stride == 2


def test_a_product_left_out_is_not_counted() -> None:
    op = Conv((2, 1), ((3, 1), (0, 4)), (1, 1), (1, 2), 1)
    x, w = TensorType(float32, (3, 4, 6, 5)), TensorType(float32, (7, 4, 3, 2))
    places = op.infer(x, w).ints[2:]
    inside = sum(
        0 <= 2 * y + k - 3 < 6 and 0 <= z + 2 * j < 5
        for y in range(places[0]) for z in range(places[1]) for k in range(3) for j in range(2)
    )  # fmt: skip
    assert op.cost(x, w).flops == 2 * 3 * 7 * 4 * inside


def test_zeros_that_are_no_padding_are_multiplied() -> None:
    """Zero times infinity is NaN where the program says so; a convolution's own padding counts nothing."""
    _, arrays = program_of("border")
    arrays[2][...] = np.inf
    by_hand = st.compile(lambda x, w, v: F.conv2d(F.pad(F.relu(F.conv2d(x, w)), (1, 1, 1, 1)), v) * 2)
    assert np.isnan(by_hand(*map(st.tensor, arrays)).numpy()[:, :, 0, 0]).all()
    assert left_out(by_hand) == 0


@pytest.mark.parametrize("filters", [1, 3])
def test_images_that_lie_otherwise_are_padded(filters: int) -> None:
    """What a program is given has its batch first; a tile of one filter holds several pixels."""
    x, w, v = st.ones((64, 2, 6, 6)), st.ones((3, 2, 3, 3)), st.ones((filters, 3, 3, 3))
    program = st.compile(lambda x, w, v: F.conv2d(F.conv2d(x, w, padding=2), v, padding=2) * 2)
    program(x, w, v)
    assert left_out(program) == int(filters > 1)


BRANCHES = """
kernel k:
  in  x: f32[6, 5]
  out y: f32[2, 16]
  register acc: f32[2, 16]
  for n in 1:
    unroll r in 2:
      vector l in 16:
        acc[r, l] = 1.0:f32
    for i in 6:
      if (i < 4):
        for j in 5:
          if (x[i, j] < 0.5:f32):
            unroll r in 2:
              vector l in 16:
                acc[r, l] = fma(x[i, j], 3.0:f32, acc[r, l])
          else:
            vector l in 16:
              acc[1, l] = (acc[1, l] * 0.5:f32)
      else:
        pass
    unroll r in 2:
      vector l in 16:
        y[r, l] = acc[r, l]
"""


def test_registers_that_arms_change_live_on() -> None:
    """Native code joins what either arm leaves; the interpreter says what that is."""
    kernel = parse_kernel(BRANCHES.strip("\n"))
    verify_kernel(kernel)
    x, y = np.random.default_rng(3).random((6, 5), np.float32), np.zeros((2, 16), np.float32)
    want = y.copy()
    run_kernel(kernel, dict(zip(kernel.parameters, (x, want), strict=True)))
    code = assemble(kernel_module(kernel, current_target()), current_target())
    addresses, libraries = load_kernels([KernelObject("k", code, "test-branches")])
    buffers = (ctypes.c_void_p * 2)(x.ctypes.data, y.ctypes.data)
    error = ctypes.c_int64(0)
    frame = Frame(ctypes.addressof(buffers), None, None, None, 0, ctypes.addressof(error))
    KERNEL(addresses["k"])(ctypes.addressof(frame), 0, 0)
    assert libraries and (y == want).all() and len(np.unique(y)) == 2


def test_conditions_leave_the_loops_they_do_not_mention() -> None:
    text = """
kernel k:
  in  x: f32[4, 4, 8]
  out y: f32[4]
  for i in 4:
    for k in 4:
      for c in 3:
        for v in 3:
          if (((c * 3) + v) < 8):
            if (((-1 < (k + -1)) & (c < 2)) & (k < i)):
              y[i] = (y[i] + x[i, k, ((c * 3) + v)])
            else:
              pass
"""
    before = parse_kernel(text.strip("\n"))
    assert isinstance(before.body, For)
    schedule = Schedule(before.body)
    hoist(schedule, [before.body.var])
    assert (
        stmt_to_text(schedule.body)
        == """for i in 4:
  for k in 4:
    if ((-1 < (k + -1)) & (k < i)):
      for c in 3:
        if (c < 2):
          for v in 3:
            if (((c * 3) + v) < 8):
              y[i] = (y[i] + x[i, k, ((c * 3) + v)])
        else:
          pass
    else:
      pass"""
    )
    assert schedule.steps == ["hoist(i)"]


@pytest.mark.parametrize("channels", [1, 3])
def test_images_a_program_is_given_are_padded_once_for_both_directions(channels: int) -> None:
    """The gradient of filters reads the copy that the convolution reads, permuted; one channel: reshaped."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((32, channels, 9, 9)), rng.standard_normal((5, channels, 5, 5))

    def loss(x: Any, w: Any) -> Any:
        return (F.relu(F.conv2d(x, w, padding=2)) ** 2).sum()

    program = st.compile(st.grad(loss, argnums=1))
    got = program(st.tensor(x), st.tensor(w)).numpy()
    commands = flat(program.program.executable.commands)
    assert sum(isinstance(c, Launch) and c.label == "pad" for c in commands) == 1
    (want,), _ = interpret(program.program.graph, [x, w])
    np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-11 * np.abs(want).max())
