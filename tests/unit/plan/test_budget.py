"""Memory budgets: the plan keeps them, the bits stay, and what cannot be is refused with the true least."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim
from stratal.base import settings
from stratal.base.errors import AttributeValueError, DTypeError
from stratal.nn import functional as F

Step = Callable[[], Any]


def deep(width: int = 96, layers: int = 10) -> nn.Module:
    return nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(width, width), nn.Tanh())])


class Residual(nn.Module):
    """Convolutions with batch norm and dropout, and skips."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.convs = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1) for _ in range(4)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(8) for _ in range(4)])
        self.drop = nn.Dropout(0.2)
        self.last = nn.Linear(8 * 64, 96)

    def forward(self, x: Any) -> Any:
        x = self.first(x.reshape(-1, 3, 8, 8))
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + self.drop(F.relu(norm(conv(x))))
        return self.last(x.flatten(1))


class Attention(nn.Module):
    """Blocks of a Transformer with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True) for _ in range(3)
        ])  # fmt: skip

    def forward(self, x: Any) -> Any:
        x = x.reshape(-1, 6, 32)
        for block in self.blocks:
            x = block(x)
        return x.reshape(-1, 192)[:, :96]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(16, 24, batch_first=True), deep(144, 5)
        self.last = nn.Linear(144, 96)

    def forward(self, x: Any) -> Any:
        found, _ = self.cells(x.reshape(-1, 12, 16)[:, :6])
        return self.last(self.head(found.reshape(-1, 144)))


MODELS: dict[str, Any] = {"deep": deep, "residual": Residual, "attention": Attention, "recurrent": Recurrent}
OPTIMIZERS: dict[str, Any] = {
    "deep": lambda p: optim.AdamW(p, lr=1e-3), "residual": lambda p: optim.SGD(p, lr=0.01, momentum=0.9),
    "attention": lambda p: optim.Adam(p, lr=1e-3), "recurrent": lambda p: optim.RMSprop(p, lr=1e-3),
}  # fmt: skip


def training(name: str) -> tuple[nn.Module, Callable[[Any, Any], Any], tuple[Any, Any]]:
    st.manual_seed(3)
    net = MODELS[name]()
    opt = OPTIMIZERS[name](list(net.parameters()))

    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    rng, batch = np.random.default_rng(0), 192 if name == "deep" else 48
    x = rng.standard_normal((batch, 96 if name == "deep" else 192)).astype(np.float32)
    return net, step, (st.tensor(x), st.tensor(rng.integers(0, 96, batch)))


def trained(name: str, memory: int | str | None, steps: int = 4) -> tuple[Any, list[bytes]]:
    """Train from one seed; return the compiled step, and the bytes of losses, parameters and buffers."""
    net, step, batch = training(name)
    compiled = st.compile(step, memory=memory)
    found = [compiled(*batch).numpy().tobytes() for _ in range(steps)]
    return compiled, found + [v.numpy().tobytes() for v in net.state_dict().values()]


def least_of(name: str) -> int:
    _, step, batch = training(name)
    step(*batch)  # the optimizer has state from the first step on
    with pytest.raises(st.DoesNotFit) as refused:
        st.fits(step, *batch, memory=1)
    return refused.value.least_bytes


@pytest.mark.row("E8")
@pytest.mark.parametrize("name", MODELS)
def test_budgets_are_kept_and_change_no_bit(name: str) -> None:
    free, wanted = trained(name, None)
    peak, least = free.plan.planned_peak_bytes, least_of(name)
    assert least < peak
    for share in (0.0, 0.5):
        budget = least + int((peak - least) * share)
        kept, found = trained(name, budget)
        assert kept.plan.planned_peak_bytes <= budget
        assert found == wanted
        assert "of a budget of" in str(kept.memory)


@pytest.mark.row("E6")
@pytest.mark.row("E14")
def test_the_front_of_seconds_against_bytes_has_no_plan_that_another_beats(tmp_path: Any) -> None:
    _, step, batch = training("deep")
    step(*batch)
    front = st.memory_front(step, *batch, points=6)
    sizes = [p.planned_peak_bytes for p in front]
    assert sizes == sorted(set(sizes), reverse=True)
    assert [p.slowdown for p in front] == sorted(p.slowdown for p in front)
    assert sizes[-1] == least_of("deep")
    for point in front:
        fit = st.fits(step, *batch, memory=point.planned_peak_bytes)
        assert fit.planned_peak_bytes <= point.planned_peak_bytes
        assert point.critical_seconds <= point.slowdown * front.points[0].critical_seconds * 1.5
    assert front.points[0].recomputed == 0 < front.points[-1].recomputed
    assert "critical path" in str(front)
    assert str(front).count("\n") == len(front) + 1
    with settings.offload_dir(tmp_path):
        lower = st.memory_front(step, *batch, points=6)
    assert lower.points[-1].planned_peak_bytes <= sizes[-1]
    with pytest.raises(AttributeValueError, match="points"):
        st.memory_front(step, *batch, points=1)


def test_the_front_may_compute_the_batch_in_parts_or_says_why_it_does_not() -> None:
    net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
    x, y = st.tensor(np.ones((256, 8), np.float32)), st.tensor(np.ones((256, 4), np.float32))

    def gradients(x: Any) -> Any:
        return st.grad(lambda w: F.mse_loss(net(x @ w), y))(st.ones((8, 8)))

    whole = st.memory_front(gradients, x, points=3)
    front = st.memory_front(gradients, x, points=3, micro_batches=True)
    assert front.points[-1].planned_peak_bytes < whole.points[-1].planned_peak_bytes
    assert front.points[0].parts == 1 < front.points[-1].parts
    needed = front.points[-1].planned_peak_bytes
    assert st.fits(gradients, x, memory=needed, micro_batches=True).planned_peak_bytes <= needed

    refused = st.memory_front(lambda x: gradients(st.sort(x, 0)[0]), x, points=2, micro_batches=True)
    assert refused.not_split in str(refused)
    assert "sort" in refused.not_split


# Values that are filled with zeros and added to, copied and changed by a loop, or states that are updated.
ROWS, BACK = np.arange(512) * 7 % 50, np.arange(31, -1, -1)
WRITTEN_TWICE: dict[str, Callable[[Any], Any]] = {
    "embedding": lambda p: F.embedding(st.tensor(ROWS), p),
    "rows": lambda p: p[st.tensor(ROWS)],
    "index_select": lambda p: st.index_select(p, 0, st.tensor(ROWS)),
    "embedding_bag": lambda p: F.embedding_bag(st.tensor(ROWS.reshape(-1, 1)), p),
    "scan": lambda p: st.scan(lambda c, _: (st.tanh(c), st.tanh(c)), p, None, 11)[1].reshape(-1, 32)[:512],
    "carry": lambda p: st.scan(lambda c, _: (st.tanh(c) * 1.1, None), p[st.tensor(ROWS)], None, 3)[0],
    "loop": lambda p: st.fori_loop(0, 3, lambda k, a: st.tanh(a) + 0.1, p[st.tensor(ROWS)]),
    "cond": lambda p: st.cond(p.sum() > 0, st.sin, st.tanh, p[st.tensor(ROWS)]),
    "added": lambda p: st.zeros(512, 32).index_add(0, st.arange(50) * 3, p) + 1,
    "columns": lambda p: st.cat([p[:, st.tensor(BACK)]] * 11, 0)[:512],
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("twice", WRITTEN_TWICE.values(), ids=WRITTEN_TWICE)
@pytest.mark.parametrize("again", [False, True], ids=["once", "after the update"])
def test_values_that_are_written_twice_are_read_when_they_are_whole(twice: Any, again: bool) -> None:
    def training_of_a_table() -> tuple[Any, Callable[[Any], Any], Any]:
        st.manual_seed(0)
        table = nn.Parameter(st.randn(50, 32))
        net = nn.Sequential(*[m for _ in range(3) for m in (nn.Linear(32, 32), nn.GELU())])
        opt, y = optim.SGD([*net.parameters(), table], lr=1.0), st.randn(512, 32)

        def once(y: Any) -> Any:
            return F.mse_loss(net(twice(table)), y)

        def step(y: Any) -> Any:
            loss = once(y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            return (loss, once(y)) if again else (loss,)

        return table, step, y

    def run(memory: int | None) -> tuple[Any, list[bytes]]:
        table, step, y = training_of_a_table()
        compiled = st.compile(step, memory=memory)
        found = [v.numpy().tobytes() for _ in range(2) for v in compiled(y)]
        return compiled, [*found, table.detach().numpy().tobytes()]

    free, wanted = run(1 << 40)
    _, step, y = training_of_a_table()
    with pytest.raises(st.DoesNotFit) as refused:
        st.fits(step, y, memory=1)
    least = refused.value.least_bytes
    for budget in (least, (least + free.plan.planned_peak_bytes) // 2):
        compiled, found = run(budget)
        assert compiled.plan.planned_peak_bytes <= budget
        assert found == wanted


@pytest.mark.row("E9")
@pytest.mark.parametrize("name", ["deep", "residual", "recurrent"])
def test_the_least_budget_is_the_true_least(name: str) -> None:
    _, step, batch = training(name)
    step(*batch)
    least = least_of(name)
    assert st.fits(step, *batch, memory=least).planned_peak_bytes == least
    with pytest.raises(st.DoesNotFit, match="needs at least"):
        st.fits(step, *batch, memory=least - 1)


def test_a_program_from_the_cache_keeps_its_budget_and_explains_itself(tmp_path: Any) -> None:
    with settings.cache_dir(tmp_path):
        budget = least_of("deep")
        first, _ = trained("deep", budget, steps=2)
        again, _ = trained("deep", budget, steps=2)
        assert first.plan.hash == again.plan.hash
        assert str(first.explain("decisions")) == str(again.explain("decisions"))
        assert "run again" in str(again.memory)
        free, _ = trained("deep", None, steps=2)
        assert free.plan.planned_peak_bytes > budget


def test_fits_answers_without_running_or_changing_anything() -> None:
    net, step, batch = training("deep")
    before = [p.numpy().copy() for p in net.parameters()]
    state = st.get_rng_state().numpy().copy()
    found = st.fits(step, *batch, memory="1 GB")
    assert found.slowdown == 1.0
    assert found.planned_peak_bytes == found.unconstrained_bytes < 10**9
    assert "fits 1.00 GB" in str(found)
    assert all(np.array_equal(a, b.numpy()) for a, b in zip(before, net.parameters(), strict=True))
    assert all(p.grad is None for p in net.parameters())
    assert np.array_equal(state, st.get_rng_state().numpy())


def test_what_does_not_fit_is_refused_before_it_runs() -> None:
    net, step, batch = training("deep")
    before = [p.numpy().copy() for p in net.parameters()]
    with pytest.raises(st.DoesNotFit) as refused:
        st.compile(step, memory="100 kB")(*batch)
    text = str(refused.value)
    assert "needs at least" in text
    assert "states" in text
    assert "test_budget.py" in text  # the lines of the largest values
    assert isinstance(refused.value, MemoryError)
    assert all(np.array_equal(a, b.numpy()) for a, b in zip(before, net.parameters(), strict=True))


NONSENSE = ["", "much", "12 XB", "0", "-1 GB", 0, -5, float("nan"), True, [], "1e400 GB"]


@pytest.mark.parametrize("memory", NONSENSE)
def test_nonsense_budgets_are_refused(memory: Any) -> None:
    with pytest.raises((AttributeValueError, DTypeError), match="memory"):
        st.compile(lambda x: x, memory=memory)
    with pytest.raises((AttributeValueError, DTypeError), match="memory"):
        st.fits(lambda x: x, st.ones(2), memory=memory)


def test_sizes_that_change_are_captured_one_by_one_within_the_budget() -> None:
    _, step, (x, y) = training("deep")
    step(x, y)
    budget = int(1.1 * least_of("deep"))
    compiled = st.compile(step, memory=budget)
    for rows in (192, 150, 64):
        compiled(x[:rows], y[:rows])
        assert compiled.plan.planned_peak_bytes <= budget
    with pytest.raises(AttributeValueError, match="sizes that do not change"):
        st.compile(step, memory="1 GB", dynamic=True)


def test_a_budget_inside_of_another_capture_is_refused() -> None:
    inner = st.compile(st.tanh, memory="1 GB")
    with pytest.raises(st.StratalError, match="has a memory budget"):
        st.compile(lambda x: inner(x) * 2)(st.ones(3))


def test_a_setting_gives_a_budget_to_every_program() -> None:
    _, step, batch = training("deep")
    compiled = st.compile(step)
    compiled(*batch)
    budget = int(compiled.plan.planned_peak_bytes * 0.95)
    with settings.using(memory=budget):
        compiled(*batch)
        assert compiled.plan.planned_peak_bytes <= budget
    compiled(*batch)
    assert compiled.plan.planned_peak_bytes > budget


def test_whether_a_batch_may_be_split_is_true_or_false() -> None:
    _, step, batch = training("deep")
    calls: list[Callable[[], Any]] = [
        lambda: st.compile(step, memory="1 MB", micro_batches=2),  # type: ignore[arg-type]
        lambda: st.fits(step, *batch, memory="1 MB", micro_batches="yes"),  # type: ignore[arg-type]
        lambda: st.memory_front(step, *batch, micro_batches=None),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(AttributeValueError, match="micro_batches is True or False"):
            call()
    with pytest.raises(AttributeValueError, match="2 to 1000"):
        st.memory_front(step, *batch, points=10**6)
