"""Complex numbers in native code: every op that has a form in real numbers equals its reference, and no host
call is left.
"""

from __future__ import annotations

import numpy as np
import pytest
from record_samples import NAMES, called, inputs, results, samples
from tolerance import disagreement

import stratal as st
from stratal.base.dtypes import complex64, complex128, float32, float64
from stratal.base.errors import StratalError
from stratal.base.types import TensorType, TupleType
from stratal.compiler import compile_graph
from stratal.graph.graph import Graph
from stratal.graph.interpret import apply
from stratal.graph.node import Node, graph_input, make
from stratal.graph.op import REGISTRY, Op, Sample
from stratal.runtime.storage import Storage

WHOLE = {float32: complex64, float64: complex128}
FEW = 8  # calls of an op: each is compiled
IN_REALS = [n for n in NAMES if REGISTRY[n].by_parts or REGISTRY[n].in_reals is not Op.in_reals]


def complex_calls(name: str) -> list[Sample]:
    """Return the samples of a record with complex numbers in place of floats."""
    found = []
    for sample in samples(name):
        types = tuple(t.with_dtype(WHOLE.get(t.dtype, t.dtype)) for t in sample.types)
        op = sample.op
        try:
            kept = any(t.dtype.is_complex for t in types) and not isinstance(op.infer(*types), TupleType)
        except StratalError:
            types, kept = sample.types, any(t.dtype.is_complex for t in sample.types)
        out = op.infer(*types) if kept or name == "cast" else None
        if kept or (isinstance(out, TensorType) and out.dtype.is_complex):
            found.append(Sample(op, types, sample.domain, sample.draw))
    return found[:: -(-len(found) // FEW)] if found else []


def drawn(sample: Sample) -> list[np.ndarray]:
    """Return inputs of a sample; imaginary parts are the real ones of another order."""
    arrays = []
    for array, type_ in zip(inputs(sample), sample.types, strict=True):
        wanted = np.asarray(array).astype(type_.dtype.np)
        if type_.dtype.is_complex and not np.iscomplexobj(array):
            wanted = wanted + 1j * np.roll(wanted[..., ::-1] if wanted.ndim else wanted, 1).astype(
                wanted.dtype
            )
        arrays.append(np.array(wanted.astype(type_.dtype.np), order="C"))
    return arrays


@pytest.mark.parametrize("name", IN_REALS)
def test_complex_calls_run_natively_and_equal_the_reference(name: str) -> None:
    calls = complex_calls(name)
    nodes: list[Node] = []
    outputs: list[Node] = []
    stored: list[Storage] = []
    wanted = []
    for sample in calls:
        operands = [graph_input(f"x{len(nodes) + k}", t) for k, t in enumerate(sample.types)]
        values = drawn(sample)
        nodes += operands
        stored += [Storage.copy_of(a, o.aval) for a, o in zip(values, operands, strict=True)]
        outputs.append(make(sample.op, *operands))
        wanted.append((sample, np.asarray(results(apply(sample.op, *values))[0])))
    if not calls:
        pytest.skip("takes no complex numbers")
    program = compile_graph(Graph(nodes, outputs, name=name))
    assert not program.plan.host_calls, program.plan.host_calls
    for (sample, want), result in zip(wanted, program.run(stored), strict=True):
        fault = disagreement(sample.op, np.array(result.array), want, slack=2.0)
        assert not fault, f"{called(sample)}: {fault}"


# -- the same bytes under two types --------------------------------------------------------------------------
Z = (np.arange(12) - 4 + 1j * np.arange(12)[::-1]).reshape(3, 4).astype(np.complex64)
PROGRAMS = {
    "a view of an input": (st.view_as_real, lambda z: z.view(np.float32).reshape(3, 4, 2)),
    "pairs and what they show": (
        lambda z: (st.view_as_complex(st.view_as_real(z) * 2), st.view_as_real(z) * 2),
        lambda z: (z * 2, (z * 2).view(np.float32).reshape(3, 4, 2)),
    ),
    "one result twice": (lambda z: (z * z, st.conj(z * z)), lambda z: (z * z, (z * z).conj())),
    "pairs for the host": (lambda z: st.linalg.svdvals(z * z), lambda z: np.linalg.svd(z * z)[1]),
    "parts of what the host made": (
        lambda z: st.real(st.exp(z)) + st.imag(z),
        lambda z: np.exp(z).real + z.imag,
    ),
    "pairs that the host makes": (
        lambda z: st.view_as_complex(st.linalg.qr(st.view_as_real(z)).Q),
        lambda z: np.linalg.qr(z.view(np.float32).reshape(3, 4, 2))[0].view(np.complex64)[..., 0],
    ),
    "a constant": (lambda z: z * (2 - 1j), lambda z: z * np.complex64(2 - 1j)),
    "a scan": (
        lambda z: st.scan(lambda c, x: (c * x, c + x), z[0], z),
        lambda z: (
            z[0] * z[0] * z[1] * z[2],
            np.stack([2 * z[0], z[0] * z[0] + z[1], z[0] * z[0] * z[1] + z[2]]),
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_of_two_types_share_their_bytes(name: str) -> None:
    ours, theirs = PROGRAMS[name]
    got, want = st.compile(ours)(st.tensor(Z)), theirs(Z)
    pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
    for a, b in pairs:
        assert a.numpy().dtype == b.dtype
        np.testing.assert_allclose(a.numpy(), b, rtol=2e-6, atol=1e-5)


def test_a_complex_state_is_replaced_after_its_pairs_are_read() -> None:
    state = st.tensor(Z)

    @st.compile
    def step() -> st.Tensor:
        before = st.view_as_real(state) * 1  # a view would show what is written
        state.copy_(state * 1j)
        return before

    for k in range(3):
        np.testing.assert_array_equal(
            step().numpy(), (Z * np.complex64(1j) ** k).view(np.float32).reshape(3, 4, 2)
        )
    np.testing.assert_array_equal(state.numpy(), Z * np.complex64(-1j))


def test_special_values_of_complex_numbers_are_numpys() -> None:
    values = np.array([0.0, -0.0, 1.5, -2e30, 1e-42, np.inf, -np.inf, np.nan], np.float32)
    x, y = (a.ravel() for a in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        for z in ((x + 0j), x.astype(np.complex128)):
            z.imag = y
            for ours, theirs in (
                (st.abs, np.abs),
                (st.isnan, np.isnan),
                (st.isinf, np.isinf),
                (st.conj, np.conj),
            ):
                np.testing.assert_allclose(ours(st.tensor(z)).numpy(), theirs(z), rtol=3e-16)
    big = np.array([3e200 + 4e200j, 3e-200 + 4e-200j])
    np.testing.assert_allclose(abs(st.tensor(big)).numpy(), np.abs(big), rtol=1e-15)


def test_one_program_serves_complex_numbers_of_many_sizes() -> None:
    double = st.compile(lambda z: st.view_as_complex(st.view_as_real(z) * 2) + z.conj(), dynamic=True)
    for n in (5, 6, 7, 9):
        z = np.arange(3 * n).reshape(n, 3) * np.complex64(1 + 1j)
        np.testing.assert_array_equal(double(st.tensor(z)).numpy(), z * 2 + z.conj())
    assert len(double.reasons) <= 2, double.reasons
