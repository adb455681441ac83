"""Losses: the text of a target for a batch of `{n}` and of the loss of `y`; all take vectors of `{c}` values."""

from __future__ import annotations

_CLASS = "lib.tensor(chance.integers(0, {c}, {n}))"
_LIKE = "data({n}, {c})"
_SIGN = "lib.tensor(chance.integers(0, 2, ({n}, {c})) * 2.0 - 1)"
_BIT = "lib.tensor(chance.integers(0, 2, ({n}, {c})) * 1.0)"

LOSSES: dict[str, tuple[str, str]] = {
    "mse": (_LIKE, "F.mse_loss(y, t)"),
    "mse summed": (_LIKE, "F.mse_loss(y, t, reduction='sum') * 0.1"),
    "l1": (_LIKE, "F.l1_loss(y, t)"),
    "smooth l1": (_LIKE, "F.smooth_l1_loss(y, t, beta=0.7)"),
    "huber": (_LIKE, "F.huber_loss(y, t, delta=0.8)"),
    "cross entropy": (_CLASS, "F.cross_entropy(y, t)"),
    "cross entropy, smoothed": (_CLASS, "F.cross_entropy(y, t, label_smoothing=0.1)"),
    "cross entropy, ignoring": (_CLASS, "F.cross_entropy(y, t, ignore_index=0, reduction='sum')"),
    "cross entropy of probabilities": (_LIKE, "F.cross_entropy(y, F.softmax(t, dim=1))"),
    "nll": (_CLASS, "F.nll_loss(F.log_softmax(y, dim=1), t)"),
    "bce of logits": (_BIT, "F.binary_cross_entropy_with_logits(y, t)"),
    "bce": (_BIT, "F.binary_cross_entropy(lib.sigmoid(y), t)"),
    "kl": (_LIKE, "F.kl_div(F.log_softmax(y, dim=1), F.softmax(t, dim=1), reduction='batchmean')"),
    "gaussian nll": (_LIKE, "F.gaussian_nll_loss(y, t, F.softplus(y) + 0.1)"),
    "poisson nll": (_BIT, "F.poisson_nll_loss(y, t)"),
    "soft margin": (_SIGN, "F.soft_margin_loss(y, t)"),
    "hinge": (_SIGN, "F.relu(1 - y * t).mean()"),
    "multi margin": (_CLASS, "F.multi_margin_loss(y, t)"),
    "cosine": (_LIKE, "(1 - F.cosine_similarity(y, t, dim=1)).mean()"),
    "contrast": (_LIKE, "F.cross_entropy(F.normalize(y, dim=1) @ F.normalize(t, dim=1).T, lib.arange(y.shape[0]))"),
    "logsumexp": (_LIKE, "(lib.logsumexp(y, dim=1) - (y * t).sum(1)).mean()"),
    "variance": (_LIKE, "((y - t) ** 2).mean() + y.var(0, unbiased=False).mean()"),
    "masked": (_LIKE, "lib.where(t > 0, (y - t) ** 2, lib.zeros_like(y)).sum() / 7"),
    "largest": (_LIKE, "(y - t).abs().max() + (y * t).mean()"),
}
