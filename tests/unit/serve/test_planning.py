"""Planning for an SLA: batch sizes, regimes, packing, admission and deadlines, on paper and simulated."""

from __future__ import annotations

import json
import math
import random
import re
from pathlib import Path

import pytest

from stratal.base.errors import AttributeValueError
from stratal.cli import main
from stratal.serve.planning import (
    LatencyTable,
    Session,
    Stage,
    knee,
    largest_batch,
    regime,
    split_batch,
    split_budget,
    split_table,
    whole_table,
)
from stratal.serve.planning_latency import Latencies, Pace
from stratal.serve.planning_packing import admit, describe, merge, pack, pack_onto
from stratal.serve.planning_queue import DeadlineQueue
from stratal.serve.planning_schedule import Planned, appended, batches_of
from stratal.serve.planning_simulator import Policy, Traffic, highest_rate, simulate

SIZES = (1, 2, 4, 8, 16, 32)
# Measured, in seconds, with more rows of work per request so that models are of comparable size.
RESNET = LatencyTable(SIZES, (0.00535, 0.00789, 0.01147, 0.01752, 0.0322, 0.06303))
BERT = LatencyTable(SIZES, (0.0011, 0.00198, 0.00373, 0.00736, 0.01482, 0.02942))
MLP = LatencyTable(SIZES, (0.00111, 0.001, 0.00102, 0.00154, 0.00235, 0.00396))
DIGITS = LatencyTable(SIZES, (0.00101, 0.00102, 0.00102, 0.00104, 0.0011, 0.00122))


# -- batch sizes and regimes ---------------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.row("H9")
def test_the_largest_batch_takes_at_most_half_the_sla() -> None:
    rng = random.Random(1)
    for _ in range(200):
        table = LatencyTable(SIZES, tuple(sorted(rng.uniform(0.001, 0.1) for _ in SIZES)))
        sla = rng.uniform(0.001, 0.3)
        best = largest_batch(table, sla)
        assert [s for s in SIZES if 2 * table.at(s) <= sla][-1:] == ([best] if best else [])


@pytest.mark.row("H9")
def test_high_rates_with_loose_slas_run_large_batches_in_time() -> None:
    session = Session("m", DIGITS, 40_000, 0.1)
    assert (regime(session)[:2], largest_batch(DIGITS, 0.1)) == (("high", "loose"), 32)
    workers = len(pack([session]).workers)
    report = simulate([Traffic(session)], workers, 0.5)
    assert report.share_in_time >= 0.99
    assert report.rows_per_batch >= 16
    single = Session("m", LatencyTable.of({1: DIGITS.at(1)}), 40_000, 0.1)
    assert simulate([Traffic(single)], workers, 0.5).share_in_time < 0.25


@pytest.mark.quick
def test_the_knee_is_the_smallest_size_near_the_best_rate() -> None:
    assert knee(RESNET) == 16  # 457 rows/s at 8, 497 at 16, 508 at 32
    assert knee(BERT) == 2  # batches gain it little
    assert knee(DIGITS) == 32
    assert knee(DIGITS, sla=0.0021) == 8
    assert knee(RESNET, sla=0.001) == 1  # no size fits; one is what is left


@pytest.mark.parametrize(
    ("session", "expected"),
    [
        (Session("a", DIGITS, 50_000, 0.1), ("high", "loose")),
        (Session("b", RESNET, 500, 0.02), ("high", "tight")),
        (Session("c", RESNET, 10, 0.5), ("low", "loose")),
        (Session("d", RESNET, 10, 0.012), ("low", "tight")),
    ],
)
def test_each_of_the_four_regimes_is_recognised_and_explained(
    session: Session, expected: tuple[str, str]
) -> None:
    found = regime(session)
    assert (found.rate, found.sla) == expected
    assert "2 latency" in found.why


