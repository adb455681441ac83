"""KServe v2 (Open Inference Protocol) over HTTP: requests and answers, with JSON and binary tensors.

A body with binary tensors starts with JSON, as long as `Inference-Header-Content-Length` says; the bytes of
its binary tensors follow in order. All else is JSON alone, where data is flat or nested.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np

from stratal.base.errors import StratalError
from stratal.formats.signature import Signature, TensorSpec

Bytes = bytes | memoryview
DATATYPES: Final[dict[str, np.dtype[Any]]] = {
    name: np.dtype(kind)
    for name, kind in {
        "BOOL": np.bool_, "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1",
        "INT16": "<i2", "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
        "BF16": ml_dtypes.bfloat16,
    }.items()
}  # fmt: skip
NAMES: Final = {dtype: name for name, dtype in DATATYPES.items()}
MOST_KNOWN: Final = 64  # heads of requests to a model
MOST_KNOWN_BYTES: Final = 1 << 10
_KEYS: Final = {"id", "inputs", "outputs", "parameters"}


class RequestError(StratalError):
    """A request that is not answered with a result; `status` is HTTP's."""

    advice = "the Open Inference Protocol says what a request looks like"

    def __init__(self, status: int, rule: str, *, got: str = "", hint: str = "") -> None:
        self.status = status
        super().__init__(rule, got=got[:200], hint=hint)


@dataclass
class InferRequest:
    """A request that fits a model: the bytes of every input, and how the answer is wanted."""

    id: str
    rows: int
    inputs: list[Bytes]
    binary: dict[str, bool]  # output name: as bytes, else as JSON
    timeout: float | None  # seconds
    variants: bool = True  # a cheaper variant may answer
    heads: dict[tuple[str, str, str], bytes] | None = None  # of answers, by model, version and variant

    def with_inputs(self, inputs: list[Bytes]) -> InferRequest:
        """Return the same request with other bytes; `dataclasses.replace` takes five times as long."""
        return InferRequest(self.id, self.rows, inputs, self.binary, self.timeout, self.variants, self.heads)


def datatype(spec: TensorSpec) -> str:
    """Return KServe's name of a tensor's dtype. Raises: RequestError for complex and 8-bit floats."""
    if spec.dtype.np not in NAMES:
        raise RequestError(400, f"{spec.name}: the protocol has no name for its dtype", got=spec.dtype.name)
    return NAMES[spec.dtype.np]


def inflated(body: bytes, encoding: str, limit: int) -> bytes:
    """Return a body without its content encoding; `limit` bounds what comes out. Raises: RequestError."""
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "deflate"):
        raise RequestError(415, "content encoding: gzip or deflate", got=encoding)
    engine = zlib.decompressobj(47)  # either header
    try:
        data = engine.decompress(body, limit + 1)
    except zlib.error as error:
        raise RequestError(400, "the body is not of its content encoding", got=str(error)) from None
    if len(data) > limit or engine.unconsumed_tail:
        raise RequestError(413, f"the inflated body has more than {limit} bytes")
    if not engine.eof or engine.unused_data:
        raise RequestError(400, "the compressed body is cut short, or goes on after its end")
    return data


Spans = dict[str, tuple[int, int]]  # of binary inputs, behind the JSON


class KnownHeads:
    """Requests by their JSON, which a client sends again and again with other bytes behind it.

    Known are those whose tensors are all binary: what their JSON says does not depend on the bytes.
    """

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._known: dict[bytes, tuple[InferRequest, list[tuple[int, int]], int]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def parse(self, body: bytes, header_length: int | None, most_rows: int) -> InferRequest:
        """Return the request in a body, as `parse` does. Raises: RequestError."""
        if header_length is None or header_length > MOST_KNOWN_BYTES:
            return parse(body, header_length, self._signature, most_rows)
        text = body[:header_length]
        if (known := self._known.get(text)) is not None and len(body) == known[2]:
            request, spans, _ = known
            view = memoryview(body)
            return request.with_inputs([view[start:stop] for start, stop in spans])
        found: Spans = {}
        request = parse(body, header_length, self._signature, most_rows, found)
        if len(found) == len(self._signature.inputs) and all(request.binary.values()):
            request.heads = {}
            at = [
                (header_length + a, header_length + b)
                for a, b in (found[s.name] for s in self._signature.inputs)
            ]
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[text] = request.with_inputs([]), at, len(body)
        return request


def parse(
    body: bytes, header_length: int | None, signature: Signature, most_rows: int, spans: Spans | None = None
) -> InferRequest:
    """Return the request in a body; `spans` takes note of where binary inputs are.

    Raises: RequestError for all that does not fit the signature.
    """
    if header_length is not None and not 0 <= header_length <= len(body):
        raise RequestError(
            400, "Inference-Header-Content-Length: not within the body", got=str(header_length)
        )
    text = body if header_length is None else body[:header_length]
    binary = memoryview(b"") if header_length is None else memoryview(body)[header_length:]
    try:
        head = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, "the body is not JSON", got=str(error)) from None
    if not isinstance(head, dict) or not set(head) <= _KEYS:
        raise RequestError(400, f"a request has {', '.join(sorted(_KEYS))}", got=repr(head)[:80])
    at = 0

    def taken(row: Mapping[str, Any], spec: TensorSpec, shape: Sequence[int]) -> Bytes:
        """Return the bytes of an input: from its JSON, or the next ones behind it."""
        nonlocal at
        size, nbytes = _parameter(row, "binary_data_size"), math.prod(shape) * spec.dtype.itemsize
        if size is None:
            return _from_json(row.get("data"), spec, shape)
        if type(size) is not int or size != nbytes or at + size > len(binary):
            raise RequestError(
                400, f"{spec.name}: binary_data_size is not {nbytes}, or the body ends", got=repr(size)
            )
        at += size
        if spans is not None:
            spans[spec.name] = at - size, at
        return binary[at - size : at]

    request = fitted(head, signature, most_rows, taken)
    if at != len(binary):
        raise RequestError(400, "the body goes on after its tensors", got=f"{len(binary) - at} bytes")
    return request


