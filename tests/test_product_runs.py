"""How large products are cut: a single row in long pieces, deep reductions over several panels; and what
normalised rows are stored for the gradient.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn
from stratal.base import settings
from stratal.schedule.select import watched_problems


def chosen(m: int, k: int, n: int) -> dict[str, int]:
    """Return the parameters of the product that is chosen for [m, k] x [k, n], which must be right."""
    rng = np.random.default_rng(m)
    a, b = rng.standard_normal((m, k), dtype=np.float32), rng.standard_normal((k, n), dtype=np.float32)
    with watched_problems() as found:
        product = st.compile(lambda a, b: a @ b)(st.tensor(a), st.tensor(b)).numpy()
    exact = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(product, exact, rtol=0, atol=1e-5 * np.abs(exact).max())
    (candidate,) = [c for _, c in found]
    return dict(candidate.parameters)


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Any) -> Any:
    with settings.cache_dir(tmp_path):
        yield


def test_a_single_row_reads_long_pieces_of_a_large_matrix() -> None:
    taken = chosen(1, 300, 1500)
    assert taken["rows"] == 1 and taken["vectors"] > 4


def test_a_deep_product_runs_over_several_panels_that_share_a_block_of_rows() -> None:
    taken = chosen(640, 1400, 200)
    assert taken["depth"] > 0 and taken["run_columns"] > 1


def test_normalised_rows_are_stored_once_for_the_gradient() -> None:
    norm, head = nn.LayerNorm(64), nn.Linear(64, 64)

    @st.compile
    def step(x: Any) -> Any:
        loss = head(norm(x)).square().sum()
        loss.backward()
        return loss

    step(st.ones((512, 64), requires_grad=True))
    values = step.program.executable.values
    wide = [v.label for v in values if v.home == "arena" and v.type.ints == (512, 64)]
    assert wide.count("sub") == 1 and wide.count("mul") == 1, wide  # that one is the gradient of the square
