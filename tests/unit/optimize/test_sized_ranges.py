"""Programs for many sizes find what is out of range at each of them: writes at indices, of all kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import stratal as st
from stratal import vmap
from stratal.base.errors import StratalError

Write = Callable[[Any, Any], Any]


def _set(x: Any, index: Any, value: Any) -> Any:
    x = x.clone()
    x[index] = value
    return x


ROWS: dict[str, Write] = {  # of a vector, at indices of it
    "set": lambda x, i: _set(x, i, 7.0),
    "set to tensors": lambda x, i: _set(x, i, i.float()),
    "at set": lambda x, i: x.at[i].set(7.0),
    "at add": lambda x, i: x.at[i].add(7.0),
    "at max": lambda x, i: x.at[i].max(7.0),
    "index_fill": lambda x, i: st.index_fill(x, 0, i, 7.0),
    "index_copy": lambda x, i: st.index_copy(x, 0, i, i.float()),
    "index_put": lambda x, i: st.index_put(x, (i,), st.tensor(7.0)),
    "index_add": lambda x, i: st.index_add(x, 0, i, i.float()),
    "put_along_axis": lambda x, i: st.put_along_axis(x, i, 7.0, 0),
    "scatter": lambda x, i: x.scatter(0, i, 7.0),
    "scatter tensors": lambda x, i: x.scatter(0, i, i.float()),
    "scatter_add": lambda x, i: x.scatter_add(0, i, i.float()),
    "take": lambda x, i: x[i],
    "gather": lambda x, i: x.gather(0, i),
    "rows at once": lambda x, i: vmap(lambda k: x.at[k].set(7.0))(i),
    "matrix": lambda x, i: _set(st.stack([x, x]), (slice(None), i), 7.0),
    "pairs": lambda x, i: _set(st.stack([x, x, x]), (st.arange(3), i), 7.0),
    "gradient": lambda x, i: st.grad(lambda w: (w.at[i].set(7.0) * x).sum())(x),
    "unravel_index": lambda x, i: st.unravel_index(i, (x.shape[0], 1))[0],
}
SIZES = (5, 9, 6, 7, 11)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "lazy"])
@pytest.mark.parametrize("name", ROWS)
def test_an_index_out_of_range_is_an_error_at_every_size(name: str, compiled: bool) -> None:
    write = ROWS[name]
    run = st.compile(write, dynamic=True) if compiled else write
    for size in SIZES:
        for index in ([0, size - 1, 2], [1, 2, size], [size + 1, 0, 1], [0, 1, 2]):
            x, i = st.arange(float(size)), st.tensor(index)
            if max(index) < size:
                with st.eager():
                    want = write(x, i).tolist()
                assert run(x, i).tolist() == want, (size, index)
            else:
                with pytest.raises(StratalError):
                    run(x, i).tolist()
