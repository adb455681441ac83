"""An asynchronous client of a server: arrays in, arrays out, within a time that a query shares out.

Pipelines of models are plain async functions. All that a query asks has one deadline, so a first model that
is slow leaves less for the second, and the server refuses at once what cannot be in time:

    async def query(client, image):
        client = client.within(0.2)
        (scores,) = await client.infer("detector", image)
        return await client.infer("classifier", image) if scores[0, 0] > 0 else None
"""

from __future__ import annotations

import asyncio
import copy
import json
import math
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np

from stratal.base.errors import ShapeError, StratalError
from stratal.serve.loadtest import Connections, request_text, target
from stratal.serve.protocol import DATATYPES, NAMES

Array = np.ndarray[Any, Any]
GRACE: Final = 5.0  # seconds after its deadline that an answer, or an error that says so, is waited for


class InferError(StratalError, RuntimeError):
    """A request that was answered with an error; `status` is HTTP's, 0 where there was no answer."""

    advice = "the server's log has the request by its id"

    def __init__(self, status: int, rule: str, *, got: str = "") -> None:
        self.status = status
        super().__init__(rule, got=got[:300])


class Client:
    """A server at an address such as `http://127.0.0.1:8000`; connections are kept, at most so many.

    A key is sent to other machines by https alone, whose certificate is verified with `ca`, a PEM file, or
    with the system's. Use it in `async with`, which closes the connections.
    """

    def __init__(self, address: str, *, key: str = "", ca: Path | None = None, connections: int = 64) -> None:
        self._server = target(address, key, ca)
        self._connections = Connections(self._server, connections)
        self._metadata: dict[str, dict[str, Any]] = {}
        self._deadline = math.inf

    def within(self, seconds: float) -> Client:
        """Return a client of the same connections, all of whose requests end within some seconds from now."""
        limited = copy.copy(self)
        limited._deadline = min(self._deadline, asyncio.get_running_loop().time() + seconds)
        return limited

    async def infer(self, model: str, *inputs: Any, variants: bool = True) -> tuple[Array, ...]:
        """Return the outputs of a model for its inputs, in their order, whatever variant of it answered.

        Raises: InferError where the answer is an error, or does not come in time; ShapeError for another
        number of inputs.
        """
        path = f"/v2/models/{urllib.parse.quote(model, safe='')}"
        if model not in self._metadata:
            self._metadata[model] = json.loads((await self._ask(path))[0])
        specs = self._metadata[model]["inputs"]
        if len(inputs) != len(specs):
            names = ", ".join(s["name"] for s in specs)
            raise ShapeError(f"infer: {model} takes {len(specs)} inputs", got=str(len(inputs)), hint=names)
        arrays = [
            np.ascontiguousarray(x, DATATYPES[s["datatype"]]) for x, s in zip(inputs, specs, strict=True)
        ]
        head = self._head(specs, arrays, variants)
        body, length = await self._ask(
            f"{path}/infer", head + b"".join(a.tobytes() for a in arrays), len(head)
        )
        return _outputs(body, length)

    def _head(self, specs: Sequence[dict[str, Any]], arrays: Sequence[Array], variants: bool) -> bytes:
        parameters: dict[str, Any] = {"binary_data_output": True, "allow_variants": variants}
        if math.isfinite(self._deadline):
            parameters["timeout"] = max(1, round(1e6 * self._left()))
        rows = [
            {"name": s["name"], "datatype": NAMES[a.dtype], "shape": list(a.shape),
             "parameters": {"binary_data_size": a.nbytes}}
            for s, a in zip(specs, arrays, strict=True)
        ]  # fmt: skip
        return json.dumps({"inputs": rows, "parameters": parameters}).encode()

    def _left(self) -> float:
        return self._deadline - asyncio.get_running_loop().time()

    async def _ask(
        self, path: str, body: bytes = b"", head_bytes: int | None = None
    ) -> tuple[bytes, int | None]:
        """Return the body of an answer, and the length of its JSON where bytes follow. Raises: InferError."""
        text = request_text(self._server, path, body, head_bytes)
        limit = self._left() + GRACE if math.isfinite(self._deadline) else None
        try:
            answer = await asyncio.wait_for(self._connections.request(text), limit)
        except TimeoutError:
            raise InferError(0, "infer: no answer in time", got=path) from None
        except (OSError, asyncio.IncompleteReadError) as error:
            raise InferError(0, "infer: the server does not answer", got=f"{path}: {error}") from error
        if answer.status != 200:
            raise InferError(
                answer.status, "infer: answered with an error", got=answer.body.decode(errors="replace")
            )
        return answer.body, answer.head_bytes

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self._connections.close()


def _outputs(body: bytes, length: int | None) -> tuple[Array, ...]:
    at, found = length or len(body), []
    for row in json.loads(body[:at])["outputs"]:
        size = row["parameters"]["binary_data_size"]
        data = np.frombuffer(body[at : at + size], DATATYPES[row["datatype"]])
        found.append(data.reshape(row["shape"]))
        at += size
    return tuple(found)
