"""Layers and losses on batches whose size changes: one program serves all, with the results of eager runs."""

import numpy as np
import pytest

import stratal as st
from stratal import nn

F = nn.functional
ATTENTION = nn.MultiheadAttention(8, 2, batch_first=True)
LSTM = nn.LSTM(8, 4, batch_first=True)
SOFTMAX = nn.AdaptiveLogSoftmaxWithLoss(8, 10, [2, 5])


def classes(a):
    return (a > 0).astype("int64")


CALLS = {
    "pad": lambda a: F.pad(a, (1, 1), "reflect"),
    "max_unpool2d": lambda a: F.max_unpool2d(*F.max_pool2d(a, 2, return_indices=True), 2),
    "adaptive_max_pool2d": lambda a: F.adaptive_max_pool2d(a, 4),
    "fold of unfold": lambda a: F.fold(F.unfold(a, 2), (6, 8), 2),
    "pixel_unshuffle": lambda a: F.pixel_unshuffle(a, 2),
    "channel_shuffle": lambda a: F.channel_shuffle(a, 3),
    "interpolate": lambda a: F.interpolate(a, (7, 9), mode="bicubic"),
    "grid_sample": lambda a: F.grid_sample(a, a[:, :1].reshape((a.shape[0], 6, 4, 2))),
    "instance_norm": lambda a: F.instance_norm(a),
    "rms_norm": lambda a: F.rms_norm(a, 8),
    "local_response_norm": lambda a: F.local_response_norm(a, 2),
    "multi_margin_loss": lambda a: F.multi_margin_loss(a[:, 0, 0], classes(a[:, 0, 0, 0])),
    "multilabel_margin_loss": lambda a: F.multilabel_margin_loss(a[:, 0, 0, :4], classes(a[:, 0, 0, :4])),
    "triplet_margin_loss": lambda a: F.triplet_margin_loss(a, a + 1, a * 2),
    "ctc_loss": lambda a: F.ctc_loss(
        F.log_softmax(a[:, 0].permute(1, 0, 2), -1), classes(a[:, 0, 0, :2]) + 1,
        classes(a[:, 0, 0, 0]) + 5, classes(a[:, 0, 0, 0]) + 1,
    ),
    "attention": lambda a: ATTENTION(a[:, 0], a[:, 1], a[:, 2])[0],
    "rotary positions": lambda a: F.rotary_embedding(a),
    "lstm": lambda a: LSTM(a[:, 0])[0],
    "adaptive softmax": lambda a: SOFTMAX(a[:, 0, 0], classes(a[:, 0, 0, 0])).loss,
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_one_program_serves_batches_of_several_sizes(name):
    call = CALLS[name]
    compiled = st.compile(call)
    with st.no_grad():
        for batch in (4, 5, 7, 3):
            a = np.random.default_rng(batch).standard_normal((batch, 3, 6, 8)).astype(np.float32)
            got = compiled(st.tensor(a)).numpy()
            with st.eager():
                want = call(st.tensor(a)).numpy()
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert compiled.captures <= 2, compiled.reasons