def test_latencies_follow_the_machine_and_one_stall_changes_neither_median_nor_quantile() -> None:
    known = Latencies(DIGITS.scaled(1.2), DIGITS)
    assert (known.high.at(8), known.typical.at(8)) == (1.2 * DIGITS.at(8), DIGITS.at(8))
    rng = random.Random(2)
    for _ in range(100):
        known.observe(7, rng.uniform(0.001, 0.002))  # filled up to 8
    before = known.high.at(8), known.typical.at(8)
    assert 0.0012 < before[1] < 0.0018 < before[0] <= 0.002
    known.observe(8, 5.0)
    assert known.typical.at(8) == pytest.approx(before[1], rel=0.1)
    assert known.high.at(8) <= 0.002
    assert known.typical.at(4) == DIGITS.at(4)
    known.observe(33, 9.0)  # was cut into several
    assert known.high.at(32) == 1.2 * DIGITS.at(32)
    for _ in range(20):
        known.observe(8, 0.004)
    assert known.typical.at(8) == known.high.at(8) == 0.004
    for _ in range(40):
        known.observe(8, 0.001)
    assert known.high.at(8) == 0.001


def test_a_size_with_few_samples_is_no_slower_than_its_neighbours_allow() -> None:
    spoiled = RESNET.with_entry(4, 0.3).with_entry(1, 0.1)
    known = Latencies(spoiled)
    known.observe(2, RESNET.at(2))
    assert known.typical.at(1) == known.typical.at(2)  # it could be filled up
    assert known.high.at(4) <= RESNET.at(8)
    for _ in range(40):
        known.observe(4, 0.3)  # what was seen often is believed
    assert known.high.at(4) == 0.3
    steep = Latencies(LatencyTable((1, 2), (0.001, 0.1)))
    steep.observe(1, 0.001)
    assert steep.typical.at(2) == pytest.approx(0.003)


def test_the_knee_follows_what_is_learned_of_the_latency() -> None:
    queue = queue_of(("m", DIGITS.with_entry(1, 1e-5), 1.0))  # a batch of one seemed to be free
    for k in range(8):
        queue.push("m", str(k), 1, 1.0)
    for _ in range(40):
        queue.observe("m", 1, DIGITS.at(1))
    batch = queue.take(0.0)
    assert batch is not None
    assert batch.rows == 8


def test_the_pace_tells_a_slower_machine_after_a_batch_or_two_and_is_never_below_one() -> None:
    pace = Pace()
    for _ in range(50):
        pace.observe(0.008, 0.010)
    assert pace.factor == 1.0
    for _ in range(3):
        pace.observe(0.030, 0.015)
    assert pace.factor > 1.5
    for _ in range(1000):
        pace.observe(1e-6, 1e-7)  # next to no time of work says next to nothing, however slow it was
    assert pace.factor < 2.0
    pace.observe(30.0, 0.010)
    assert pace.factor <= 3.0
    for _ in range(30):
        pace.observe(0.010, 0.010)
    assert pace.factor == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("sizes", [(), (2, 1), (1, 1), (0, 1)])
def test_tables_that_make_no_sense_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(AttributeValueError, match="latency table"):
        LatencyTable(sizes, (0.1,) * len(sizes))
    with pytest.raises(AttributeValueError, match="latency table"):
        LatencyTable((1, 2), (0.1, math.nan))


# -- stages and pipelines ------------------------------------------------------------------------------------


def test_split_batches_are_as_good_as_trying_every_partition() -> None:
    table = LatencyTable((1, 2, 3, 5), (1.0, 1.5, 2.9, 4.2))

    def best(rows: int) -> float:
        return (
            0.0
            if rows <= 0
            else min(t + best(rows - s) for s, t in zip(table.sizes, table.seconds, strict=True))
        )

    for rows in range(1, 12):
        seconds, sizes = split_batch(table, rows)
        assert seconds == pytest.approx(best(rows))
        assert sum(sizes) >= rows
        assert seconds == pytest.approx(sum(map(table.at, sizes)))


