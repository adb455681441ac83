"""Batch norm over all ranks; on one rank it is batch norm."""

from __future__ import annotations

import numpy as np
import pytest
from launching import launch, launched, needs_mpi

import stratal as st
from stratal import nn
from stratal.base.errors import AttributeValueError, CallOrderError, ShapeError


@needs_mpi
@launched
@pytest.mark.row("F1")
@pytest.mark.parametrize("check", ["equal", "gradients", "converted"])
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_statistics_and_gradients_are_those_of_one_process_on_the_whole_batch(ranks: int, check: str) -> None:
    status, output = launch(ranks, "rank_sync_batch_norm.py", check, timeout=60)
    assert output.count("passed") == 1, output
    assert status == 0, output


def test_on_one_rank_it_is_batch_norm_of_any_number_of_axes() -> None:
    x = np.random.default_rng(0).standard_normal((6, 3, 4)).astype(np.float32)
    for given, plain in ((x, nn.BatchNorm1d(3)), (x[..., None], nn.BatchNorm2d(3))):
        layer = nn.SyncBatchNorm(3)
        np.testing.assert_array_equal(layer(st.tensor(given)).numpy(), plain(st.tensor(given)).numpy())
        assert layer.state_dict().keys() == plain.state_dict().keys()
        for a, b in zip(layer.buffers(), plain.buffers(), strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
    with pytest.raises(ShapeError, match="at least 2 axes"):
        nn.SyncBatchNorm(3)(st.ones((4, 2)))


def test_conversion_keeps_parameters_and_refuses_layers_without_sizes() -> None:
    net = nn.Sequential(nn.BatchNorm1d(3, affine=False), nn.Sequential(nn.BatchNorm2d(2)), nn.Linear(2, 2))
    weight, before = net[1][0].weight, repr(net[1][0])
    assert nn.SyncBatchNorm.convert_sync_batchnorm(net) is net
    assert net[1][0].weight is weight and repr(net[1][0]) == before.replace("BatchNorm2d", "SyncBatchNorm")
    assert type(net[0]) is nn.SyncBatchNorm and net[0].weight is None
    layer = net[1][0]
    assert nn.SyncBatchNorm.convert_sync_batchnorm(layer) is layer
    assert type(nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(2))) is nn.SyncBatchNorm
    with pytest.raises(CallOrderError, match="no sizes yet"):
        nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.LazyBatchNorm1d()))
    with pytest.raises(AttributeValueError, match="all ranks"):
        nn.SyncBatchNorm.convert_sync_batchnorm(net, process_group="some")
