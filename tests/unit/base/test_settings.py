"""Settings: declared once, read from the environment, overridden by context, never silently ignored."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import joined

from stratal.base import settings, target
from stratal.base.errors import SettingError

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True)
def _the_environment_is_read_again_afterwards() -> Iterator[None]:
    yield
    settings.read(os.environ)


def test_every_setting_says_what_it_does_and_what_it_takes() -> None:
    for setting in settings.SETTINGS.values():
        assert setting.doc
        assert setting.takes
        assert setting.variable.startswith("STRATAL_")


def test_the_environment_sets_a_value_and_the_origin_says_so() -> None:
    settings.read({"STRATAL_THREADS": "3", "STRATAL_CACHE_LIMIT": "2 MiB", "STRATAL_CACHE_DIR": "off"})
    assert (settings.threads.value, settings.threads.origin) == (3, "environment")
    assert settings.cache_limit.value == 2 << 20
    assert settings.cache_dir.value is None
    assert settings.seed.origin == "default"


def test_a_context_wins_and_ends() -> None:
    before = settings.threads.value
    with settings.threads(7):
        assert (settings.threads.value, settings.threads.origin) == (7, "context")
        with settings.using(threads=2, verify=True, dump=Path("stages")):
            assert (settings.threads.value, settings.verify.value) == (2, True)
            assert settings.dump.value == Path("stages").absolute()
        assert settings.threads.value == 7
    assert settings.threads.value == before


def test_a_context_does_not_leak_into_another_thread() -> None:
    seen = []
    with settings.threads(5):
        thread = threading.Thread(target=lambda: seen.append(settings.threads.origin))
        thread.start()
        joined(thread)
    assert seen != ["context"]


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("STRATAL_THREADS", "0"),
        ("STRATAL_THREADS", "many"),
        ("STRATAL_THREADS", "65536"),  # took minutes to start, where it did at all
        ("STRATAL_TARGET", "pentium"),
        ("STRATAL_SEED", "-1"),
        ("STRATAL_VERIFY", "maybe"),
        ("STRATAL_CACHE_LIMIT", "3 elephants"),
        ("STRATAL_DUMP", ""),
    ],
)
def test_a_bad_value_is_an_error_that_says_what_is_taken(variable: str, text: str) -> None:
    with pytest.raises(SettingError, match=f"{variable}: takes") as caught:
        settings.read({variable: text})
    assert f"{text!r} in the environment of the process" in str(caught.value)


def test_a_bad_value_from_python_is_the_same_error() -> None:
    says = r"(?s)takes a whole number.*for settings\.threads"
    with pytest.raises(SettingError, match=says), settings.threads(0):
        pass


def test_an_unknown_name_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(SettingError, match="did you mean STRATAL_THREADS"):
        settings.read({"STRATAL_THREDS": "2"})
    with pytest.raises(SettingError, match="did you mean threads"), settings.using(thread=2):
        pass


def test_a_refused_environment_changes_nothing() -> None:
    settings.read({"STRATAL_THREADS": "3"})
    with pytest.raises(SettingError):
        settings.read({"STRATAL_THREADS": "4", "STRATAL_NONSENSE": "1"})
    assert settings.threads.value == 3


@pytest.mark.parametrize("use", ["import stratal.base.settings", "import stratal; stratal.ones(1)"])
def test_an_unknown_name_stops_the_import_and_names_the_users_line(use: str) -> None:
    child = subprocess.run(
        [sys.executable, "-c", use],
        env={**os.environ, "STRATAL_VERBOSE": "1"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
        timeout=600,
    )
    assert child.returncode == 1
    assert "STRATAL_VERBOSE=1" in child.stderr
    assert "where: <string>:1" in child.stderr


def test_the_targets_a_setting_takes_are_the_targets_there_are() -> None:
    assert set(settings.TARGET_NAMES) == {"host", *target.TARGETS}


def test_blocks_that_end_out_of_order_undo_their_own_setting_alone() -> None:
    together = settings.together(settings.threads, settings.objective)
    outside = together()
    first, second = settings.threads(3), settings.objective("memory")
    first.__enter__()
    second.__enter__()
    assert together() == (3, "memory") and together() is together()
    first.__exit__(None, None, None)
    assert together() == (outside[0], "memory")
    second.__exit__(None, None, None)
    assert together() == outside
