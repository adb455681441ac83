"""Models from folders as Hugging Face's `save_pretrained` writes them: config.json and safetensors files."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from stratal import nn
from stratal.base.errors import AttributeValueError, FormatError
from stratal.formats.safetensors import load_tensors
from stratal.nn.state import as_array

Config = TypeVar("Config")
Model = TypeVar("Model", bound="Pretrained")

_ONE = "model.safetensors"
_SEVERAL = "model.safetensors.index.json"


class Pretrained(nn.Module):
    """A model that `from_pretrained` builds. `config_class` is a dataclass with a table `ONLY` of options
    that files may hold and the one value each may have here.
    """

    config_class: ClassVar[Any]

    @classmethod
    def from_pretrained(cls: type[Model], folder: str | os.PathLike[str], **changes: Any) -> Model:
        """Return the model of a folder, in evaluation mode; `changes` replace fields of its configuration.

        Nothing is downloaded. Raises: FormatError where a file is missing or no such file,
        AttributeValueError where the model has options that are not supported, StateDictError where the
        weights do not fit.
        """
        place = Path(folder)
        config = config_from(cls.config_class, {**_read_json(place / "config.json"), **changes})
        model = cls(config)  # type: ignore[call-arg]
        model.load_state_dict(_read_weights(place))
        return model.eval()


def config_from(kind: type[Config], options: Mapping[str, Any]) -> Config:
    """Return a configuration of what Hugging Face's config.json holds; options that change nothing are left
    out.

    Raises: AttributeValueError where an option has a value that would change what the model computes.
    """
    given = dict(options)
    rope = given.pop("rope_parameters", None) or {}
    if "rope_theta" in rope:
        given["rope_theta"] = rope["rope_theta"]
    given["rope_type"] = rope.get("rope_type", "default")
    if "id2label" in given:
        given.setdefault("num_labels", len(given["id2label"]))
    for name, allowed in kind.ONLY.items():  # type: ignore[attr-defined]
        if name in given and given[name] not in allowed:
            raise AttributeValueError(
                f"{kind.__name__}: {name} is " + " or ".join(map(repr, allowed)), got=repr(given[name])
            )
    fields = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in given.items() if name in fields})


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise FormatError(
            "from_pretrained: takes a folder that save_pretrained wrote", got=f"{path}: {e}"
        ) from None
    if not isinstance(found, dict):
        raise FormatError("from_pretrained: the file holds no table of names", got=str(path))
    return found


def _read_weights(place: Path) -> dict[str, Any]:
    if not (place / _SEVERAL).is_file():
        return load_tensors(place / _ONE)
    files = {Path(file).name for file in _read_json(place / _SEVERAL)["weight_map"].values()}
    return {name: value for file in sorted(files) for name, value in load_tensors(place / file).items()}


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
