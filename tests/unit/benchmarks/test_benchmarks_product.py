"""The benchmark of training and input: every way gives the same, on little data."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import product_data, product_input, product_training
from benchmarks.__main__ import main
from benchmarks.product import turns
from benchmarks.product_data import SMOKE


@pytest.mark.torch
@pytest.mark.parametrize("workload", product_input.WAYS)
def test_all_ways_read_the_same_batches(workload: str, tmp_path: Path) -> None:
    for library in ("torch", "pyarrow", "pandas", "PIL"):
        pytest.importorskip(library)
    kind = product_input.kind_of(workload)
    product_data.write(kind, tmp_path, SMOKE)
    ordered = workload not in product_input.SHUFFLED
    found = set()
    for system, ways in product_input.WAYS[workload].items():
        for way in ways:
            if way == "2 workers":
                continue  # processes of PyTorch's take seconds to start

            def batches(system: str = system, way: str = way) -> object:
                return product_input.batches_of(workload, system, way, tmp_path, SMOKE)

            assert product_input.passed(batches()) == getattr(SMOKE, kind)[0]  # type: ignore[arg-type]
            found.add(product_input.digest(batches(), ordered))  # type: ignore[arg-type]
    assert len(found) == 1


def test_fit_trains_as_the_loop_does() -> None:
    fit, loop = (product_training.EPOCHS[system]("mlp", 64) for system in ("stratal", "loop"))
    for _ in range(2):
        assert fit().loss == loop().loss


def test_a_part_runs_in_processes_and_writes_rows(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    command = ["product", "--smoke", "--part", "epochs,input", "--only", "csv", "--json", str(file)]
    assert main([*command, "--against", "none"]) == 0
    assert not file.exists()  # without a peer there is no ratio
    with pytest.raises(SystemExit):
        main([*command, "--against", "nobody"])


def test_turns_are_taken_in_rounds_after_a_warm_one() -> None:
    order: list[str] = []
    found = turns({name: lambda name=name: order.append(name) for name in "AB"}, 2)  # type: ignore[misc]
    assert order == list("ABABAB") and found == {"A": [None] * 3, "B": [None] * 3}
