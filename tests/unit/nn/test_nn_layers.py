"""Plain layers against PyTorch, and that `nn` offers what it says, under PyTorch's names and arguments."""

import inspect

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch_twins import compare, draw  # noqa: E402

from stratal import nn  # noqa: E402

pytestmark = pytest.mark.torch

LAYERS = {
    "linear": (lambda nn: nn.Linear(5, 3), (4, 5)),
    "linear without bias, 3 axes": (lambda nn: nn.Linear(5, 3, bias=False), (2, 4, 5)),
    "dropout in evaluation": (lambda nn: nn.Dropout(0.3).eval(), (3, 4)),
    "identity": (lambda nn: nn.Identity(), (3, 4)),
}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_agrees_with_pytorch_and_prints_like_it(name, dtype):
    make, shape = LAYERS[name]
    compare(make(nn), make(torch.nn), draw(*shape, dtype=dtype))
    assert repr(make(nn)) == repr(make(torch.nn))


OURS_ALONE = {"RotaryEmbedding", "SinusoidalPositions", "SigmoidFocalLoss"}
MODULES = [n for n in dir(nn) if n[0].isupper() and n != "Parameter" and n not in OURS_ALONE]
DROPPED = {
    "self",
    "args",
    "kwargs",
    "size_average",
    "reduce",
    "min_value",
    "max_value",
}  # deprecated, or *args


def arguments(cls):
    found = inspect.signature(cls).parameters.values()
    return {p.name: p.default for p in found if p.kind is not p.VAR_POSITIONAL and p.name not in DROPPED}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_takes_pytorchs_arguments_with_its_defaults(name):
    theirs, ours = arguments(getattr(torch.nn, name)), arguments(getattr(nn, name))
    for word, default in theirs.items():
        assert word in ours, f"{name} lacks {word}"
        if not callable(default) and default is not inspect.Parameter.empty:
            assert ours[word] == default or default is None or name == "Module", f"{name}: {word}"


@pytest.mark.parametrize("name", [n for n in MODULES if n != "Module"])
def test_a_module_takes_pytorchs_arguments_in_its_order(name):
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD,)
    theirs, ours = (
        [p.name for p in inspect.signature(getattr(of, name)).parameters.values() if p.kind in kinds]
        for of in (torch.nn, nn)
    )
    theirs = [word for word in theirs if word not in DROPPED]
    assert ours[: len(theirs)] == theirs


ELSEWHERE = {
    "LSTM": {"get_expected_cell_size", "check_forward_args", "permute_hidden"},  # parts of PyTorch's forward
    "MultiheadAttention": {"merge_masks"},
    "LazyLinear": {"reset_parameters"},  # comes with the class it becomes
    "ParameterDict": {"copy", "popitem", "fromkeys"},
}
"""Methods of PyTorch's classes that ours lack."""


@pytest.mark.parametrize("name", [n for n in MODULES if n != "Module"])
def test_a_module_has_the_methods_of_pytorchs(name):
    theirs = {m for m, f in vars(getattr(torch.nn, name)).items() if m[0] != "_" and inspect.isfunction(f)}
    missing = {m for m in theirs if not hasattr(getattr(nn, name), m)}
    assert missing == ELSEWHERE.get(name, set())


FUNCTIONS = [n for n in dir(nn.functional) if hasattr(torch.nn.functional, n)]
IN_PYTHON = [n for n in FUNCTIONS if inspect.isfunction(getattr(torch.nn.functional, n))]


@pytest.mark.parametrize("name", IN_PYTHON)
def test_a_function_takes_pytorchs_arguments(name):
    theirs = inspect.signature(getattr(torch.nn.functional, name)).parameters
    ours = inspect.signature(getattr(nn.functional, name)).parameters
    missing = set(theirs) - set(ours) - DROPPED - {"_stacklevel", "out"}
    assert not missing


def test_there_are_a_hundred_layers_and_losses_and_eighty_functions():
    assert len(MODULES) >= 100 and len(FUNCTIONS) >= 80
