"""What a training run did, epoch by epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from html import escape
from typing import Any, Final

from stratal.base.errors import AttributeValueError

Row = dict[str, Any]
TIMES: Final = ("seconds", "samples_per_s", "data_s", "compile_s", "compute_s")
"""Columns that differ from run to run: the wall time of an epoch, and what of it waited for what."""


class History(Sequence[Row]):
    """A row for each epoch: `epoch`, `loss`, metrics, the same of validation with `validation_` before, and
    times in seconds. `history["loss"]` is a column; printed, it is a table of those that are numbers.
    """

    def __init__(self, rows: Sequence[Row] = (), stopped: str = "") -> None:
        self.rows: list[Row] = [dict(row) for row in rows]
        self.stopped = stopped  # why training ended before its last epoch

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return self.rows[key]
        names = self.columns()
        if key not in names:
            raise AttributeValueError(
                "history: a column it does not have", got=key, hint=column_like(key, names)
            )
        return [row[key] for row in self.rows if key in row]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def columns(self) -> list[str]:
        """Return the names of all columns, in order."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def results(self) -> list[Row]:
        """Return the rows without times: what two runs of one plan have in common."""
        return [{k: v for k, v in row.items() if k not in TIMES} for row in self.rows]

    def __str__(self) -> str:
        arrays = {name for row in self.rows for name, value in row.items() if isinstance(value, list)}
        names = [n for n in self.columns() if n not in TIMES[2:] and n not in arrays]
        table = [names, *([_shown(row.get(n)) for n in names] for row in self.rows)]
        widths = [max(len(line[k]) for line in table) for k in range(len(names))]
        lines = ["  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)) for line in table]
        return "\n".join([*lines, *([f"stopped: {self.stopped}"] if self.stopped else [])])

    def _repr_html_(self) -> str:
        """Return the table for notebooks, in one width."""
        return f"<pre>{escape(str(self))}</pre>"

    def __repr__(self) -> str:
        last = self.results()[-1] if self.rows else {}
        return f"<History of {len(self)} epochs: {', '.join(f'{k} {_shown(v)}' for k, v in last.items())}>"


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int):
        return str(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def column_like(name: str, columns: Sequence[str]) -> str:
    """Return what to say to who asked for a column that is not there: one that is like it, or all."""
    meant = name.replace("val_", "validation_", 1) if name.startswith("val_") else name
    if meant.startswith("validation_") and not any(c.startswith("validation_") for c in columns):
        return "fit(.., validation=..) adds those of validation"
    near = get_close_matches(meant, columns, 1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(columns) or 'none'}"


@dataclass
class Running:
    """Sums over the batches of an epoch so far."""

    loss: float = 0.0  # times rows
    rows: int = 0
    batches: int = 0
    skipped: int = 0  # updates left out, as their gradients overflowed in float16
    data_s: float = 0.0
    compile_s: float = 0.0
    compute_s: float = 0.0

    def mean_loss(self) -> float:
        """Return the mean loss of a sample. Raises: ZeroDivisionError before the first."""
        return self.loss / self.rows

    def times(self, seconds: float) -> Row:
        """Return the columns of times; what is not waiting is the trainer's own: metrics, callbacks."""
        return {
            "seconds": seconds, "samples_per_s": self.rows / seconds if seconds else 0.0,
            "data_s": self.data_s, "compile_s": self.compile_s, "compute_s": self.compute_s,
        }  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        """Return the sums by name."""
        return asdict(self)