Taken = Callable[[Mapping[str, Any], TensorSpec, Sequence[int]], Bytes]


def fitted(head: Mapping[str, Any], signature: Signature, most_rows: int, taken: Taken) -> InferRequest:
    """Return the request that a head describes; `taken` gives the bytes of each input, in the head's order.

    Raises: RequestError for all that does not fit the signature.
    """
    given = _by_name(head.get("inputs"), "inputs")
    if set(given) != {s.name for s in signature.inputs}:
        wanted = ", ".join(s.name for s in signature.inputs)
        raise RequestError(400, f"inputs of this model: {wanted}", got=", ".join(given) or "none")
    raw: dict[str, tuple[list[int], Bytes]] = {}
    for name, row in given.items():
        spec = next(s for s in signature.inputs if s.name == name)
        shape = _shape(row, spec, most_rows)
        raw[name] = shape, taken(row, spec, shape)
    rows = {shape[0] for shape, _ in raw.values()} if signature.batched else {1}
    if len(rows) != 1:
        raise RequestError(400, "inputs have different numbers of rows", got=", ".join(map(str, rows)))
    inputs = [raw[s.name][1] for s in signature.inputs]
    identity = head.get("id", "")
    if not isinstance(identity, str) or len(identity) > 1000:
        raise RequestError(400, "id is a text of at most 1000 characters", got=repr(identity)[:80])
    variants = _parameter(head, "allow_variants")
    if variants is not None and not isinstance(variants, bool):
        raise RequestError(400, "allow_variants: true or false", got=repr(variants)[:40])
    return InferRequest(
        identity, rows.pop(), inputs, _wanted(head, signature), _timeout(head), variants is not False
    )


def _by_name(rows: Any, what: str) -> dict[str, dict[str, Any]]:
    if not isinstance(rows, list) or not all(
        isinstance(r, dict) and isinstance(r.get("name"), str) for r in rows
    ):
        raise RequestError(400, f"{what}: a list of objects with a name", got=repr(rows)[:80])
    found = {row["name"]: row for row in rows}
    if len(found) != len(rows):
        raise RequestError(400, f"{what}: a name appears twice", got=", ".join(r["name"] for r in rows))
    return found


def _parameter(row: Mapping[str, Any], name: str) -> Any:
    parameters = row.get("parameters", {})
    if not isinstance(parameters, dict):
        raise RequestError(400, "parameters: an object", got=repr(parameters)[:80])
    return parameters.get(name)


def _shape(row: Mapping[str, Any], spec: TensorSpec, most_rows: int) -> list[int]:
    if row.get("datatype") != datatype(spec):
        raise RequestError(400, f"{spec.name}: datatype is {datatype(spec)}", got=repr(row.get("datatype")))
    shape, wanted = row.get("shape"), list(spec.full_shape)
    fine = isinstance(shape, list) and len(shape) == len(wanted) and all(type(n) is int for n in shape)
    if not fine or any(m not in (-1, n) for n, m in zip(shape, wanted, strict=True)):  # type: ignore[arg-type]
        raise RequestError(400, f"{spec.name}: shape is {wanted}", got=repr(shape)[:80])
    assert isinstance(shape, list)
    if spec.batched and not 0 < shape[0] <= most_rows:
        raise RequestError(400, f"{spec.name}: from 1 to {most_rows} rows", got=str(shape[0]))
    return shape


