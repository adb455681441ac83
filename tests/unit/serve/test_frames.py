"""Frames between the front end and its workers, in whatever pieces a socket gives them."""

from __future__ import annotations

import random
import socket
import threading
from typing import Any

import pytest

from stratal.base.errors import FormatError
from stratal.serve import frames

SIZES = (0, 1, 15, 4000, frames.MOST_SMALL - 100, frames.MOST_SMALL, frames.MOST_SMALL + 1, 300_000)


def frame(head: dict[str, Any], *parts: bytes) -> bytes:
    return b"".join(frames.encode(head, parts))


def test_a_frame_goes_through_a_socket_whatever_its_size_and_number_of_parts() -> None:
    draw = random.Random(3)
    near, far = socket.socketpair()
    with near, far:
        near.settimeout(20)
        far.settimeout(20)
        receiver = frames.Receiver(far)
        cases = [[draw.randbytes(n)] for n in SIZES]
        cases += [[draw.randbytes(3) for _ in range(2 * frames.MOST_PIECES + 1)], [b"", b"ab", b""]]
        for parts in cases:
            head = {"model": "m" * draw.randrange(40)}
            thread = threading.Thread(target=frames.send, args=(near, head, parts), daemon=True)
            thread.start()
            found = receiver.next()
            thread.join(20)
            assert found is not None and found[0] == head
            assert bytes(found[1]) == b"".join(parts)
        near.close()
        assert receiver.next() is None


def test_a_body_is_aligned_as_its_frame_is() -> None:
    for length in range(40):
        first, *_ = frames.encode({"m": "x" * length}, [b"body"])
        assert len(first) % frames.ALIGNMENT == 0


def test_a_frame_before_the_answer_to_the_last_is_refused() -> None:
    near, far = socket.socketpair()
    with near, far:
        far.settimeout(20)
        near.sendall(frame({"model": "a"}, b"1") + frame({"model": "b"}, b"2"))
        with pytest.raises(FormatError, match="another one before the answer"):
            frames.Receiver(far).next()


def test_a_decoder_finds_the_same_frames_in_any_pieces() -> None:
    draw = random.Random(4)
    for _ in range(50):
        wanted = [({"n": k}, draw.randbytes(draw.choice((0, 5, 700)))) for k in range(draw.randint(1, 5))]
        text = b"".join(frame(head, body) for head, body in wanted)
        cuts = sorted(draw.randrange(len(text) + 1) for _ in range(draw.randint(0, 6)))
        decoder, found = frames.Decoder(), []
        for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True):
            found += decoder.feed(text[start:stop])
        assert found == wanted
