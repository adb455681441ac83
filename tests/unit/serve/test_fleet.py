"""Workers and probes, forked from a zygote: what they share, and what the end of one leaves alone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import alive, eventually, frozen, rows

import stratal as st
from stratal import nn
from stratal.serve.fleet import Fleet, FleetError

Use = Callable[[Fleet], Awaitable[Any]]


@pytest.fixture(scope="module")
def with_fleet() -> Iterator[Callable[[Use], Any]]:
    """What returns what a function makes of a zygote, which is gone after the last test."""
    with asyncio.Runner() as runner:
        fleet = Fleet()
        fleet.start()
        pid = fleet.pid
        try:
            yield lambda use: runner.run(asyncio.wait_for(use(fleet), 100))
        finally:
            runner.run(fleet.close())
            assert eventually(lambda: not alive(pid))


def private_bytes(pid: int) -> int:
    """Return the memory of a process that it shares with nobody."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * sum(int(n) for n in re.findall(r"^Private_\w+: +(\d+) kB", text, re.MULTILINE))


@pytest.mark.sampled(4)
def test_workers_share_a_models_weights_and_give_its_bits(with_fleet: Any, tmp_path: Path) -> None:
    st.manual_seed(0)
    net = nn.Sequential(nn.Linear(1024, 4000), nn.ReLU(), nn.Linear(4000, 4))
    x = np.random.default_rng(0).standard_normal((2, 1024)).astype(np.float32)
    model = st.freeze(net, x, batch_sizes=(2,), name="wide")
    model.save(tmp_path / "wide.stratal")

    async def use(fleet: Fleet) -> tuple[list[bytes], list[int]]:
        await fleet.command(do="load", key="wide", path=str(tmp_path / "wide.stratal"))
        workers = [await fleet.fork() for _ in range(2)]
        answers = [(await w.call({"model": "wide"}, [x.tobytes()]))[1] for w in workers]
        return answers, [private_bytes(w.pid) for w in workers]

    answers, private = with_fleet(use)
    assert answers == [np.asarray(model(x)).tobytes()] * 2
    assert model.weight_bytes > 16_000_000
    assert max(private) < 10_000_000


def test_a_probe_that_ends_or_hangs_is_an_error_and_takes_nothing_along(
    with_fleet: Any, tmp_path: Path
) -> None:
    frozen().save(tmp_path / "digits.stratal")
    (tmp_path / "broken.stratal").write_bytes(b"no")

    async def use(fleet: Fleet) -> None:
        path = str(tmp_path / "digits.stratal")
        with pytest.raises(FleetError, match="does not load and run in time"):
            await fleet.probe(path, 0.0)
        process = await fleet.fork(path)
        process.kill()
        with pytest.raises(FleetError, match="ended before it answered"):
            await process.answer()
        await asyncio.wait_for(process.ended, 30)
        process.kill()  # of what ended, nothing happens
        with pytest.raises(FleetError, match="is refused"):
            await fleet.probe(str(tmp_path / "broken.stratal"), 100)
        with pytest.raises(FleetError, match="refused"):
            await fleet.command(do="load", key="k", path=str(tmp_path / "nothing"))
        found = await fleet.probe(path, 100)
        assert found["sizes"] == [1, 4]
        assert all(seconds > 0 for seconds in found["seconds"])
        assert found["signature"] == frozen().signature.to_json()

    with_fleet(use)


def test_a_batch_that_fails_is_answered_with_an_error_by_a_worker_that_goes_on(
    with_fleet: Any, tmp_path: Path
) -> None:
    frozen().save(tmp_path / "digits.stratal")

    async def use(fleet: Fleet) -> list[Any]:
        await fleet.command(do="load", key="digits", path=str(tmp_path / "digits.stratal"))
        worker = await fleet.fork()
        x = rows(3).tobytes()
        odd = [({"model": "nobody"}, x), ({"model": "digits"}, x[:-1]), ({"model": "digits"}, b"")]
        answers = [(await worker.call(head, [body]))[0] for head, body in odd]
        return [*answers, (await worker.call({"model": "digits"}, [x]))[1]]

    *errors, answer = with_fleet(use)
    assert all("error" in head for head in errors)
    assert answer == np.asarray(frozen()(rows(3))).tobytes()