def _from_json(data: Any, spec: TensorSpec, shape: Sequence[int]) -> bytes:
    """Return the bytes of JSON numbers; only numbers of the input's kind are taken."""
    try:
        array = np.array(data)
    except (ValueError, OverflowError, RecursionError):
        array = np.array(None)
    kinds = "b" if spec.dtype.is_bool else "iu" if spec.dtype.is_integer else "iuf"
    if array.size != math.prod(shape) or (array.size and array.dtype.kind not in kinds):
        raise RequestError(
            400, f"{spec.name}: data has {math.prod(shape)} numbers of {datatype(spec)}", got=repr(data)[:80]
        )
    with np.errstate(over="ignore"):
        made = array.astype(spec.dtype.np)
    if spec.dtype.is_integer and not np.array_equal(made, array):
        raise RequestError(400, f"{spec.name}: a number does not fit {datatype(spec)}")
    return made.tobytes()


def _wanted(head: Mapping[str, Any], signature: Signature) -> dict[str, bool]:
    default = bool(_parameter(head, "binary_data_output"))
    rows = head.get("outputs")
    if not rows:
        return {s.name: default for s in signature.outputs}
    asked = _by_name(rows, "outputs")
    known = [s.name for s in signature.outputs]
    if not set(asked) <= set(known):
        raise RequestError(400, f"outputs of this model: {', '.join(known)}", got=", ".join(asked))
    if any(_parameter(row, "classification") for row in asked.values()):
        raise RequestError(400, "outputs: classification is not offered", hint="take the scores' argmax")
    return {
        n: default if (b := _parameter(row, "binary_data")) is None else bool(b) for n, row in asked.items()
    }


def _timeout(head: Mapping[str, Any]) -> float | None:
    value = _parameter(head, "timeout")
    if value is None or value == 0:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 10**12:
        raise RequestError(400, "timeout: microseconds", got=repr(value)[:40])
    return value / 1e6


def load_parameters(head: Mapping[str, Any]) -> tuple[str, float | None]:
    """Return version and canary share of a request to load a model. Raises: RequestError."""
    given = head.get("parameters", {})
    known = {"version", "canary_share"}
    if not set(head) <= {"parameters"} or not isinstance(given, dict) or not set(given) <= known:
        raise RequestError(400, f"load: parameters {' and '.join(sorted(known))}", got=repr(dict(head))[:80])
    version, share = given.get("version", ""), given.get("canary_share")
    if not isinstance(version, str):
        raise RequestError(400, "load: a version is a text", got=repr(version)[:80])
    if share is None:
        return version, None
    try:
        number = math.nan if isinstance(share, bool) else float(share)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 < number < 1:
        raise RequestError(400, "load: a canary share is above 0 and below 1", got=repr(share)[:80])
    return version, number


def answer(
    request: InferRequest,
    signature: Signature,
    name: str,
    version: str,
    outputs: Sequence[Bytes],
    variant: str = "",
) -> tuple[list[Bytes], int | None]:
    """Return the pieces of an answer's body, and the length of its JSON where bytes follow."""
    key = (name, version, variant)
    if request.heads is not None and (known := request.heads.get(key)) is not None:
        wanted = (y for s, y in zip(signature.outputs, outputs, strict=True) if s.name in request.binary)
        return [known, *wanted], len(known)
    rows, tail = [], []
    for spec, data in zip(signature.outputs, outputs, strict=True):
        if spec.name not in request.binary:
            continue
        shape = [request.rows if n == -1 else n for n in spec.full_shape]
        row: dict[str, Any] = {"name": spec.name, "datatype": datatype(spec), "shape": shape}
        if request.binary[spec.name]:
            row["parameters"] = {"binary_data_size": len(data)}
            tail.append(data)
        else:
            row["data"] = _to_json(np.frombuffer(data, spec.dtype.np), spec)
        rows.append(row)
    head: dict[str, Any] = {"model_name": name, "model_version": version, "outputs": rows}
    if request.id:
        head["id"] = request.id
    if variant:
        head["parameters"] = {"variant": variant}
    text = json.dumps(head).encode()
    if request.heads is not None:
        request.heads[key] = text
    binary = any(request.binary.values())
    return [text, *tail], len(text) if binary else None


def _to_json(values: np.ndarray[Any, Any], spec: TensorSpec) -> list[Any]:
    wide = values.astype(np.float32) if values.dtype == DATATYPES["BF16"] else values
    if spec.dtype.is_float and not np.isfinite(wide).all():
        raise RequestError(
            400, f"{spec.name}: NaN or infinity, which JSON does not have", hint="ask for binary data"
        )
    numbers: list[Any] = wide.tolist()
    return numbers
