"""What a capture looks at does not disturb other threads."""

from __future__ import annotations

import sys
import threading
from typing import Any

from stratal.tensor.capture.origins import Made


def test_tuples_that_another_thread_fills_are_filled_to_their_end() -> None:
    done, failed = threading.Event(), []

    def fill() -> None:
        while not done.is_set():
            try:
                tuple(float(k) for k in range(50))
            except SystemError as error:
                failed.append(error)

    made: Any = Made.__new__(Made)
    interval = sys.getswitchinterval()
    threads = [threading.Thread(target=fill) for _ in range(2)]
    try:
        sys.setswitchinterval(1e-6)
        for thread in threads:
            thread.start()
        for _ in range(300):
            made.refresh()
            if failed:
                break
    finally:
        sys.setswitchinterval(interval)
        done.set()
        for thread in threads:
            thread.join(30)
    assert not failed
    assert made._young
