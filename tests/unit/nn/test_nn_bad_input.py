"""Functions of nn.functional called with anything: a four-line error or a result, and nothing else."""

import inspect
import random

import numpy as np
import pytest

import stratal as st
from stratal import nn

F = nn.functional


def tensor(*shape, dtype="float32"):
    return st.tensor((2 * np.random.default_rng(0).standard_normal(shape)).astype(dtype))


TENSORS = [
    *(tensor(*s) for s in [(), (3,), (2, 3), (2, 3, 4), (2, 3, 4, 4), (2, 3, 2, 4, 4)]),
    *(tensor(*s) for s in [(0,), (0, 3), (2, 3, 0)]),
    tensor(2, 3, 4, dtype="int64"), tensor(3, dtype="int64"), tensor(2, 3, 4, 4, dtype="float64"),
    tensor(2, 3, 4).astype("bfloat16"), tensor(2, 3) > 0, st.tensor(np.full((2, 3), np.nan, np.float32)),
    st.tensor(np.ones((2, 3), np.complex64)),
]  # fmt: skip
OTHERS = [0, 1, 2, -1, 1.5, 2**40, (1, 2), (-1, -1), (2, 2, 2), [], None, "mean", "bilinear", "reflect", "?",
          float("nan"), float("inf"), True]  # fmt: skip


def arguments(function, rng):
    """Draw arguments, mostly of the kinds a function takes."""
    given = {}
    for p in inspect.signature(function).parameters.values():
        required, wants_tensor = p.default is p.empty, "Tensor" in str(p.annotation)
        if required or rng.random() < 0.2:
            given[p.name] = rng.choice(TENSORS if wants_tensor and rng.random() < 0.9 else OTHERS)
    return given


# Those that take the number of dimensions first are for layers.
PUBLIC = [name for name in dir(F) if "dims" not in inspect.signature(getattr(F, name)).parameters]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_call_with_anything_gives_a_result_or_a_four_line_error(name):
    function, rng = getattr(F, name), random.Random(name)
    for _ in range(12):
        given = arguments(function, rng)
        try:
            with st.eager():
                result = function(**given)
                for t in result if isinstance(result, tuple) else (result,):
                    np.asarray(t.detach())
        except st.StratalError as error:
            lines = [line.strip().split(":")[0] for line in str(error).splitlines()]
            assert lines[1:] == ["got", "where", "hint"], str(error)


def test_an_argument_of_another_kind_is_named():
    with pytest.raises(st.StratalError, match="'input' must be a tensor") as info:
        F.glu([1.0])
    assert "test_nn_bad_input.py" in str(info.value)
    with pytest.raises(st.StratalError, match="'p' must be a number"):
        F.dropout(tensor(3), "half")
    with pytest.raises(TypeError, match="unexpected keyword"):
        F.relu(tensor(3), slope=1)


def test_an_array_where_a_tensor_is_asked_for_names_what_makes_one() -> None:
    with pytest.raises(st.StratalError, match="must be a tensor") as caught:
        nn.Linear(3, 2)(np.ones((2, 3), np.float32))
    assert "st.tensor(x)" in str(caught.value)
