"""Modules built without memory: their types are right, nothing is drawn, and the block ends."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import stratal as st
from stratal import nn
from stratal.nn.unallocated import unallocated

pytestmark = pytest.mark.quick


def test_parameters_of_a_block_share_one_region_and_initialisers_leave_them() -> None:
    with unallocated():
        net = nn.Sequential(nn.Linear(1 << 14, 1 << 14), nn.BatchNorm1d(8), nn.Embedding(7, 3, padding_idx=0))
        net.append(nn.Linear(4, 4, dtype="bfloat16"))
        wide = nn.Parameter(st.randn(1 << 15, 1 << 15))
        for fill in (nn.init.orthogonal_, nn.init.eye_, nn.init.trunc_normal_, nn.init.xavier_uniform_):
            assert fill(wide) is wide
        nn.init.sparse_(tensor=wide, sparsity=0.5)
    assert wide.shape == (1 << 15, 1 << 15) and wide.dtype is st.float32 and wide.requires_grad
    assert net[0].weight.shape == (1 << 14, 1 << 14) and net[3].weight.dtype is st.bfloat16


def test_a_model_is_copied_without_its_parameters_memory_and_stays_what_it_is() -> None:
    net = nn.Linear(3, 2, bias=False)
    values = net.weight.numpy().copy()
    with unallocated():
        twin = copy.deepcopy(net)
    assert twin.weight is not net.weight and twin.weight.shape == (2, 3) and twin.weight.requires_grad
    assert np.array_equal(net.weight, values)


def test_after_the_block_parameters_have_memory_and_values_again() -> None:
    with unallocated():
        pass
    made = nn.Linear(30, 20)
    assert np.asarray(made.weight).std() > 0
