"""State dicts of optimizers whose state parameter servers own, each parameter's as a whole by one rank.

    save   on every server {number: {name: array}} of what it owns -> broadcasts -> the whole, on every rank
    load   the whole, on every rank -> what this rank owns, numbered as the optimizer has it; nothing is sent
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from stratal.base.dtypes import as_dtype
from stratal.base.errors import DTypeError
from stratal.distributed.collectives import broadcast
from stratal.distributed.world import world
from stratal.distributed.zero import numbers_of
from stratal.optim.optimizer import Optimizer, check_groups
from stratal.tensor.tensor import Tensor, tensor

Array = np.ndarray[Any, Any]
State = dict[int, dict[str, Any]]


def whole_state(
    optimizer: Optimizer, servers: Iterable[int], owned: Sequence[Tensor], state_dict: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the state dict of the whole optimizer; every rank calls it. `owned`: parameters of this rank."""
    numbers = numbers_of(optimizer)
    own = {numbers[p]: state_dict["state"].get(k, {}) for k, p in enumerate(owned)}
    found: State = {}
    for server in servers:
        found.update(_of_server(own, server))
    groups = [
        {**saved, "params": [numbers[p] for p in group["params"]]}
        for saved, group in zip(state_dict["param_groups"], optimizer.param_groups, strict=True)
    ]
    return {"state": dict(sorted(found.items())), "param_groups": groups}


def _of_server(own: State, server: int) -> State:
    """Return the state that a server owns, on every rank."""
    sent = [np.empty(0, np.uint8)] * 2
    if server == world().rank:
        entries = [(k, name, value) for k, state in own.items() for name, value in state.items()]
        sent = [_head(entries), _joined([v for _, _, v in entries if isinstance(v, Tensor)])]
    lengths = broadcast(np.array([a.size for a in sent], np.int64), server).tolist()
    if server != world().rank:
        sent = [np.empty(length, np.uint8) for length in lengths]
    head, flat = (broadcast(a, server) for a in sent)
    found: State = {}
    start = 0
    for k, name, dtype, value in json.loads(head.tobytes()):
        if dtype:  # then the value is the shape
            of = as_dtype(dtype).np
            end = start + int(np.prod(value, dtype=np.int64)) * of.itemsize
            value, start = tensor(np.frombuffer(flat[start:end].tobytes(), of).reshape(value)), end
        found.setdefault(k, {})[name] = value
    return found


def _head(entries: Iterable[tuple[int, str, Any]]) -> Array:
    """Return, as JSON, number, name, dtype and shape of tensors, and of other values no dtype and themselves.

    Raises: DTypeError.
    """
    rows = []
    for k, name, value in entries:
        if isinstance(value, Tensor):
            rows.append([k, name, str(value.dtype), [int(n) for n in value.shape]])
        elif value is None or isinstance(value, (bool, int, float, str)):
            rows.append([k, name, "", value])
        else:
            raise DTypeError(
                "parameter_server: state of an optimizer is tensors and numbers",
                got=f"{type(value).__name__} {name}", hint="train it with st.distributed.data()",
            )  # fmt: skip
    return np.frombuffer(json.dumps(rows).encode(), np.uint8)


def _joined(tensors: Sequence[Tensor]) -> Array:
    return np.frombuffer(b"".join(np.asarray(t.detach()).tobytes() for t in tensors), np.uint8)


def own_state(optimizer: Optimizer, owned: Sequence[Tensor], state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state dict of the parameters `owned`, of one of the whole optimizer.

    Raises: AttributeValueError where it is of another one.
    """
    saved_groups = state_dict["param_groups"]
    check_groups(optimizer, saved_groups, [len(g["params"]) for g in optimizer.param_groups])
    saved_as = dict(zip(numbers_of(optimizer), chain(*(g["params"] for g in saved_groups)), strict=True))
    number = {p: k for k, p in enumerate(owned)}
    given = state_dict["state"]
    state = {k: given[saved_as[p]] for p, k in number.items() if saved_as[p] in given}
    groups = [
        {**saved, "params": [number[p] for p in group["params"] if p in number]}
        for saved, group in zip(saved_groups, optimizer.param_groups, strict=True)
    ]
    return {"state": state, "param_groups": groups}