@pytest.mark.row("H10")
def test_split_batching_beats_whole_batches_in_simulation_where_stages_differ() -> None:
    """A stage that outgrows the cache beside one that batches well: high rate, tight SLA."""
    convolution = LatencyTable(SIZES, (0.0005, 0.0008, 0.0014, 0.0040, 0.0090, 0.0190))
    dense = LatencyTable(SIZES, (0.0020, 0.0020, 0.0021, 0.0022, 0.0024, 0.0028))
    rates = {}
    for name, table in (
        ("whole", whole_table([convolution, dense])),
        ("split", split_table([convolution, dense])),
    ):
        traffic = [Traffic(Session(name, table, 500, 0.015))]
        rates[name] = 500 * highest_rate(traffic, 1, 4)
    assert rates["split"] > 1.15 * rates["whole"]


def test_a_latency_budget_is_split_so_that_the_fewest_workers_are_needed() -> None:
    stages = [Stage(RESNET), Stage(DIGITS, rows_per_query=10)]
    found = split_budget(stages, 100, 0.1)
    assert sum(found.seconds) <= 0.1 + 1e-9
    even = split_budget([stages[0]], 100, 0.05).workers + split_budget([stages[1]], 100, 0.05).workers
    assert found.workers <= even + 1e-9
    assert found.workers == pytest.approx(100 / RESNET.rate(16) + 1000 / DIGITS.rate(32))
    with pytest.raises(AttributeValueError, match="no split"):
        split_budget(stages, 100, 0.012)


# -- packing -------------------------------------------------------------------------------------------------


def zoo(rate: float, slas: tuple[float, ...] = (0.05, 0.1, 0.2)) -> list[Session]:
    tables = [RESNET, BERT, MLP, DIGITS, MLP.scaled(2), DIGITS.scaled(2)]
    weights = [1 / t.seconds[0] for t in tables]
    return [
        Session(f"m{k}", t, rate * w / sum(weights), slas[k % len(slas)])
        for k, (t, w) in enumerate(zip(tables, weights, strict=True))
    ]


@pytest.mark.parametrize("seed", range(20))
def test_every_worker_of_a_packing_keeps_cycle_and_slas_and_serves_the_rate(seed: int) -> None:
    rng = random.Random(seed)
    sessions = [
        Session(
            f"m{k}", rng.choice([RESNET, BERT, MLP, DIGITS]), rng.uniform(1, 2000), rng.uniform(0.02, 0.3)
        )
        for k in range(8)
    ]
    packing = pack(sessions, utilization=1.0)
    assert not packing.refused
    for worker in packing.workers:
        busy = sum(s.session.table.at(s.batch) for s in worker.shares)
        assert busy <= worker.duty_cycle * (1 + 1e-9)
        for share in worker.shares:
            assert share.session.table.at(share.batch) + worker.duty_cycle <= share.session.sla * (1 + 1e-9)
            assert share.batch >= share.rate * worker.duty_cycle - 1e-6
    for session in sessions:
        served = sum(s.rate for w in packing.workers for s in w.shares if s.session == session)
        assert served == pytest.approx(session.rate)


@pytest.mark.row("H11", "N9")
def test_low_rates_with_loose_slas_share_workers_and_miss_no_sla() -> None:
    sessions = zoo(300, (0.1, 0.15, 0.2))
    assert {regime(s)[:2] for s in sessions} == {("low", "loose")}
    workers = len(pack(sessions).workers)
    assert workers < len(sessions)
    report = simulate([Traffic(s) for s in sessions], workers, 20)
    assert report.offered > 5000
    assert report.in_time == report.offered


def test_two_sessions_that_do_not_fit_one_cycle_are_not_merged() -> None:
    first = pack([Session("a", RESNET, 260, 0.05)], utilization=1.0).workers[0]
    second = pack([Session("b", RESNET, 260, 0.05)], utilization=1.0).workers[0]
    assert merge(first, second) is None


@pytest.mark.row("H12", "N9")
def test_admission_refuses_sets_that_cannot_keep_their_slas_with_the_reason() -> None:
    impossible = Session("impossible", RESNET, 1, 0.005)
    greedy = Session("greedy", RESNET, 2000, 0.05)
    packing = admit([*zoo(300), impossible, greedy], workers=3)
    assert [r.session.name for r in packing.refused] == ["impossible", "greedy"]
    assert "takes 5.35 ms alone, its SLA is 5 ms" in packing.refused[0].reason
    assert "workers are needed and there are 3" in packing.refused[1].reason
    assert len(packing.workers) <= 3
    assert {s.session.name for w in packing.workers for s in w.shares} == {s.name for s in zoo(300)}


