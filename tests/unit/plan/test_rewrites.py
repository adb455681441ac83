"""Programs with real arithmetic: what is folded, what is said of it, and what stays to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import stratal as st
from stratal import nn
from stratal.base import settings
from stratal.base.errors import AttributeValueError, SettingError

pytestmark = pytest.mark.quick


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)

    def forward(self, x: st.Tensor) -> st.Tensor:
        return nn.functional.relu(self.norm(self.conv(x)))


def block() -> Block:
    made = Block()
    made.norm.running_mean += 0.5
    made.norm.running_var += 0.25
    made.eval()
    return made


@pytest.mark.row("C2")
def test_real_math_folds_batch_norm_of_a_module_and_agrees_to_rounding() -> None:
    model = block()
    exact, real = st.compile(model), st.compile(model, math="real")
    x = st.tensor(np.random.default_rng(0).standard_normal((2, 8, 32, 32)).astype(np.float32))
    with st.no_grad():
        want, got = exact(x).numpy(), real(x).numpy()
        wide = model.double()(x.double()).numpy()
    errors = [float(np.abs(a - wide).max() / np.abs(wide).max()) for a in (want, got)]
    assert errors[1] <= 3 * max(errors[0], 2e-7)
    (kernel,) = (k for k in real.plan.kernels if "conv" in k["ops"])
    assert not {"mul", "sub"} & set(kernel["ops"])
    assert {"mul", "sub"} <= set(next(k for k in exact.plan.kernels if "conv" in k["ops"])["ops"])


def test_explain_shows_what_was_chosen_with_rule_proof_prices_and_lines() -> None:
    real = st.compile(block(), math="real")
    with st.no_grad():
        real(st.ones(2, 8, 32, 32))
    text = real.explain("rewrites")
    assert text.startswith("real: ") and "\nchosen: conv" in text
    assert "conv-scale (real arithmetic): mul(conv(" in text and "proved over the real numbers" in text
    assert "as written" in text and "rewritten" in text and "test_rewrites.py:" in text
    assert "rewritten: channel-scales" in real.explain()  # and so among all decisions


class Branches(nn.Module):
    """A batch norm that folds, and two convolutions of one image that are not cheaper as one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.b, self.c = (nn.Conv2d(8, 16, 3, padding=1, bias=False) for _ in range(2))

    def forward(self, x: st.Tensor) -> st.Tensor:
        y = nn.functional.relu(self.norm(self.a(x)))
        return y + nn.functional.relu(self.b(x)) * nn.functional.sigmoid(self.c(x))


def test_explain_shows_a_chosen_and_a_rejected_rewrite_with_rule_proof_prices_and_lines() -> None:
    real, exact = st.compile(Branches().eval(), math="real"), st.compile(Branches().eval())
    with st.no_grad():
        for compiled in (real, exact):
            compiled(st.ones(2, 8, 32, 32))
    for compiled, title in ((real, "chosen"), (exact, "would be chosen")):
        parts = compiled.explain("rewrites").split("\n\n")
        for start in (f"{title}: ", "rejected: "):
            rewrite = next(part for part in parts if part.startswith(start))
            assert "test_rewrites.py:" in rewrite.splitlines()[0]
            assert "    as written " in rewrite and " rewritten " in rewrite and ", estimated" in rewrite
            assert "(real arithmetic): " in rewrite and "  =  " in rewrite
            assert "proved over the real numbers; normal form: " in rewrite
        assert "it is not cheaper" in next(part for part in parts if part.startswith("rejected"))
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    line = next(k for k, text in enumerate(lines, 1) if "self.norm(self.a(" in text)
    assert f"test_rewrites.py:{line}" in real.explain("rewrites").split("\n\n")[1].splitlines()[0]


def test_explain_of_an_exact_program_says_what_real_math_would_gain() -> None:
    exact = st.compile(block())
    with st.no_grad():
        exact(st.ones(2, 8, 32, 32))
    text = exact.explain("rewrites")
    assert text.startswith("exact: ") and 'math="real" would gain ' in text
    assert "would be chosen: conv" in text
    assert not exact.program.log.of("search")


def test_programs_of_both_arithmetics_are_told_apart_in_memory_and_in_the_cache() -> None:
    model = block()
    x = st.ones(2, 8, 32, 32)
    runs = []
    for math in ("exact", "real", "exact", "real"):
        with settings.math(math), st.no_grad():
            runs.append(st.compile(model)(x).numpy())
    assert runs[0].tobytes() == runs[2].tobytes() and runs[1].tobytes() == runs[3].tobytes()
    assert settings.math in settings.SHAPING


def test_training_is_exact_unless_asked() -> None:
    def losses(**options: str) -> list[bytes]:
        st.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
        opt = st.optim.SGD(model.parameters(), lr=0.1)

        def step(x: st.Tensor) -> st.Tensor:
            opt.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            opt.step()
            return loss

        step_ = st.compile(step, **options)
        return [step_(st.ones(4, 8)).numpy().tobytes() for _ in range(3)]

    assert losses() == losses(math="exact")
    close = [np.frombuffer(b, np.float32) for b in losses(math="real")]
    np.testing.assert_allclose(close, [np.frombuffer(b, np.float32) for b in losses()], rtol=1e-5)


def test_arithmetic_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(AttributeValueError, match="no such arithmetic") as caught:
        st.compile(block(), math="fast")
    assert 'math="real"' in str(caught.value)
    with pytest.raises(SettingError, match="STRATAL_MATH: takes one of exact, real"):
        settings.math.parse("fast")
