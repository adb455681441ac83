"""ModelInferRequests to requests that fit a model, and answers to ModelInferResponses.

Tensors come typed (`contents`) or raw (`raw_input_contents`, one for each input in order), not both; they
leave raw, as clients expect.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from stratal.formats.signature import Signature, TensorSpec
from stratal.serve import protocol
from stratal.serve.protocol import MOST_KNOWN, MOST_KNOWN_BYTES, Bytes, InferRequest, RequestError

CONTENTS: Final = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """A request by gRPC: which model it names, and what it asks, once that fits the signature.

    `between` has what stands before each raw output, by model, version and variant that answered.
    """

    name: str
    version: str
    signature: Signature
    request: InferRequest
    between: dict[tuple[str, str, str], list[bytes]] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.request.id


@dataclass(frozen=True, slots=True)
class _Layout:
    """A message of raw tensors, as bytes: what stands before each tensor, and where each tensor is."""

    asked: Asked
    spans: list[tuple[int, int]]  # in the message's order
    order: list[int]  # of the signature's inputs among them
    between: list[bytes]  # before the second tensor, the third, ...

    def matched(self, data: bytes) -> Asked | None:
        """Return the request of a message that begins as this one; None where it goes on in another way."""
        at = self.spans[0][1]
        for (start, stop), text in zip(self.spans[1:], self.between, strict=True):
            if data[at:start] != text:
                return None
            at = stop
        view, known = memoryview(data), self.asked
        inputs: list[Bytes] = [view[slice(*self.spans[k])] for k in self.order]
        return Asked(
            known.name, known.version, known.signature, known.request.with_inputs(inputs), known.between
        )


class Requests:
    """Messages of clients; those that differ in the bytes of raw tensors alone are parsed once.

    A message is its fields one after another, raw tensors last where protobuf wrote it. One that is as long
    as a known one and begins with the same bytes, up to its first tensor, has the same fields.
    """

    def __init__(self, messages: Mapping[str, Any]) -> None:
        self._message = messages["ModelInferRequest"]
        self._response = messages["ModelInferResponse"]
        self._layouts: dict[bytes, _Layout] = {}  # by what stands before the first tensor
        self._starts: dict[int, set[int]] = {}  # of first tensors, by the length of the message

    def known(self, data: bytes) -> Asked | None:
        """Return the request in a message that is known but for its tensors' bytes."""
        for start in self._starts.get(len(data), ()):
            if (layout := self._layouts.get(data[:start])) is not None and layout.spans[-1][1] == len(data):
                return layout.matched(data)
        return None

    def parse(self, data: bytes) -> Any:
        """Return a ModelInferRequest. Raises: protobuf's DecodeError."""
        return self._message.FromString(data)

    def fitted(self, message: Any, data: bytes, signature: Signature, most_rows: int) -> Asked:
        """Return the request in a message, `data` as bytes. Raises: RequestError where it does not fit."""
        request = fitted(message, signature, most_rows)
        asked = Asked(message.model_name, message.model_version, signature, request)
        self._note(message, data, asked)
        return asked

    def _note(self, message: Any, data: bytes, asked: Asked) -> None:
        """Know a message again, if its raw tensors are its end."""
        raws = list(message.raw_input_contents)
        if not all(raws):
            return  # without tensors, or with one that has no bytes
        fields = [self._message(raw_input_contents=[raw]).SerializeToString() for raw in raws]
        before = [text[: len(text) - len(raw)] for text, raw in zip(fields, raws, strict=True)]
        first = len(data) - sum(map(len, fields)) + len(before[0]) if raws else 0
        if not 0 < first <= MOST_KNOWN_BYTES or not data.endswith(b"".join(fields)):
            return
        spans, at = [], first - len(before[0])
        for text, raw in zip(before, raws, strict=True):
            spans.append((at + len(text), at + len(text) + len(raw)))
            at = spans[-1][1]
        names = [row.name for row in message.inputs]
        order = [names.index(spec.name) for spec in asked.signature.inputs]
        if len(self._layouts) >= MOST_KNOWN:
            self._layouts.clear()
            self._starts.clear()
        known = Asked(
            asked.name, asked.version, asked.signature, asked.request.with_inputs([]), asked.between
        )
        self._layouts[data[:first]] = _Layout(known, spans, order, before[1:])
        self._starts.setdefault(len(data), set()).add(first)

    def answer(self, asked: Asked, name: str, version: str, outputs: Sequence[Bytes], variant: str) -> bytes:
        """Return a ModelInferResponse, as bytes."""
        specs = [s for s in asked.signature.outputs if s.name in asked.request.binary]
        data = [
            y for s, y in zip(asked.signature.outputs, outputs, strict=True) if s.name in asked.request.binary
        ]
        key = (name, version, variant)
        if (between := asked.between.get(key)) is None:
            between = asked.between[key] = self._between(asked.request, key, specs, data)
        return b"".join([piece for pair in zip(between, data, strict=True) for piece in pair])

    def _between(
        self,
        request: InferRequest,
        key: tuple[str, str, str],
        specs: Sequence[TensorSpec],
        data: Sequence[Bytes],
    ) -> list[bytes]:
        """Return what stands before each output: all other fields before the first, its tag and length."""
        name, version, variant = key
        reply = self._response(model_name=name, model_version=version, id=request.id)
        if variant:
            reply.parameters["variant"].string_param = variant
        for spec in specs:
            shape = [request.rows if n == -1 else n for n in spec.full_shape]
            reply.outputs.add(name=spec.name, datatype=protocol.datatype(spec), shape=shape)
        raws = [self._response(raw_output_contents=[bytes(y)]).SerializeToString() for y in data]
        between = [text[: len(text) - len(y)] for text, y in zip(raws, data, strict=True)]
        return [reply.SerializeToString() + between[0], *between[1:]]