@pytest.mark.row("H11", "H12", "N9")
def test_sessions_that_no_cycle_holds_share_a_worker_at_a_lower_rate_or_are_refused_with_the_reason() -> None:
    def crowd(rate: float) -> list[Session]:
        tables = [RESNET, RESNET.scaled(1.2), *[BERT.scaled(1.5)] * 4, *[MLP.scaled(3)] * 4]
        return [Session(f"m{k}", table, rate / len(tables), 0.026) for k, table in enumerate(tables)]

    low = crowd(20)
    assert len(pack(low).workers) > 1  # a batch of each takes longer than half the SLA
    packing = pack_onto(low, 1)
    assert (len(packing.workers), packing.refused) == (1, ())
    assert "rows as they come" in describe(packing.workers[0])
    assert len(packing.workers[0].shares) == len(low)
    assert simulate([Traffic(s) for s in low], 1, 200).share_in_time >= 0.99
    assert not admit(low, 1).refused
    assert len(pack_onto(crowd(200), 1).workers) > 1
    packing = admit(crowd(200), 1)
    assert packing.refused
    assert "workers are needed and there are 1" in packing.refused[0].reason


@pytest.mark.parametrize("sla", [0.006, 0.0075, 0.009])
def test_a_tight_sla_gets_workers_of_its_own_that_keep_it(sla: float) -> None:
    session = Session("tight", RESNET, 10, sla)
    assert regime(session)[:2] == ("low", "tight")
    workers = pack([session]).workers
    assert all(len(w.shares) == 1 for w in workers)
    # Poisson rows one by one on workers that share a queue: no worse than each with a queue of its own.
    report = simulate([Traffic(session)], len(workers), 500, jitter=0.0, policy=Policy(belief=1.0))
    assert report.share_in_time >= 0.99


@pytest.mark.row("H13", "N9")
@pytest.mark.parametrize(("rate", "burst"), [(500, 1), (2000, 1), (1500, 3)])
def test_at_the_declared_rate_99_percent_are_in_time_on_the_planned_workers(
    rate: float, burst: float
) -> None:
    sessions = zoo(rate)
    workers = len(pack(sessions).workers)
    report = simulate([Traffic(s, burst) for s in sessions], workers, 6000 / rate)
    assert report.share_in_time >= 0.99


# -- deadlines -----------------------------------------------------------------------------------------------


def queue_of(*models: tuple[str, LatencyTable, float], workers: int = 1) -> DeadlineQueue[str]:
    queue: DeadlineQueue[str] = DeadlineQueue(workers)
    for model in models:
        queue.add_model(*model)
    return queue


def test_the_batch_that_must_start_first_is_taken_and_first_deadlines_first() -> None:
    queue = queue_of(("slow", RESNET, 1.0), ("quick", DIGITS, 1.0))
    queue.push("quick", "q", 1, 0.100)
    queue.push("slow", "late", 1, 0.300)
    queue.push("slow", "soon", 1, 0.1005)  # later than q's, but it runs longer
    first = queue.take(0.0)
    assert first is not None
    assert (first.model, first.items, first.rows) == ("slow", ["soon", "late"], 2)
    assert first.seconds == RESNET.at(2)
    second = queue.take(0.0)
    assert second is not None
    assert second.items == ["q"]
    assert queue.take(0.0) is None
    assert len(queue) == 0


def test_a_batch_is_cut_to_what_lets_its_first_row_be_in_time() -> None:
    queue = queue_of(("slow", RESNET, 1.0))
    for k in range(8):
        queue.push("slow", str(k), 1, 0.012 + k)
    batch = queue.take(0.0)
    assert batch is not None
    assert batch.rows == 4  # 8 take 17.5 ms, 4 take 11.5
    assert queue.waiting("slow") == 4


