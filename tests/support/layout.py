"""Where the tests lie, and what those of them that start a process of their own have to find there."""

from __future__ import annotations

from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parents[1]
ROOT: Final = TESTS.parent  # the benchmarks and the documentation stand there
SUPPORT: Final = TESTS / "support"
# Tests use what others have made: base names are unique, so that all folders may be on the path.
_FOLDERS = {p.parent for p in TESTS.rglob("*.py") if not (p.parent / "__init__.py").exists()}
IMPORTED: Final = [str(ROOT), *sorted(map(str, _FOLDERS))]
