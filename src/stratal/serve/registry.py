"""The models of a server: what the folder has, what is loaded, and in which state.

models/digits.stratal, models/digits/   an artefact, as one file or as a folder: version 1
models/digits/1.stratal, .../2/         artefacts by version: the highest is loaded
                                        a folder may also hold the stages of a model (`stages.json`)
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from stratal.base.errors import FormatError
from stratal.formats.container import SINGLE_FILE
from stratal.formats.manifest import MANIFEST
from stratal.formats.signature import Signature, signature_from_json
from stratal.formats.training_sample import Sample, check_sample, feature_names
from stratal.serve.model_config import ModelConfig
from stratal.serve.planning import LatencyTable
from stratal.serve.protocol import KnownHeads, RequestError, datatype
from stratal.serve.rollout_state import Chosen, Rollout
from stratal.serve.stages import is_staged

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_NOTHING: Final = ModelConfig()
_VERSION: Final = re.compile(r"[1-9][0-9]{0,8}")


@dataclass
class Loaded:
    """A model that is, or was, served: `key` is its name in the workers, `why` says why it is not ready."""

    name: str
    version: str
    key: str
    signature: Signature
    table: LatencyTable  # a high quantile, as it was measured when the model was loaded
    typical: LatencyTable  # the median
    facts: dict[str, Any]
    state: str = "READY"  # or UNAVAILABLE
    why: str = ""
    training: Sample = field(default_factory=dict)  # features of training rows, by input
    heads: KnownHeads = field(init=False)

    def __post_init__(self) -> None:
        self.heads = KnownHeads(self.signature)


@dataclass(frozen=True)
class Canary:
    """A version that is tried: it answers a share of the requests for its model."""

    model: Loaded
    share: float


@dataclass
class Registry:
    """The folder of models and what is loaded of it."""

    folder: Path
    models: dict[str, Loaded] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)  # name: why it did not load
    canaries: dict[str, Canary] = field(default_factory=dict)
    previous: dict[str, Loaded] = field(default_factory=dict)  # what answered before, for a rollback
    configs: dict[str, ModelConfig] = field(default_factory=dict)
    chosen: set[str] = field(default_factory=set)  # models whose version a request chose

    def found(self) -> dict[str, dict[str, Path]]:
        """Return {name: {version: path}} of the artefacts that are in the folder now."""
        names = {}
        for path in sorted(self.folder.iterdir()):
            name = path.name.removesuffix(SINGLE_FILE)
            if NAME.fullmatch(name) and (versions := _versions(path)):
                names[name] = versions
        return names

    def located(self, name: str, version: str = "") -> tuple[str, Path]:
        """Return version, by default the newest, and path in the folder. Raises: RequestError, 404."""
        versions = self.found().get(name)  # looked up among what is there: no path is made of the name
        if versions is None:
            raise RequestError(404, "repository: there is no such model", got=name[:100])
        version = version or max(versions, key=int)
        if version not in versions:
            raise RequestError(404, f"{name}: versions {', '.join(versions)}", got=version[:20])
        return version, versions[version]

    def ready(self, name: str, version: str = "") -> Loaded:
        """Return a model that can be asked. Raises: RequestError, 404 for an unknown one, 503 else."""
        model = self.models.get(name)
        if model is None:
            status = 503 if name in self.failed else 404
            raise RequestError(status, self.failed.get(name) or "there is no such model", got=name[:100])
        if version and version != model.version:
            canary = self.canaries.get(name)
            if canary is None or version != canary.model.version:
                loaded = " and ".join(self.versions(name))
                raise RequestError(404, f"{name}: version {loaded} is loaded", got=version[:20])
            model = canary.model
        if model.state != "READY":
            raise RequestError(503, f"{name}: {model.why}")
        return model

    def routed(self, name: str, version: str, request_id: str) -> Loaded:
        """Return the model that answers a request; one that is sent again, with its id, goes there again."""
        canary = self.canaries.get(name)
        if version or canary is None or canary.model.state != "READY":
            return self.ready(name, version)
        drawn = int.from_bytes(hashlib.sha256(f"{name}/{request_id}".encode()).digest()[:7], "big") / (
            1 << 56
        )
        return canary.model if drawn < canary.share else self.ready(name)

    def config(self, name: str) -> ModelConfig:
        """Return what is promised of a model."""
        return self.configs.get(name, _NOTHING)

    def rollouts(self) -> dict[str, Rollout]:
        """Return the versions that were chosen, for a server that starts again."""
        found = {}
        for name in self.chosen & set(self.models):
            canary, before = self.canaries.get(name), self.previous.get(name)
            found[name] = Rollout(
                _chosen(self.models[name]),
                _chosen(canary.model, canary.share) if canary else None,
                _chosen(before) if before else None,
            )
        return found

    def variant(self, name: str, signature: Signature) -> Loaded | None:
        """Return a model that can answer in another's place: it is ready, and takes and returns the same."""
        found = self.models.get(name)
        return found if found and found.state == "READY" and found.signature == signature else None

    def variants_missing(self, name: str) -> dict[str, str]:
        """Return which variants of a loaded model cannot answer in its place, and why."""
        why = {}
        for variant in self.config(name).variants if name in self.models else ():
            if variant not in self.models:
                why[variant] = "it is not loaded"
            elif self.models[variant].signature != self.models[name].signature:
                why[variant] = "it takes or returns something else"
        return why

    def versions(self, name: str) -> list[str]:
        """Return the versions of a model that are loaded."""
        found = [self.models[name].version] if name in self.models else []
        return found + ([self.canaries[name].model.version] if name in self.canaries else [])

    def loaded_keys(self) -> set[str]:
        """Return the names in the workers of all that is loaded."""
        return {m.key for m in self.models.values()} | {c.model.key for c in self.canaries.values()}

    def index(self) -> list[dict[str, str]]:
        """Return the repository index of the protocol."""
        rows = []
        for name in sorted({*self.found(), *self.models}):
            model = self.models.get(name)
            row = {"name": name, "state": "UNAVAILABLE", "reason": self.failed.get(name, "not loaded")}
            if model is not None:
                row = {"name": name, "version": model.version, "state": model.state, "reason": model.why}
            rows.append(row)
            if canary := self.canaries.get(name):
                why = canary.model.why or f"canary: {canary.share:.3g} of the requests"
                version, state = canary.model.version, canary.model.state
                rows.append({"name": name, "version": version, "state": state, "reason": why})
        return rows


