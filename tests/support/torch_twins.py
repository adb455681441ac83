"""Comparison with PyTorch: the same module in both libraries, the same weights, outputs and gradients side
by side.
"""

from __future__ import annotations

import numpy as np

import stratal as st

TOLERANCE = {"float32": 1e-4, "float64": 1e-9}  # of the largest magnitude in the tensor


def assert_close(ours, theirs, name="", tolerance=None, floor=1e-30):
    """Check max|a-b| <= tolerance * max|b|; where all b are below `floor`, times that."""
    a, b = np.asarray(ours), np.asarray(theirs)
    assert a.shape == b.shape, f"{name}: shape {a.shape} for {b.shape}"
    tolerance = TOLERANCE[str(b.dtype)] if tolerance is None else tolerance
    scale = max(np.abs(b).max(initial=0.0), floor)
    worst = np.abs(a.astype(np.float64) - b).max(initial=0.0) / scale
    assert worst <= tolerance, f"{name}: differs by {worst:.2e} of the largest value"


def to_torch(array):
    import torch

    tensor = torch.from_numpy(np.array(array))
    return tensor.requires_grad_() if tensor.is_floating_point() else tensor


def load(ours, theirs):
    """Give our module the weights of its torch twin, checking that the keys agree."""
    state = {name: value.numpy() for name, value in theirs.state_dict().items()}
    assert list(ours.state_dict()) == list(state)
    ours.load_state_dict(state)


def compare(ours, theirs, *arrays, forward=None, tolerance=None):
    """Run both on the arrays; compare the output, the gradients of inputs and parameters, and the buffers
    after.
    """
    forward = forward or (lambda module, *xs: module(*xs))
    theirs = theirs.to(dtype=to_torch(np.zeros((), _float_of(arrays))).dtype)
    ours.to(dtype=_float_of(arrays))
    load(ours, theirs)
    xs = [st.tensor(a) for a in arrays]
    for x in xs:
        if x.dtype.is_float:
            x.requires_grad_()
    ts = [to_torch(a) for a in arrays]
    y, t = forward(ours, *xs), forward(theirs, *ts)
    weights = np.random.default_rng(9).standard_normal(tuple(t.shape)).astype(_float_of(arrays))
    (y * st.tensor(weights)).sum().backward()
    (t * to_torch(weights).detach()).sum().backward()
    # Read only now, so that output and gradients are one program.
    assert_close(y.detach(), t.detach(), "output", tolerance)
    for k, (x, s) in enumerate(zip(xs, ts, strict=True)):
        if x.dtype.is_float:
            assert_close(x.grad, s.grad, f"gradient of input {k}", tolerance)
    twins = dict(theirs.named_parameters())
    biggest = max((float(p.grad.abs().max()) for p in twins.values() if p.grad is not None), default=0.0)
    for name, parameter in ours.named_parameters():
        if twins[name].grad is None:
            assert parameter.grad is None, name
        else:  # some are zero but for rounding, such as a bias under a batch norm's
            floor = max(1e-3 * biggest, 1e-30)
            assert_close(parameter.grad, twins[name].grad, f"gradient of {name}", tolerance, floor)
    buffers = dict(theirs.named_buffers())
    for name, buffer in ours.named_buffers():
        assert_close(buffer, buffers[name].numpy(), name, tolerance or 1e-4 if buffer.dtype.is_float else 0)


def compare_functions(function, *arrays, tolerance=None):
    """Run `function(F, tensor, *inputs)` with both libraries' nn.functional; compare output and gradients.

    `tensor` makes a tensor of the library of a constant.
    """
    import torch

    xs = [st.tensor(a) for a in arrays]
    for x in xs:
        if x.dtype.is_float:
            x.requires_grad_()
    ts = [to_torch(a) for a in arrays]
    y = function(st.nn.functional, st.tensor, *xs)
    t = function(torch.nn.functional, torch.tensor, *ts)
    if not t.requires_grad:
        assert_close(y.detach(), t.detach(), "output", 0 if not t.is_floating_point() else tolerance)
        return
    weights = np.random.default_rng(9).standard_normal(tuple(t.shape)).astype(_float_of(arrays))
    (y * st.tensor(weights)).sum().backward()
    (t * torch.tensor(weights)).sum().backward()
    assert_close(y.detach(), t.detach(), "output", tolerance)
    for k, (x, s) in enumerate(zip(xs, ts, strict=True)):
        if s.grad is not None:
            grad = np.zeros_like(s.grad) if x.grad is None else x.grad  # where no gradient flows
            assert_close(grad, s.grad, f"gradient of input {k}", tolerance)


def _float_of(arrays):
    return next((str(a.dtype) for a in arrays if a.dtype.kind == "f"), "float32")


def draw(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)