def fitted(request: Any, signature: Any, most_rows: int) -> protocol.InferRequest:
    """Return a ModelInferRequest that fits a model. Raises: RequestError for all that does not."""
    raws = list(request.raw_input_contents)
    if raws and len(raws) != len(request.inputs):
        got = f"{len(raws)} for {len(request.inputs)} inputs"
        raise RequestError(400, "raw_input_contents: one for each input, or none", got=got)
    head = {
        "id": request.id, "parameters": parameters(request),
        "inputs": [
            {"name": x.name, "datatype": x.datatype, "shape": list(x.shape), "parameters": parameters(x),
             "contents": x.contents if x.HasField("contents") else None, "raw": raws[k] if raws else None}
            for k, x in enumerate(request.inputs)
        ],
        "outputs": [{"name": x.name, "parameters": parameters(x)} for x in request.outputs],
    }  # fmt: skip
    return protocol.fitted(head, signature, most_rows, _taken)


def parameters(message: Any) -> dict[str, Any]:
    """Return the parameters of a message by name; None for one without a value."""
    choices = {
        name: (value, value.WhichOneof("parameter_choice")) for name, value in message.parameters.items()
    }
    return {name: getattr(value, which) if which else None for name, (value, which) in choices.items()}


def _taken(row: Mapping[str, Any], spec: TensorSpec, shape: Sequence[int]) -> Bytes:
    """Return the bytes of an input, from raw or typed contents. Raises: RequestError."""
    raw, contents, nbytes = row["raw"], row["contents"], math.prod(shape) * spec.dtype.itemsize
    if raw is not None and contents is not None:
        raise RequestError(400, f"{spec.name}: contents and raw_input_contents; one is enough")
    if raw is not None:
        if len(raw) != nbytes:
            raise RequestError(400, f"{spec.name}: raw contents of {nbytes} bytes", got=str(len(raw)))
        data: bytes = raw
        return data
    kind = CONTENTS.get(protocol.datatype(spec))
    if kind is None:
        raise RequestError(400, f"{spec.name}: {protocol.datatype(spec)} comes in raw_input_contents")
    given = [] if contents is None else [field.name for field, _ in contents.ListFields()]
    if given not in ([kind], []):
        raise RequestError(400, f"{spec.name}: data comes in {kind}", got=", ".join(given))
    values = np.array(getattr(contents, kind) if given else [], None if given else spec.dtype.np)
    if values.size != math.prod(shape):
        raise RequestError(400, f"{spec.name}: {math.prod(shape)} numbers in {kind}", got=str(values.size))
    made = values.astype(spec.dtype.np)
    if spec.dtype.is_integer and not np.array_equal(made, values):
        raise RequestError(400, f"{spec.name}: a number does not fit {protocol.datatype(spec)}")
    return made.tobytes()
