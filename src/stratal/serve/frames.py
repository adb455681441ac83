"""Frames between the front end and its processes: a JSON head and bytes, on a socket pair.

    frame := u32 length of the head, u64 length of the body, head (JSON object), body

Both ends are our own processes; still, lengths are bounded before anything is allocated.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterable
from typing import Any, Final

from stratal.base.errors import FormatError

_SIZES: Final = struct.Struct("<IQ")
MOST_HEAD: Final = 1 << 24
MOST_BODY: Final = 1 << 34

Bytes = bytes | memoryview
Head = dict[str, Any]


def encode(head: Head, parts: Iterable[Bytes] = ()) -> list[Bytes]:
    """Return the pieces of a frame, to be written one after another; parts are not copied."""
    text = json.dumps(head).encode()
    body = list(parts)
    return [_SIZES.pack(len(text), sum(map(len, body))) + text, *body]


def _lengths(sizes: bytes) -> tuple[int, int]:
    head, body = _SIZES.unpack(sizes)
    if head > MOST_HEAD or body > MOST_BODY:
        raise FormatError("frame: longer than any that is written", got=f"{head} and {body} bytes")
    return head, body


class Decoder:
    """Frames out of what comes from a socket, in whatever pieces."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._wanted = _SIZES.size  # bytes of the next frame, as far as that is known

    def feed(self, data: bytes) -> list[tuple[Head, bytes]]:
        """Return the frames that are whole now. Raises: FormatError."""
        self._data += data
        found = []
        while len(self._data) >= self._wanted:
            head, body = _lengths(bytes(self._data[: _SIZES.size]))
            self._wanted = _SIZES.size + head + body
            if len(self._data) < self._wanted:
                break
            end = _SIZES.size + head
            found.append((json.loads(self._data[_SIZES.size : end]), bytes(self._data[end : self._wanted])))
            del self._data[: self._wanted]
            self._wanted = _SIZES.size
        return found


def receive(sock: socket.socket) -> tuple[Head, memoryview] | None:
    """Return the next frame of a blocking socket; None where the other side is gone."""
    sizes = _exactly(sock, _SIZES.size)
    if sizes is None:
        return None
    head_bytes, body_bytes = _lengths(bytes(sizes))
    head, body = _exactly(sock, head_bytes), _exactly(sock, body_bytes)
    return None if head is None or body is None else (json.loads(bytes(head)), body)


def _exactly(sock: socket.socket, count: int) -> memoryview | None:
    view = memoryview(bytearray(count))
    done = 0
    while done < count:
        got = sock.recv_into(view[done:])
        if not got:
            return None
        done += got
    return view


def send(sock: socket.socket, head: Head, parts: Iterable[Bytes] = ()) -> None:
    """Write a frame to a blocking socket."""
    for part in encode(head, parts):
        sock.sendall(part)
