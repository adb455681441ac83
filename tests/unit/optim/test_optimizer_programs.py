"""Random optimizer programs agree, compiled, lazily, eagerly and with PyTorch, in all that can be seen."""

import importlib.util

import optimizer_programs
import pytest

OURS = ("compiled", "lazy", "eager")
MODES = (*OURS, "torch") if importlib.util.find_spec("torch") else OURS
pytestmark = [
    pytest.mark.filterwarnings("ignore:Detected call of"),
    pytest.mark.filterwarnings("ignore:Seems like"),
]


@pytest.mark.sampled(29)
@pytest.mark.torch
@pytest.mark.parametrize("optimizer", optimizer_programs.OPTIONS)
def test_a_program_of_each_optimizer_agrees_in_all_modes(optimizer):
    number = list(optimizer_programs.OPTIONS).index(optimizer)
    optimizer_programs.check(number, MODES, optimizer=optimizer)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("first", range(1000, 1400, 20))
def test_random_programs_agree_in_all_modes(first):
    for seed in range(first, first + 20):
        optimizer_programs.check(seed, MODES)