def _chosen(model: Loaded, share: float | None = None) -> Chosen:
    return Chosen(model.version, model.facts["content"], share)


def _versions(path: Path) -> dict[str, Path]:
    if path.is_file():
        return {"1": path} if path.suffix == SINGLE_FILE else {}
    if _is_model(path):
        return {"1": path}
    found = {}
    for inside in path.iterdir() if path.is_dir() else ():
        version = inside.name.removesuffix(SINGLE_FILE)
        whole = inside.suffix == SINGLE_FILE if inside.is_file() else _is_model(inside)
        if whole and _VERSION.fullmatch(version):
            found[version] = inside
    return found


def _is_model(folder: Path) -> bool:
    return (folder / MANIFEST).is_file() or is_staged(folder)


def loaded_of(name: str, version: str, probed: dict[str, Any]) -> Loaded:
    """Return a model from what its probe said. Raises: RequestError for dtypes the protocol does not have."""
    try:
        signature = signature_from_json(probed["signature"])
    except FormatError as error:
        raise RequestError(400, f"{name}: {error.rule}", got=error.got) from error
    for spec in (*signature.inputs, *signature.outputs):
        datatype(spec)
    sizes = tuple(probed["sizes"]) if signature.batched else (1,)
    table, typical = (
        LatencyTable(sizes, tuple(probed[which])[: len(sizes)]) for which in ("seconds", "typical")
    )
    facts = {key: probed[key] for key in ("content", "stratal", "weight_bytes")}
    key = f"{name}/{version}/{probed['content'][:16]}"
    return Loaded(name, version, key, signature, table, typical, facts, training=_training(probed, signature))


def _training(probed: dict[str, Any], signature: Signature) -> Sample:
    """Return the training sample that a probe sent, one input after another. Raises: FormatError."""
    rows, at, sample = probed["training_rows"], 0, Sample()
    numbers = np.frombuffer(probed["training"], np.float64)
    for spec in signature.inputs if rows else ():
        count = len(feature_names(spec))
        sample[spec.name] = numbers[at : at + rows * count].reshape(rows, count)
        at += rows * count
    if rows:
        check_sample(sample, signature)
    return sample


def metadata(model: Loaded, versions: list[str]) -> dict[str, Any]:
    """Return a model's metadata as the protocol has it."""
    return {
        "name": model.name,
        "versions": versions,
        "platform": "stratal",
        "inputs": [_tensor(s) for s in model.signature.inputs],
        "outputs": [_tensor(s) for s in model.signature.outputs],
    }


def _tensor(spec: Any) -> dict[str, Any]:
    return {"name": spec.name, "datatype": datatype(spec), "shape": list(spec.full_shape)}