def test_a_batch_is_not_filled_up_where_that_costs_rate() -> None:
    table = LatencyTable((1, 4, 8), (1.0, 1.5, 3.0))
    queue = queue_of(("m", table, 1000.0))
    for k in range(5):
        queue.push("m", str(k), 1, 1000.0)
    batch = queue.take(0.0)
    assert batch is not None
    assert batch.rows == 4  # 5 of 8 rows in 3 s are fewer a second than 4 in 1.5


def test_what_cannot_be_in_time_is_refused_at_arrival_or_dropped_early() -> None:
    queue = queue_of(("slow", RESNET, 0.02))
    assert "are left until its deadline" in queue.refusal("slow", 1, 0.004, 0.0, [0.0])
    assert queue.refusal("slow", 1, 0.02, 0.0, [0.0]) == ""
    assert "would wait and run for 23.3 ms" in queue.refusal("slow", 1, 0.02, 0.0, [0.018])
    assert queue.refusal("slow", 1, 0.02, 0.0, [0.018, 0.0]) == ""  # another worker is free
    queue.push("slow", "a", 1, 0.02)
    assert queue.drop_late(0.0146) == []
    assert queue.drop_late(0.0147) == ["a"]
    assert len(queue) == 0


def test_a_request_is_refused_that_would_make_others_late_and_taken_where_it_has_company() -> None:
    queue = queue_of(("slow", RESNET, 1.0), ("quick", MLP, 1.0))
    for k in range(3):
        queue.push("slow", str(k), 1, 0.013)  # batches of 4 take 11.5 ms, which is what 3 take
    assert queue.refusal("slow", 1, 0.013, 0.0, [0.0]) == ""
    assert queue.refusal("quick", 1, 0.0128, 0.0, [0.0]) == ""
    queue.push("quick", "q", 1, 0.0128)  # 1.1 ms: all must have started by 1.5
    assert "it would wait and run" in queue.refusal("slow", 2, 0.013, 0.0, [0.0])  # two batches, then
    assert queue.refusal("quick", 1, 0.0128, 0.0, [0.0]) == ""  # as quick as one
    assert "would be late that were admitted" in queue.refusal("quick", 4, 0.0022, 0.0005, [0.0])
    assert queue.refusal("quick", 4, 0.0022, 0.0005, [0.0, 0.0]) == ""  # another worker is free


def test_the_batches_that_would_run_are_the_same_one_by_one_and_at_once() -> None:
    rng = random.Random(5)
    for _ in range(50):
        cap, waiting = rng.choice([1, 4, 16]), sorted((rng.random(), rng.randint(1, 6)) for _ in range(20))
        grown: list[Planned] = []
        for deadline, rows in waiting:
            grown = appended(grown, deadline, rows, cap, RESNET)
        assert grown == batches_of(waiting, cap, RESNET)
        assert sum(batch.rows for batch in grown) == sum(rows for _, rows in waiting)


def test_where_the_machine_has_become_slow_less_is_admitted() -> None:
    queue = queue_of(("slow", RESNET, 1.0))
    queue.push("slow", "a", 1, 0.02)
    assert queue.refusal("slow", 1, 0.018, 0.0, [0.005]) == ""
    for _ in range(3):
        queue.pace.observe(2 * RESNET.at(8), RESNET.at(8))
    assert queue.refusal("slow", 1, 0.018, 0.0, [0.005])


def test_a_stall_of_the_machine_does_not_lock_a_model_out() -> None:
    queue = queue_of(("slow", RESNET, 0.02), ("other", DIGITS, 1.0))
    for _ in range(10):
        queue.observe("slow", 1, 30.0)
    assert queue.refusal("slow", 1, 0.02, 0.0, [0.0])
    queue.push("other", "busy", 1, 1e9)  # others are served meanwhile
    seconds = 0
    while queue.refusal("slow", 1, 0.02 + seconds, seconds, [seconds]):
        queue.ease("slow", RESNET, seconds)  # as the server does with what it refuses
        seconds += 1
    assert seconds < 60
    for k in range(100):
        queue.ease("slow", RESNET, seconds + k)
    assert queue.table("slow").at(1) == pytest.approx(RESNET.at(1))
    assert queue.table("slow").at(8) == RESNET.at(8)


