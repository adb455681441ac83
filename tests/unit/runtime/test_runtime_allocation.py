"""Memory that the system does not give is an error of its own kind."""

from __future__ import annotations

import pytest

import stratal as st
from stratal.base.errors import AllocationError
from stratal.runtime.storage import aligned_empty


@pytest.mark.parametrize("nbytes", [1 << 60, (1 << 63) - 1])
def test_memory_there_is_not_is_a_memory_error_with_the_size(nbytes: int) -> None:
    with pytest.raises(MemoryError, match=rf"(?s)do not fit.*{nbytes} bytes.*stratal memory"):
        aligned_empty(nbytes)


def test_a_tensor_too_large_names_the_line_that_asked_for_it() -> None:
    with pytest.raises(AllocationError) as raised:
        st.zeros(1 << 58).numpy()
    assert "test_runtime_allocation.py" in str(raised.value)
