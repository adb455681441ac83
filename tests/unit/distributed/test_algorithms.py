"""Algorithms of collectives, all ranks in one process: sums, their order, counters equal to formulas."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from stratal.base.errors import AttributeValueError
from stratal.distributed import algorithms as al
from stratal.distributed.links import Link, choose, estimate_ns, traffic
from stratal.distributed.program_collectives import Spares

Array = np.ndarray[Any, Any]


class Network:
    """Carries the rounds of all ranks, and counts messages and bytes of each link."""

    def __init__(self) -> None:
        self.messages: Counter[tuple[int, int]] = Counter()
        self.bytes: Counter[tuple[int, int]] = Counter()
        self.rounds: Counter[int] = Counter()

    def run(self, ranks: Sequence[al.Rounds]) -> None:
        """Run generators until all have ended; each round waits for its own messages alone."""
        mail: dict[tuple[int, int], list[Array]] = defaultdict(list)
        waiting: dict[int, al.Round] = {}
        alive = set(range(len(ranks)))
        while alive:
            moved = False
            for rank in sorted(alive):
                if rank not in waiting:
                    found = next(ranks[rank], None)
                    moved = True
                    if found is None:
                        alive.discard(rank)
                        continue
                    waiting[rank] = found
                    self.rounds[rank] += bool(found.sends or found.receives)
                    for peer, data in found.sends:
                        mail[rank, peer].append(data.copy())
                        self.messages[rank, peer] += 1
                        self.bytes[rank, peer] += data.nbytes
                if all(mail[peer, rank] for peer, _ in waiting[rank].receives):
                    for peer, into in waiting.pop(rank).receives:
                        np.copyto(into, mail[peer, rank].pop(0))
                    moved = True
            assert moved, "deadlock"
        assert not any(mail.values()), "a message nobody received"


def inputs(size: int, count: int, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(count).astype(np.float32) for _ in range(size)]


def names(size: int) -> list[str]:
    return [n for n in al.ALL_REDUCE if n not in al.POWERS_OF_TWO_ONLY or not size & (size - 1)]


@pytest.mark.row("F12")
@pytest.mark.parametrize("size", range(1, 9))
def test_every_topology_gives_the_sum_and_the_same_bits_on_every_rank(size: int) -> None:
    for name in names(size):
        for count in (0, 1, 5, size, 40, 1001):
            given = inputs(size, count)
            buffers = [x.copy() for x in given]
            Network().run([al.ALL_REDUCE[name](b, r, size, np.add) for r, b in enumerate(buffers)])
            want = np.sum([x.astype(np.float64) for x in given], axis=0)
            np.testing.assert_allclose(buffers[0], want, rtol=1e-5, atol=1e-5, err_msg=name)
            for b in buffers[1:]:
                np.testing.assert_array_equal(b, buffers[0], err_msg=name)


@pytest.mark.row("F7")
@pytest.mark.parametrize("name", list(al.ALL_REDUCE))
def test_the_order_of_sums_is_fixed_so_runs_repeat_to_the_bit(name: str) -> None:
    first: Array | None = None
    for _ in range(3):
        given = inputs(4, 97, seed=3)
        Network().run([al.ALL_REDUCE[name](b, r, 4, np.add) for r, b in enumerate(given)])
        first = given[0] if first is None else first
        np.testing.assert_array_equal(given[2], first)


@pytest.mark.row("F4", "F6")
@pytest.mark.parametrize("size", [2, 3, 4, 7])
def test_the_ring_has_two_times_n_minus_one_exchanges_with_two_peers_and_the_least_bytes(size: int) -> None:
    buffers = inputs(size, 60 * size)
    network = Network()
    network.run([al.ring_all_reduce(b, r, size, np.add) for r, b in enumerate(buffers)])
    m = buffers[0].nbytes
    for rank in range(size):
        sent = {peer: n for (frm, peer), n in network.messages.items() if frm == rank}
        assert sent == {(rank + 1) % size: 2 * (size - 1)}
        assert network.bytes[rank, (rank + 1) % size] == 2 * m * (size - 1) // size
    assert len(network.bytes) == size  # no other link carried anything


@pytest.mark.quick
@pytest.mark.row("F12")
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
def test_messages_and_bytes_of_every_algorithm_equal_the_formulas(size: int) -> None:
    for name in names(size):
        buffers = inputs(size, 24 * size)
        network = Network()
        network.run([al.ALL_REDUCE[name](b, r, size, np.add) for r, b in enumerate(buffers)])
        for rank in range(size):
            want = traffic("all_reduce", name, buffers[0].nbytes, size, rank)
            sent = [key for key in network.messages if key[0] == rank]
            assert sum(network.messages[key] for key in sent) == want.messages, (name, rank)
            assert sum(network.bytes[key] for key in sent) == want.bytes, (name, rank)
            if name != "tree":
                assert network.rounds[rank] == want.rounds, (name, rank)


@pytest.mark.row("F19")
@pytest.mark.parametrize("size", [2, 3, 4])
def test_two_gathers_and_a_scatter_move_one_and_a_half_times_what_an_all_reduce_does(size: int) -> None:
    """Fully sharded data parallel gathers weights twice and scatters gradients once: 3M(N-1)/N bytes."""
    weights, network, plain = inputs(size, 12 * size), Network(), Network()
    for _ in range(2):
        network.run([al.ring_all_gather(b, r, size) for r, b in enumerate(weights)])
    network.run([al.ring_reduce_scatter(b, r, size, np.add) for r, b in enumerate(weights)])
    plain.run([al.ring_all_reduce(b, r, size, np.add) for r, b in enumerate(weights)])
    m = weights[0].nbytes
    for link, moved in network.bytes.items():
        assert moved == 3 * m * (size - 1) // size
        assert 2 * moved == 3 * plain.bytes[link]


@pytest.mark.parametrize("size", range(1, 7))
@pytest.mark.parametrize("name", list(al.REDUCE_SCATTER))
def test_reduce_scatter_leaves_each_rank_its_part_of_the_sum(size: int, name: str) -> None:
    given = inputs(size, 7 * size + 3)
    buffers = [x.copy() for x in given]
    Network().run([al.REDUCE_SCATTER[name](b, r, size, np.add) for r, b in enumerate(buffers)])
    for rank in range(size):
        want = al.parts(np.sum(given, axis=0), size)[rank]
        np.testing.assert_allclose(al.parts(buffers[rank], size)[rank], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", range(1, 7))
@pytest.mark.parametrize("name", list(al.ALL_GATHER))
def test_all_gather_fills_every_part_from_its_rank(size: int, name: str) -> None:
    buffers = [np.full(5 * size + 2, r, np.int64) for r in range(size)]
    Network().run([al.ALL_GATHER[name](b, r, size) for r, b in enumerate(buffers)])
    for b in buffers:
        assert [set(p.tolist()) for p in al.parts(b, size)] == [{r} for r in range(size)]


@pytest.mark.parametrize("size", range(1, 7))
def test_all_to_all_transposes_parts_and_a_broadcast_reaches_everybody(size: int) -> None:
    sources = [np.arange(size) + 10 * r for r in range(size)]
    found = [np.empty_like(s) for s in sources]
    Network().run([al.all_to_all(s, f, r, size) for r, (s, f) in enumerate(zip(sources, found, strict=True))])
    np.testing.assert_array_equal(np.stack(found), np.stack(sources).T)
    for root in range(size):
        buffers = [np.full(3, r) for r in range(size)]
        Network().run([al.tree_broadcast(b, r, size, root) for r, b in enumerate(buffers)])
        assert all((b == root).all() for b in buffers)


def test_permute_sends_along_pairs_and_leaves_zeros_where_nothing_arrives() -> None:
    found = run_permute([(0, 1), (1, 0)])
    assert [f.tolist() for f in found] == [[2, 2], [1, 1], [0, 0]]
    assert [f.tolist() for f in run_permute([(0, 1), (2, 2)])] == [[0, 0], [1, 1], [3, 3]]


def run_permute(pairs: list[tuple[int, int]]) -> list[Array]:
    sources, found = [np.full(2, r + 1) for r in range(3)], [np.full(2, -1) for _ in range(3)]
    Network().run([al.permute(s, f, r, pairs) for r, (s, f) in enumerate(zip(sources, found, strict=True))])
    return found


@pytest.mark.parametrize("size", range(1, 9))
def test_nobody_leaves_a_barrier_before_all_have_come(size: int) -> None:
    seen: list[str] = []

    def rank(r: int) -> al.Rounds:
        seen.append("in")
        yield from al.barrier(r, size)
        seen.append("out")

    Network().run([rank(r) for r in range(size)])
    assert seen.index("out") >= size


COMBINES: dict[str, tuple[Any, Callable[..., Any]]] = {
    "max": (np.maximum, np.max), "min": (np.minimum, np.min), "prod": (np.multiply, np.prod),
}  # fmt: skip


@pytest.mark.parametrize("op", list(COMBINES))
def test_other_reductions_than_sums(op: str) -> None:
    combine, whole = COMBINES[op]
    given = inputs(4, 33)
    for name in al.ALL_REDUCE:
        buffers = [x.copy() for x in given]
        Network().run([al.ALL_REDUCE[name](b, r, 4, combine) for r, b in enumerate(buffers)])
        np.testing.assert_allclose(buffers[3], whole(given, axis=0), rtol=1e-6)


# -- the choice ----------------------------------------------------------------------------------------------
@pytest.mark.row("F12")
def test_short_messages_choose_few_rounds_and_long_ones_few_bytes() -> None:
    link = Link()
    assert choose("all_reduce", 64, 4, link) == "doubling"
    long = choose("all_reduce", 64 << 20, 8, link)
    assert traffic("all_reduce", long, 8 << 20, 8).bytes == 2 * 7 * (1 << 20)
    assert choose("all_reduce", 16, 3, link) in ("all_to_all", "tree")
    assert choose("all_reduce", 1 << 30, 64, Link(alpha_ns=1e6, beta_ns=1)) == "halving_doubling"
    for size in (2, 3, 4, 6):
        for nbytes in (8, 1 << 12, 1 << 26):
            best = choose("all_reduce", nbytes, size, link)
            assert all(
                estimate_ns("all_reduce", best, nbytes, size, link)
                <= estimate_ns("all_reduce", n, nbytes, size, link)
                for n in names(size)
            )


def test_an_algorithm_that_does_not_fit_is_refused_in_words() -> None:
    with pytest.raises(AttributeValueError, match="no such algorithm") as raised:
        choose("all_reduce", 8, 3, Link(), "doubling")
    assert "3 ranks are no power of two" in str(raised.value)
    assert choose("all_reduce", 8, 3, Link(), "ring") == "ring"


@pytest.mark.parametrize("size", (2, 3, 4, 5))
def test_sums_into_other_memory_have_the_bits_of_sums_in_place(size: int) -> None:
    for count in (0, 1, size, 1001):
        sources = inputs(size, count)
        in_place = [x.copy() for x in sources]
        Network().run([al.all_to_all_reduce_scatter(b, r, size, np.add) for r, b in enumerate(in_place)])
        own = [np.full_like(al.parts(x, size)[r], np.nan) for r, x in enumerate(sources)]
        for x in sources:
            x.flags.writeable = False
        pairs = enumerate(zip(sources, own, strict=True))
        Network().run([al.all_to_all_reduce_into(x, into, r, size, np.add) for r, (x, into) in pairs])
        for r, into in enumerate(own):
            np.testing.assert_array_equal(into, al.parts(in_place[r], size)[r])


def test_memory_of_results_is_taken_again_once_no_array_shows_it() -> None:
    spares = Spares()
    first = spares.take(6, np.dtype(np.float32))
    address, shown = first.ctypes.data, first[1:3]
    del first
    assert spares.take(6, np.dtype(np.float32)).ctypes.data != address, "a view of it is left"
    del shown
    taken = [spares.take(6, np.dtype(np.float32)) for _ in range(2)]
    assert address in [x.ctypes.data for x in taken]
    assert taken[0].ctypes.data != taken[1].ctypes.data
