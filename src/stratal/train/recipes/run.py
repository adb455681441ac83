"""A configuration's run: a folder with config.toml, metrics.csv, checkpoints and model.stratal."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from stratal.base.errors import AttributeValueError, FormatError
from stratal.base.files import make_folder
from stratal.data.bad_rows import BadRowError
from stratal.data.sources.class_folders import files_below
from stratal.formats import save
from stratal.formats.files import write_atomically, writing
from stratal.nn.module import Module
from stratal.optim import SGD, Adam, AdamW, Optimizer
from stratal.optim.lr_scheduler import CosineAnnealingLR
from stratal.tensor.functions.random import manual_seed
from stratal.tensor.tensor import tensor
from stratal.train.callbacks import CSVLog, EarlyStopping, Schedule
from stratal.train.checkpoints import CheckpointManager
from stratal.train.history import History
from stratal.train.recipes.config import Config, read_config
from stratal.train.recipes.images import image_problem
from stratal.train.recipes.problem import Problem
from stratal.train.recipes.tables import table_problem
from stratal.train.recipes.texts import text_problem
from stratal.train.tensorboard import TensorBoard
from stratal.train.trainer import Trainer

_PROBLEMS: Final = {"table": table_problem, "images": image_problem, "text": text_problem}
CONFIG, METRICS, MODEL, CHECKPOINTS = "config.toml", "metrics.csv", "model.stratal", "checkpoints"
DATA: Final = "data.digest"
_READ_WHOLE: Final = 1 << 28  # bytes of a folder that are read for its digest; of a larger one sizes count
_ABOUT_BAD_ROWS: Final = {
    "table": "correct it, or empty the cell; features = [...] in [data] names the columns to use",
    "images": 'unreadable = "skip" in [data] leaves out images that cannot be read',
    "text": "correct it in the file",
}
EVENTS: Final = "tensorboard"


class Result(NamedTuple):
    """What a run gave: its history, the net's results on the rows held out, and where all of it lies."""

    history: History
    validation: dict[str, Any]
    folder: Path
    net: Module


def problem_of(config: Config) -> Problem:
    """Return data, net, loss and metrics, initial weights drawn from the seed.

    Raises: AttributeValueError naming the file where it asks for what the data do not give; what sources
    raise.
    """
    manual_seed(config.training["seed"])
    with _hinting_at_keys(config):
        return _PROBLEMS[config.kind](config)


def run(
    config: Config, problem: Problem, *, folder: Path | None = None, resume: bool = False,
    progress: bool | None = None,
) -> Result:  # fmt: skip
    """Train and write everything to a folder, that of the configuration unless given.

    With `resume` it goes on from the last checkpoint there, to the bits of a run that was never ended.
    Raises: AttributeValueError where the folder has another run; what `Trainer.fit` raises.
    """
    folder = config.located(config.output["folder"]) if folder is None else folder
    _check_names(config, folder)
    digest = _data_digest(config.located(config.data["path"]))
    _check_folder(config, folder, resume, digest)
    with writing(folder.name, "train: cannot use the folder {}"):
        make_folder(folder)
    write_atomically(folder / CONFIG, [config.to_toml().encode()])
    write_atomically(folder / DATA, [f"{digest}\n".encode()])
    options = config.training
    optimizer = _optimizer(config, problem.net)
    callbacks: list[Any] = [CSVLog(folder / METRICS)]
    if options["schedule"] == "cosine":
        callbacks.insert(0, Schedule(CosineAnnealingLR(optimizer, T_max=options["epochs"])))
    if config.output["tensorboard"]:
        callbacks.append(TensorBoard(folder / EVENTS))
    if options["patience"]:
        callbacks.append(EarlyStopping(patience=options["patience"], restore_best=True))
    given = {key: options[key] for key in ("clip_norm", "precision") if options[key] is not None}
    trainer = Trainer(problem.net, loss=problem.loss, optimizer=optimizer, metrics=problem.metrics,
                      callbacks=callbacks, **given)  # fmt: skip
    manager = CheckpointManager(folder / CHECKPOINTS, keep_last=1, keep_best=1)
    with _hinting_at_keys(config):
        history = trainer.fit(problem.training, epochs=options["epochs"], validation=problem.validation,
                              checkpoints=manager, resume=resume, progress=progress)  # fmt: skip
        validation = trainer.evaluate(problem.validation)
    about = {"kind": config.kind, **problem.options}
    save(problem.net, folder / MODEL, inputs=tensor(problem.example), options=about)
    return Result(history, validation, folder, problem.net)