def test_a_request_of_more_rows_than_any_batch_goes_alone() -> None:
    queue = queue_of(("m", DIGITS, 0.1))
    queue.push("m", "big", 100, 1.0)
    queue.push("m", "small", 1, 2.0)
    batch = queue.take(0.0)
    assert batch is not None
    assert (batch.items, batch.rows) == (["big"], 100)
    assert batch.seconds == pytest.approx(3 * DIGITS.at(32) + DIGITS.at(4))


@pytest.mark.sampled(4)
def test_under_twice_the_load_admitted_rows_are_in_time_and_goodput_stays() -> None:
    traffic = [Traffic(s) for s in zoo(400)]
    rate = 400 * highest_rate(traffic, 1, 4)
    overload = simulate([Traffic(s) for s in zoo(2 * rate)], 1, 4)
    assert overload.admitted_in_time >= 0.99
    assert overload.in_time / 4 >= 0.9 * rate
    assert overload.refused > 0


@pytest.mark.row("N9")
@pytest.mark.sampled(4)
@pytest.mark.parametrize("k", [5, 10])
def test_with_slas_of_their_own_the_plan_beats_a_greedy_shared_queue(k: int) -> None:
    sessions = [Session(s.name, s.table, s.rate, k * s.table.seconds[0]) for s in zoo(400)]
    traffic = [Traffic(s) for s in sessions]
    plan = highest_rate(traffic, 2, 2)
    greedy = max(highest_rate(traffic, 2, 2, policy=Policy(greedy=n, belief=1.0)) for n in (8, 32))
    assert plan >= 1.3 * greedy


# -- the command ---------------------------------------------------------------------------------------------

LOAD = """
[[model]]
name = "digits"
latency_ms = { 1 = 1.0, 8 = 1.1, 32 = 1.3 }
rate = 300
sla_ms = 50
[[model]]
name = "resnet"
latency_ms = { 1 = 5.3, 8 = 17.5, 32 = 63.0 }
rate = 100
burst = 2
"""


def test_plan_serving_says_how_many_workers_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "load.toml").write_text(LOAD)
    arguments = ["plan-serving", str(tmp_path / "load.toml"), "--json", str(tmp_path / "p.json")]
    assert main(arguments) == 1  # the second has no SLA
    assert "resnet needs sla_ms" in capsys.readouterr().err
    assert main([*arguments, "--sla", "100"]) == 0
    out = capsys.readouterr().out
    report = json.loads((tmp_path / "p.json").read_text())
    assert re.search(rf"{report['workers']} workers? for 400 rows/s", out)
    assert report["simulated"]["in_time"] >= 0.99
    assert [m["rate"] for m in report["models"]] == [300, 100]
    one = report["workers"]
    assert main([*arguments, "--sla", "100", "--rate", "4000"]) == 0
    more = json.loads((tmp_path / "p.json").read_text())
    assert more["workers"] > one
    assert [m["rate"] for m in more["models"]] == [3000, 1000]
    capsys.readouterr()
    assert main([*arguments, "--sla", "100", "--rate", "4000", "--workers", "1"]) == 1
    assert "refused: resnet" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "list of"),
        ("[[model]]\nname = 'a'", "one of both"),
        ("[[model]]\nname = 'a'\nlatency_ms = {1 = 1}\nrat = 3", "unknown key"),
        ("[[model]]\nname = 'a'\nlatency_ms = {1 = -1}\nrate = 3\nsla_ms = 3", "above 0"),
        ("[[model", "cannot read"),
    ],
)
def test_odd_files_are_refused_with_what_is_odd(
    tmp_path: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "load.toml").write_text(text)
    assert main(["plan-serving", str(tmp_path / "load.toml")]) == 1
    assert said in capsys.readouterr().err
