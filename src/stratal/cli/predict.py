"""`stratal predict`: what a model of `stratal train` says of the rows of a file, as CSV."""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from stratal.cli.report import add_json_option, whole, write_json
from stratal.formats.files import write_atomically
from stratal.train.recipes import Predictions, predict

EPILOG: Final = """\
FILE is read and prepared as the data the model was trained on: a Parquet or CSV file with its columns, an
image or a folder of images, a text or a folder of texts. The CSV has a line for each row or file: its number
from 0 or its path, the class or number, and, of a class, how probable the model holds it."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_json_option(parser, "rows, predictions and what the model does not know in them")
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="model.stratal, as `stratal train` wrote it")
    add("file", type=Path, metavar="FILE", help="the file or folder to predict for")
    add("--output", type=Path, metavar="FILE.csv", help="where the CSV goes; standard output where left out")
    skipped = "rows with missing values, and images and texts that cannot be read, get no prediction"
    add("--skip", action="store_true", help=skipped)
    add("--batch-size", type=whole(1), default=256, metavar="N", help="rows that are computed at once")


def run(args: argparse.Namespace) -> int:
    """Predict, and write what came of it."""
    found = predict(args.model, args.file, skip=args.skip, batch_size=args.batch_size)
    for note in found.notes:
        print(f"stratal: {note}", file=sys.stderr)
    if skipped := sum(value is None for value in found.values):
        print(f"stratal: {skipped} of {len(found.values)} rows have no prediction", file=sys.stderr)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(_lines(found))
    if args.output is None:
        sys.stdout.write(text.getvalue())
    else:
        write_atomically(args.output, [text.getvalue().encode()])
    write_json(args.json, found._asdict())
    return 0


def _lines(found: Predictions) -> Iterator[list[Any]]:
    """Yield the header and a line for each row; numbers have the digits of float32."""
    files = isinstance(found.rows[0], str)
    classes = found.probabilities is not None
    yield ["file" if files else "row", "prediction", *(["probability"] if classes else [])]
    for k, (row, value) in enumerate(zip(found.rows, found.values, strict=True)):
        shown = "" if value is None else value if classes else np.float32(value)
        probability = found.probabilities[k] if found.probabilities is not None else None
        yield [row, shown, *(["" if probability is None else f"{probability:.6f}"] if classes else [])]