@contextmanager
def _hinting_at_keys(config: Config) -> Iterator[None]:
    """Let errors about data hint at what a configuration can say, not at arguments in Python."""
    try:
        yield
    except FormatError as error:
        if isinstance(error, BadRowError):
            error.hint = _ABOUT_BAD_ROWS[config.kind]
        elif "names=[" in error.hint:
            error.hint = f"mend the file: {config.path.name} has no key to read it in another way"
        raise


def _optimizer(config: Config, net: Module) -> Optimizer:
    options = config.training
    shared = {"lr": options["lr"], "weight_decay": options["weight_decay"]}
    if options["optimizer"] == "sgd":
        return SGD(net.parameters(), momentum=0.9, **shared)
    return (Adam if options["optimizer"] == "adam" else AdamW)(net.parameters(), **shared)


def _data_digest(path: Path) -> str:
    """Return a digest of what a run is trained on: bytes of a file; in a folder names, and sizes or bytes.

    Of a folder what is hidden is not read, and does not count.
    """
    found = hashlib.blake2b(digest_size=16)
    files = sorted(map(Path, files_below(path))) if path.is_dir() else [path]
    sizes = [file.stat().st_size for file in files]
    for file, size in zip(files, sizes, strict=True):
        name = file.relative_to(path).as_posix() if path.is_dir() else file.suffix
        found.update(f"{name} {size}\n".encode())
        if file is path or sum(sizes) <= _READ_WHOLE:
            with file.open("rb") as opened:
                while block := opened.read(1 << 20):
                    found.update(block)
    return found.hexdigest()


def _check_names(config: Config, folder: Path) -> None:
    """Refuse a folder where results would replace or join what is read. Raises: AttributeValueError."""
    data = config.located(config.data["path"])
    if data.is_dir() and folder.resolve().is_relative_to(data.resolve()):
        hint = "[output] folder names another"
        raise config.refuse("results lie outside of the folder of data", folder, hint)
    read = [data]
    if config.path.read_bytes() != config.to_toml().encode():
        read.append(config.path)  # else it is one that a run wrote, and stays as it is
    for name in (CONFIG, DATA, METRICS, MODEL):
        for path in read:
            if path.exists() and (folder / name).exists() and path.samefile(folder / name):
                raise config.refuse("a result would replace a file that is read", path,
                                    "[output] folder names another; nothing was written")  # fmt: skip


def _check_folder(config: Config, folder: Path, resume: bool, digest: str) -> None:
    """Refuse a folder with a run that is not this one's, or files of no run. Raises: AttributeValueError."""
    if not (folder / CONFIG).is_file():
        for name in (DATA, METRICS, MODEL, CHECKPOINTS, EVENTS):  # a run writes its configuration first
            if os.path.lexists(folder / name):
                raise AttributeValueError(
                    f"{config.path.name}: the folder of results has a file that is not of a run",
                    got=str(folder / name), hint="[output] folder names another; nothing was written",
                )  # fmt: skip
        return
    if not resume:
        raise AttributeValueError(
            f"{config.path.name}: the folder of results has a run already", got=str(folder),
            hint="--resume goes on with it; [output] folder names another",
        )  # fmt: skip
    if (folder / DATA).is_file() and (folder / DATA).read_text(errors="replace").strip() != digest:
        raise AttributeValueError(
            f"{config.path.name}: a run goes on with the data it began with",
            got=f"{config.data['path']} with other content",
            hint="[output] folder names another folder, for another run",
        )  # fmt: skip
    before = read_config(folder / CONFIG)
    free = {"path", "workers", "folder"} | ({"epochs"} if config.training["schedule"] == "none" else set())
    for section in ("data", "model", "training", "output"):
        there, here = getattr(before, section), getattr(config, section)
        changed = [k for k in here if here[k] != there.get(k) and k not in free]
        if before.kind != config.kind or changed:
            key = changed[0] if changed else "kind"
            raise AttributeValueError(
                f"{config.path.name}: a run goes on with what it began with, but for epochs",
                got=f"{key}: {here.get(key, config.kind)!r} for {there.get(key, before.kind)!r}",
                hint="[output] folder names another folder, for another run",
            )  # fmt: skip

