"""Task graphs: what schedules cost, exhaustive search against brute force, plans within budgets."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratal.base.errors import VerifyError
from stratal.memory.exact import quickest
from stratal.memory.ordering import late_as_possible, predecessors, sinks_first
from stratal.memory.rematerialize import MemoryPlanner
from stratal.memory.tasks import Schedule, Task, TaskGraph, evaluate, peak_bytes, profile


def chain(layers: int, nbytes: int = 64) -> TaskGraph:
    """A forward chain whose values the backward chain reads in reverse; backward takes twice as long."""
    tasks = [Task(1.0, (k - 1,) if k else (-1,), (k,)) for k in range(layers)]
    grad = layers
    tasks.append(Task(2.0, (layers - 1,), (grad,)))
    for k in range(layers - 2, -1, -1):
        tasks.append(Task(2.0, (grad, k), (grad + 1,), ((grad, grad + 1),)))
        grad += 1
    return TaskGraph(tasks, dict.fromkeys(range(grad + 1), nbytes), frozenset([grad]))


def random_graph(rng: random.Random, most: int) -> TaskGraph:
    """Tasks that read some values before them; states that are replaced, results, packs, several results."""
    count = rng.randint(2, most)
    tasks: list[Task] = []
    nbytes: dict[int, int] = {}
    value = 0
    for _ in range(count):
        reads = tuple(rng.sample(range(value), min(value, rng.choice((0, 1, 1, 2, 2, 3)))))
        if rng.random() < 0.3:
            reads += (-1 - rng.randrange(2),)
        writes = tuple(range(value, value + rng.choice((1, 1, 1, 2))))
        value += len(writes)
        nbytes |= {w: rng.choice((0, 1, 2, 3, 5)) if rng.random() < 0.9 else 0 for w in writes}
        pairs = tuple(
            (r, w) for r in reads for w in writes if r >= 0 and nbytes[r] == nbytes[w] and rng.random() < 0.4
        )
        made = [v for v in reads if v >= 0]
        updates = tuple(rng.sample(made, 1)) if made and rng.random() < 0.15 else ()
        seconds, workspace = rng.choice((1.0, 2.0, 3.0)), rng.choice((0, 0, 0, 1))
        repeatable = rng.random() < 0.85 and not updates
        tasks.append(Task(seconds, reads, writes, pairs, (), workspace, repeatable, updates))
    changed = {v for task in tasks for v in task.updates}
    for k, task in enumerate(tasks):  # what is changed where it stands is made once, and shares no memory
        pairs = tuple(p for p in task.in_place if changed.isdisjoint(p))
        once = task.repeatable and changed.isdisjoint(task.writes)
        tasks[k] = task._replace(in_place=pairs, repeatable=once)
    if rng.random() < 0.4:  # the last one replaces a state
        last = tasks[-1]
        tasks[-1] = last._replace(overwrites=(-1,), repeatable=False)
    outputs = frozenset(v for v in range(value) if nbytes[v] and rng.random() < 0.2)
    return TaskGraph(tasks, nbytes, outputs)


def computed(graph: TaskGraph, schedule: Schedule) -> dict[int, set[object]]:
    """Return what each task computes in its runs: a number for the tasks and operands that led there."""
    contents: dict[int, object] = {}
    found: dict[int, set[object]] = {}
    for number in schedule:
        task = graph.tasks[number]
        made = hash((number, *(contents.get(r, r) for r in task.reads)))
        found.setdefault(number, set()).add(made)
        contents |= {v: hash((made, v)) for v in (*task.writes, *task.updates, *task.overwrites)}
    return found


def brute_force(graph: TaskGraph, budget: int, longest: int) -> float:
    """Return the fewest seconds of all sequences of at most so many tasks: each is evaluated as a whole."""
    before = predecessors(graph)
    best = math.inf

    def extended(done: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        for k, task in enumerate(graph.tasks):
            if k in done and not task.repeatable:
                continue
            if k not in done and not before[k].issubset(done):
                continue
            if graph.not_after[k].isdisjoint(done):
                yield (*done, k)

    def search(done: tuple[int, ...]) -> None:
        nonlocal best
        seconds = sum(graph.tasks[k].seconds for k in done)
        if seconds + sum(t.seconds for k, t in enumerate(graph.tasks) if k not in done) >= best:
            return
        if len(set(done)) == len(graph.tasks) and peak_bytes(graph, done) <= budget:
            best = seconds
            return
        if len(done) < longest:
            for more in extended(done):
                search(more)

    search(())
    return best


# -- what schedules cost -------------------------------------------------------------------------------------
def test_a_chain_needs_all_of_its_values_at_the_turn() -> None:
    graph = chain(8)
    found = evaluate(graph, graph.order)
    assert found.peak_bytes == 9 * 64  # eight values and the first gradient
    assert found.seconds == 8 + 16 == found.critical_seconds


def test_what_a_task_reads_last_may_be_overwritten() -> None:
    tasks = [Task(1.0, (-1,), (0,)), Task(1.0, (0,), (1,), ((0, 1),))]
    assert peak_bytes(TaskGraph(tasks, {0: 8, 1: 8}, frozenset([1])), (0, 1)) == 8
    assert peak_bytes(TaskGraph(tasks, {0: 8, 1: 4}, frozenset([1])), (0, 1)) == 12  # of other sizes
    assert peak_bytes(TaskGraph(tasks, {0: 8, 1: 8}, frozenset([0, 1])), (0, 1)) == 16  # a result


def test_a_recomputed_value_is_not_there_in_between() -> None:
    tasks = [Task(1.0, (-1,), (0,)), Task(1.0, (0,), (1,)), Task(1.0, (1,), (2,)), Task(1.0, (0, 2), (3,))]
    graph = TaskGraph(tasks, {0: 100, 1: 10, 2: 10, 3: 1}, frozenset([3]))
    assert profile(graph, (0, 1, 2, 3)).tolist() == [100, 110, 120, 111]
    assert profile(graph, (0, 1, 2, 0, 3)).tolist() == [100, 110, 20, 110, 111]


def test_a_schedule_that_reads_what_is_not_there_is_refused() -> None:
    with pytest.raises(VerifyError, match="reads what is not there"):
        profile(chain(3), (1, 0, 2))
    replaced = TaskGraph(
        [Task(1.0, (), (0,), overwrites=(-1,)), Task(1.0, (-1,), (1,))], {0: 1, 1: 1}, frozenset()
    )
    with pytest.raises(VerifyError, match="reads what is not there"):
        profile(replaced, (0, 1))


# -- exhaustive search ---------------------------------------------------------------------------------------
@pytest.mark.row("E8")
@pytest.mark.parametrize(
    "seed", [*range(25), *(pytest.param(s, marks=pytest.mark.slow) for s in range(25, 500))]
)
def test_exhaustive_search_equals_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(rng, 5 if seed < 25 else 6)
    whole = evaluate(graph, graph.order).peak_bytes
    for budget in sorted({whole, whole - 1, *(rng.randint(0, whole) for _ in range(3))}):
        found = quickest(graph, budget)
        longest = len(graph.tasks) + 2
        wanted = brute_force(graph, budget, longest)
        if found is None:
            assert wanted == math.inf
            continue
        cost = evaluate(graph, found)
        assert computed(graph, found) == computed(graph, graph.order)
        assert cost.peak_bytes <= budget
        assert cost.seconds <= wanted  # it may run tasks more often than brute force tries
        assert len(found) > longest or cost.seconds == wanted


# -- plans within budgets ------------------------------------------------------------------------------------
@given(st.integers(0, 10**6), st.floats(0.3, 1.0))
@settings(max_examples=30, deadline=None)
def test_plans_keep_their_budget_and_run_every_task(seed: int, share: float) -> None:
    graph = random_graph(random.Random(seed), 24)
    whole = evaluate(graph, graph.order)
    budget = int(whole.peak_bytes * share)
    plan = MemoryPlanner(graph).fitted(budget)
    if plan is None:
        assert MemoryPlanner(graph).smallest[0].peak_bytes > budget
        return
    cost = evaluate(graph, plan.schedule)
    assert (cost.peak_bytes, cost.seconds) == (plan.peak_bytes, pytest.approx(plan.seconds))
    assert cost.peak_bytes <= budget
    assert computed(graph, plan.schedule) == computed(graph, graph.order)
    repeated = {k for k in plan.schedule if plan.schedule.count(k) > 1}
    assert all(graph.tasks[k].repeatable for k in repeated)


@given(st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_orders_run_every_task_once_and_after_what_it_needs(seed: int) -> None:
    graph = random_graph(random.Random(seed), 24)
    orders: tuple[Schedule, ...] = (sinks_first(graph), late_as_possible(graph))
    for order in orders:
        assert sorted(order) == list(graph.order)
        assert computed(graph, order) == computed(graph, graph.order)
        position = {k: p for p, k in enumerate(order)}
        assert all(position[b] < position[k] for k, before in enumerate(predecessors(graph)) for b in before)


def test_factors_of_derivatives_made_beside_the_forward_pass_are_made_again_instead() -> None:
    """A chain of sines whose cosines stand beside it: in that order each cosine would rest until the end."""
    count = 64
    sine, cosine, grad = (lambda k: 2 * k), (lambda k: 2 * k + 1), (lambda k: 2 * count + k)
    tasks = []
    for k in range(count):
        read = sine(k - 1) if k else -1
        tasks += [Task(1.0, (read,), (sine(k),)), Task(1.0, (read,), (cosine(k),))]
    for k in range(count):
        before = grad(k - 1) if k else sine(count - 1)
        tasks.append(Task(1.0, (before, cosine(count - 1 - k)), (grad(k),)))
    graph = TaskGraph(tasks, dict.fromkeys(range(3 * count), 64), frozenset([grad(count - 1)]))
    assert MemoryPlanner(graph).smallest[0].peak_bytes <= 64 * 2.5 * math.sqrt(count)
    plan = MemoryPlanner(graph).fitted(64 * count // 2)
    assert plan is not None
    assert plan.seconds <= (3 + 1.5) * count


@pytest.mark.row("E7")
@pytest.mark.parametrize(
    "layers",
    [16, 64, 256, pytest.param(1024, marks=pytest.mark.slow), pytest.param(4096, marks=pytest.mark.slow)],
)
def test_chains_need_the_square_root_of_their_length_for_one_more_forward_pass(layers: int) -> None:
    """E7: O(sqrt(N)) memory for one extra forward pass (Chen et al., 2016)."""
    graph = chain(layers)
    whole = evaluate(graph, graph.order)
    plan = MemoryPlanner(graph).smallest[0]
    assert plan.peak_bytes <= 64 * 2.25 * math.sqrt(layers)
    extra = (plan.seconds - whole.seconds) / layers  # in forward passes
    assert 0.5 <= extra <= 1.0
    more = MemoryPlanner(graph).fitted(2 * plan.peak_bytes)
    assert more is not None
    assert more.seconds < plan.seconds
