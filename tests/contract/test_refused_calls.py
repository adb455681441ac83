"""What no function can make sense of ends in an error of Stratal's, whoever is asked."""

from __future__ import annotations

import pytest

import stratal as st

CALLS = {
    "split of nothing": lambda: st.random.split(None),
    "fold_in of a list": lambda: st.random.fold_in([1], 2),
    "key of text": lambda: st.random.key("a"),
    "state of text": lambda: st.random.set_rng_state("a"),
    "state of another length": lambda: st.random.set_rng_state([1, 2]),
    "bounds beyond int64": lambda: st.random.integers(0, 2**70, (2,)),
    "type of nothing": lambda: st.result_type(),
    "a batch of no size": lambda: st.data.DataLoader([1], batch_size=0),
    "samples of two shapes": lambda: list(st.data.DataLoader([st.ones(2), st.ones(3)], batch_size=2)),
    "compile of a number": lambda: st.compile(5),
}


@pytest.mark.parametrize("call", CALLS)
def test_it_is_refused(call: str) -> None:
    with pytest.raises(st.StratalError):
        CALLS[call]()
