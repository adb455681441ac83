"""Errors of threads have the line of the user who waits for them, not one of the standard library."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stratal.base.errors import AttributeValueError, StratalError
from stratal.data import DataLoader


def refuse() -> None:
    raise AttributeValueError("a rule of a thread")


def test_a_thread_without_a_users_frame_has_no_line_until_who_waits_gives_it() -> None:
    namespace: dict[str, Any] = {"__name__": "stratal.of_a_test", "error": AttributeValueError}
    source = "def refuse():\n raise error('a rule of a thread')\n"
    exec(compile(source, "<string>", "exec"), namespace)  # a frame of the package
    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(namespace["refuse"]).exception()
    assert isinstance(error, StratalError) and error.where == ()
    assert [Path(line.file).name for line in error.at_caller().where] == [Path(__file__).name]
    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(refuse).exception()
    assert isinstance(error, StratalError)
    line = error.where
    assert line[0].function == "refuse" and error.at_caller().where == line


def test_rows_that_make_no_batch_are_refused_at_the_readers_line() -> None:
    rows = [{"a": 1.0}, {"b": 1.0}]  # collated in the worker, where no frame is the user's
    with pytest.raises(StratalError) as caught:
        list(DataLoader(rows, batch_size=2, num_workers=1))
    assert [Path(line.file).name for line in caught.value.where] == [Path(__file__).name]
