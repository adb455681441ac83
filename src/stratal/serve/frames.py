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
MOST_SMALL: Final = 1 << 16  # bytes of a frame that a receiver has room for from the start
MOST_PIECES: Final = 1000  # of one system call; the system takes 1024
ALIGNMENT: Final = 16  # bytes, of memory as the system allocates it

Bytes = bytes | memoryview
Head = dict[str, Any]


def encode(head: Head, parts: Iterable[Bytes] = ()) -> list[Bytes]:
    """Return the pieces of a frame, to be written one after another; parts are not copied.

    The head ends in spaces, so that a frame at an aligned address has an aligned body.
    """
    text = json.dumps(head).encode()
    text += b" " * (-(_SIZES.size + len(text)) % ALIGNMENT)
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
        if not self._data and len(data) >= _SIZES.size:
            head, body = _lengths(data[: _SIZES.size])
            end = _SIZES.size + head
            if len(data) == end + body:  # one frame in one piece, as small ones come
                return [(json.loads(data[_SIZES.size : end]), data[end:])]
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


class Receiver:
    """Frames from a blocking socket whose other end sends the next one after the answer.

    A small frame takes one system call, and lies in a buffer that the next one overwrites.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = memoryview(bytearray(MOST_SMALL))

    def next(self) -> tuple[Head, memoryview] | None:
        """Return the next frame; None where the other side is gone. Raises: FormatError."""
        view, got = self._buffer, 0
        while got < _SIZES.size:
            if not (more := self._sock.recv_into(view[got:])):
                return None
            got += more
        head, body = _lengths(bytes(view[: _SIZES.size]))
        start = _SIZES.size + head
        end = start + body
        if got > end:
            raise FormatError("frame: another one before the answer", got=f"{got - end} bytes")
        if end > len(view):
            view = memoryview(bytearray(end))
            view[:got] = self._buffer[:got]
        while got < end:
            if not (more := self._sock.recv_into(view[got:end])):
                return None
            got += more
        return json.loads(bytes(view[_SIZES.size : start])), view[start:end]


def send(sock: socket.socket, head: Head, parts: Iterable[Bytes] = ()) -> None:
    """Write a frame to a blocking socket; a small one takes one system call."""
    pieces = encode(head, parts)
    sent = sock.sendmsg(pieces[:MOST_PIECES])
    for piece in pieces:
        if sent >= len(piece):
            sent -= len(piece)
        else:
            sock.sendall(memoryview(piece)[sent:])
            sent = 0
