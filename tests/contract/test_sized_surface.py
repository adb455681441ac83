"""The public surface in changing sizes: one compiled function, called at each, equals uncompiled calls.

What lies beyond the sizes of a call is NaN or an absurd number. The whole is slow; a sample of it is not.
"""

from __future__ import annotations

from typing import Any

import pytest
from sized_calls import FAMILIES, Variant, case_of, fault_of, poisoned, variants

from stratal.tensor.capture.replay import FromPart

EVERY = 194  # of the variants, in the sample
GROUPED = "Conv1d groups=", "Conv2d groups=", "Conv3d groups=", "ConvTranspose2d groups="


@pytest.fixture(autouse=True)
def _poison(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = FromPart.storage
    monkeypatch.setattr(FromPart, "storage", lambda self, given: poisoned(self, given, storage))


def check(wanted: list[Variant]) -> int:
    """Fail with a line for each variant that differs; return how many were compared."""
    broken, count = [], 0
    for variant in wanted:
        case = case_of(variant)
        if case is None:
            continue  # takes one size of these axes
        count += 1
        try:
            fault: Any = fault_of(case)
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
        if fault:
            broken.append(f"{variant}: {fault}")
    assert not broken, f"{len(broken)} of {count}\n" + "\n".join(broken[:20])
    return count


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_public_function_and_layer_equals_itself_uncompiled_at_every_size(family: str) -> None:
    assert check(list(variants((family,)))) > 5


@pytest.mark.sampled(8)
def test_a_sample_of_functions_and_layers_equals_itself_uncompiled_at_every_size() -> None:
    every = list(variants())
    chosen = [v for k, v in enumerate(every) if not k % EVERY]
    assert check(chosen) > len(chosen) // 3


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", GROUPED)
def test_grouped_convolutions_train_on_batches_of_changing_sizes(name: str) -> None:
    assert check([v for v in variants(("layers",)) if name in str(v) and v.axes[-1] != 1])
