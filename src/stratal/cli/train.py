"""`stratal train`: train what a TOML file says: a table, images or texts, without code."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from stratal.base.errors import AttributeValueError
from stratal.cli.outputs import check_outputs
from stratal.cli.report import add_json_option, console, write_json
from stratal.plan.text import plural
from stratal.train.recipes import KINDS, example, problem_of, read_config
from stratal.train.recipes import run as run_config

EPILOG: Final = """\
`stratal train --init table > config.toml` writes a commented example, of images and text, too. Results lie in
the folder that the file names: model.stratal, which `stratal predict` and st.load read, metrics.csv with a
row for each epoch, checkpoints, and config.toml with every value written out. A run that was interrupted goes
on with --resume, to the bits of one that was not."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_json_option(parser, "the history and the results on rows held out")
    add = parser.add_argument
    add("config", type=Path, nargs="?", metavar="CONFIG.toml", help="the file that says what to train")
    add("--init", metavar="KIND", help=f"print an example: {', '.join(KINDS)}")
    add("--output", type=Path, metavar="FOLDER", help="where results go; [output] folder where left out")
    add("--resume", action="store_true", help="go on from the last checkpoint, if there is one")


def _train(args: argparse.Namespace) -> int:
    """Train, and print what came of it."""
    out = console()
    config = read_config(args.config)
    check_outputs(list(filter(None, [args.json])), config.files())
    problem = problem_of(config)
    out.print(f"{config.path.name}: {problem.text}")
    out.print(f"net: {plural(problem.net.summary().parameters, 'parameter')}")
    result = run_config(config, problem, folder=args.output, resume=args.resume)
    out.print(str(result.history))
    found = {name: value for name, value in result.validation.items() if isinstance(value, float)}
    out.print("held out: " + ", ".join(f"{name} {value:.4g}" for name, value in found.items()))
    readers = "`stratal predict` and st.load read it; beside it metrics.csv and checkpoints"
    out.print(f"{result.folder / 'model.stratal'}: {readers}")
    write_json(args.json, {"history": result.history.rows, "validation": result.validation})
    return 0


def run(args: argparse.Namespace) -> int:
    """Write the example, or train."""
    if args.init is not None:
        if args.config is not None:
            got = str(args.config)
            raise AttributeValueError("train: --init prints an example and trains nothing", got=got)
        sys.stdout.write(example(args.init))
        return 0
    if args.config is None:
        raise AttributeValueError("train: needs a file that says what to train", got="none",
                                  hint="stratal train --init table > config.toml")  # fmt: skip
    return _train(args)
