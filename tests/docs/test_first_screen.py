"""What the README and the site's home claim first is what docs/performance.md says was measured."""

from __future__ import annotations

import re
import sys

import pytest
from layout import ROOT

GENERATE = ROOT / "docs" / "generate"
pytestmark = pytest.mark.skipif(not GENERATE.exists(), reason="runs in a checkout only")
sys.path.insert(0, str(GENERATE))
MEASURED = (ROOT / "docs" / "performance.md").read_text() if GENERATE.exists() else ""


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_every_claim_is_what_was_measured(page: str) -> None:
    import first_screen

    text = re.sub(r"\s+", " ", (ROOT / page).read_text().partition("\n## ")[0])
    assert [claim for claim in first_screen.claims(MEASURED) if claim not in text] == []


def test_the_picture_shows_what_was_measured() -> None:
    import first_screen

    assert first_screen.PICTURE.read_text() == first_screen.picture(MEASURED)
    assert "ResNet-18, batch 32: time 0." in first_screen.PICTURE.read_text()


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_screen_says_for_whom_what_is_better_and_what_is_not_there(page: str) -> None:
    screen = "\n".join((ROOT / page).read_text().splitlines()[:40])
    asked = ("For whom", "What it does better", "beside.svg", "What it does not do", "no GPU", "no Windows")
    assert [words for words in asked if words not in screen] == []
