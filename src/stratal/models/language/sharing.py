"""Weights that two layers share, such as the table of tokens and the projection to logits."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratal import nn
from stratal.base.errors import AttributeValueError
from stratal.nn.state import as_array


def share_weight(model: nn.Module, name: str, source: str) -> None:
    """Let the parameter `name` of a model be its parameter `source`.

    State dicts hold it under both names; one that is loaded may lack `name`, as files that store each weight
    once do. Raises, when loading: AttributeValueError where the two have different values.
    """
    owner, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(owner), leaf, model.get_parameter(source))

    def complete(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        one, other = prefix + source, prefix + name
        if one in state and not np.array_equal(
            as_array(state.setdefault(other, state[one])), as_array(state[one])
        ):
            raise AttributeValueError(
                f"load_state_dict: {type(module).__name__} has one weight for both names",
                got=f"{one}, {other}",
                hint="the values differ: build the model with tie_word_embeddings=False",
            )

    model.register_load_state_dict_pre_hook(complete)
