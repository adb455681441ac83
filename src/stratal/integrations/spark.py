"""Training inside of a Spark job: the tasks of a barrier stage start ranks, a DataFrame may feed them.

    results = stratal.integrations.spark.run(train, num_proc=4, data=frame)

    barrier stage of 4 tasks   each writes its partition's columns, and waits for the others
    task 0                     mpirun with 4 ranks; rank k calls train(columns of partition k)
    each task                  hands on what its rank returned

A barrier stage gets all of its tasks at once or none, so ranks never wait for a slot. What a rank printed is
in the log of task 0's executor. See: Sergeev and Del Balso, "Horovod: fast and easy distributed deep learning
in TensorFlow", 2018; SPARK-24374, barrier execution mode.
"""

from __future__ import annotations

import os
import pickle
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from stratal.base.errors import (
    AttributeValueError,
    CallOrderError,
    DTypeError,
    MissingExtraError,
    StratalError,
)
from stratal.distributed.launcher import environment, mpirun_command, run_ranks
from stratal.distributed.world import DEFAULT_TIMEOUT

Columns = dict[str, np.ndarray[Any, Any]]
DTYPES: Final = {
    "boolean": "bool", "tinyint": "int8", "smallint": "int16", "int": "int32", "bigint": "int64",
    "float": "float32", "double": "float64",
}  # fmt: skip
_RETURNED, _RAISED, _LOST = "returned", "raised", "lost"


class RanksFailedError(StratalError, RuntimeError):
    """Ranks of a Spark job that raised, were killed, or could not be started; a note has the traceback."""

    advice = "what ranks printed is in the log of the executor that started them"


class Call(NamedTuple):
    """What every rank calls; crosses to ranks by the pickling of functions that Spark itself uses."""

    train: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    with_data: bool
    timeout: float


class Files(NamedTuple):
    """The folder through which the tasks of a stage, and the ranks, hand on what they have."""

    folder: Path

    @property
    def call(self) -> Path:
        return self.folder / "call"

    def columns(self, rank: int) -> Path:
        return self.folder / f"columns.{rank}.npz"

    def result(self, rank: int) -> Path:
        return self.folder / f"result.{rank}"

    def error(self, rank: int) -> Path:
        return self.folder / f"error.{rank}"


def run(
    train: Callable[..., Any], num_proc: int | None = None, *, args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None, data: Any = None, timeout: float = DEFAULT_TIMEOUT,
) -> list[Any]:  # fmt: skip
    """Call a function on `num_proc` ranks inside of a Spark job; return what each returned, by rank.

    `train` is an ordinary training function: `stratal.distributed` knows the ranks in it. `num_proc`: by
    default as many as the session has slots. `data`: a DataFrame of numbers, and arrays of numbers of one
    length; it is dealt into `num_proc` partitions, unless it has as many, and rank k calls `train(columns,
    *args, **kwargs)` with those of partition k: a dict of arrays by name, shapes [rows, ...]. Every row goes
    to one rank; numbers of rows may differ, and steps must not. `timeout`: seconds a rank waits for others.
    Ranks are started where task 0 runs: all tasks must be on one machine; each has `spark.task.cpus` threads.
    Raises: MissingExtraError without pyspark, Java or MPI; CallOrderError without a session;
    AttributeValueError for more ranks than slots, and columns that are no numbers; RanksFailedError with what
    a rank raised.
    """
    session = _session()
    context = session.sparkContext
    ranks = context.defaultParallelism if num_proc is None else num_proc
    if ranks < 1:
        raise AttributeValueError("spark.run: there is at least one rank", got=str(num_proc))
    if ranks > context.defaultParallelism:
        raise AttributeValueError(
            "spark.run: a barrier stage runs all of its tasks at once", got=f"{ranks} ranks on "
            f"{context.defaultParallelism} slots", hint="fewer ranks, or more executors and cores",
        )  # fmt: skip
    if not callable(train) or not timeout > 0:
        raise DTypeError("spark.run: takes a function and a time-out above 0", got=type(train).__name__)
    dtypes = None if data is None else _dtypes(data)
    call = pickled(Call(train, tuple(args), dict(kwargs or {}), data is not None, timeout))
    source = context.parallelize(range(ranks), ranks) if data is None else _partitioned(data, ranks).rdd
    found = source.barrier().mapPartitions(_Task(call, dtypes)).collect()
    return _results(sorted(found))


def _session() -> Any:
    """Return the session of this process. Raises: MissingExtraError, CallOrderError."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingExtraError(
            "spark.run: pyspark is missing", got=str(error), hint="pip install 'stratal[spark]'"
        ) from None
    session = SparkSession.getActiveSession()
    if session is not None:
        return session
    home = os.environ.get("JAVA_HOME", "")
    if not (Path(home) / "bin" / "java").exists() and shutil.which("java") is None:
        raise MissingExtraError(
            "spark.run: Spark needs a Java runtime", got="no java in JAVA_HOME or PATH",
            hint="install one (17 or later) beside pip install 'stratal[spark]'",
        )  # fmt: skip
    raise CallOrderError("spark.run: there is no Spark session", got="none in this process",
                         hint="SparkSession.builder.getOrCreate() first")  # fmt: skip


def pickled(value: object) -> bytes:
    """Return the bytes of a value, functions of scripts among them, as Spark pickles its own."""
    from pyspark import cloudpickle

    module: Any = cloudpickle  # with types or without, by version
    found: bytes = module.dumps(value)
    return found


def _dtypes(data: Any) -> dict[str, str]:
    """Return NumPy's dtypes of a DataFrame's columns. Raises: AttributeValueError."""
    found = {}
    for name, kind in data.dtypes:
        inner = kind.removeprefix("array<").removesuffix(">")
        if inner not in DTYPES:
            raise AttributeValueError(
                "spark.run: columns are numbers, or arrays of them", got=f"{name} of {kind}",
                hint="data.select(...) takes the others; pyspark.ml.functions.vector_to_array for vectors",
            )  # fmt: skip
        found[name] = DTYPES[inner]
    return found


def _partitioned(data: Any, ranks: int) -> Any:
    return data if data.rdd.getNumPartitions() == ranks else data.repartition(ranks)


def _results(found: Sequence[tuple[int, str, bytes]]) -> list[Any]:
    """Return what ranks returned. Raises: RanksFailedError."""
    bad = [(kind != _RAISED, rank, said) for rank, kind, said in found if kind != _RETURNED]
    failed = sorted((late, rank, said.decode().strip()) for late, rank, said in bad)
    if failed:
        _, rank, said = failed[0]
        last = said.splitlines()[-1] if said.startswith("Traceback") else said
        error = RanksFailedError(f"spark.run: rank {rank} of {len(found)} failed", got=last)
        error.add_note(said)
        raise error
    return [pickle.loads(said) for _, _, said in found]  # noqa: S301  by this job's own ranks


# -- in Spark's tasks ----------------------------------------------------------------------------------------
class _Task:
    """What each task of the stage does; task k is of rank k."""

    def __init__(self, call: bytes, dtypes: dict[str, str] | None) -> None:
        self._call, self._dtypes = call, dtypes

    def __call__(self, rows: Iterable[Any]) -> Iterator[tuple[int, str, bytes]]:
        from pyspark import BarrierTaskContext

        task: Any = BarrierTaskContext.get()
        rank = task.partitionId()
        folder = tempfile.mkdtemp(prefix="stratal-spark-") if rank == 0 else ""
        try:
            places = [place.split("\n", 1) for place in task.allGather(f"{socket.gethostname()}\n{folder}")]
            files = Files(Path(places[0][1]))
            why = self._prepare(rows, rank, files, {host for host, _ in places})
            whys = task.allGather(why)
            if any(whys):
                yield (rank, _RAISED, whys[rank].encode()) if whys[rank] else (rank, _LOST, b"")
                return
            if rank == 0:
                self._start(len(places), task.cpus(), files)
            task.barrier()
            yield self._found(rank, files)
            task.barrier()  # before the folder goes
        finally:
            if folder:
                shutil.rmtree(folder, ignore_errors=True)

    def _prepare(self, rows: Iterable[Any], rank: int, files: Files, hosts: set[str]) -> str:
        """Write what this task's rank is given; return why it cannot run, empty where it can."""
        if len(hosts) > 1 or not files.folder.is_dir():
            return f"tasks run on several machines ({', '.join(sorted(hosts))}); ranks are started on one"
        try:
            if rank == 0:
                files.call.write_bytes(self._call)
            if self._dtypes is not None:
                columns: Any = columns_of(rows, self._dtypes)
                np.savez(files.columns(rank), **columns)
        except (StratalError, OSError) as error:
            return str(error)
        return ""

    def _start(self, ranks: int, cpus: int, files: Files) -> None:
        """Run all ranks to their end; one that failed without a word is given one."""
        command = [sys.executable, "-m", "stratal.integrations.spark_rank", str(files.folder)]
        threads = {"STRATAL_THREADS": str(cpus), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        status, why = 1, ""
        try:
            status = run_ranks(mpirun_command(ranks, command), {**environment(ranks, cpus), **threads})
        except (StratalError, OSError) as error:
            why = str(error)
        said = any(files.error(rank).exists() for rank in range(ranks))
        if status and not said:
            files.error(0).write_text(why or f"the ranks ended with status {status}")

    def _found(self, rank: int, files: Files) -> tuple[int, str, bytes]:
        if files.error(rank).exists():
            return rank, _RAISED, files.error(rank).read_bytes()
        if files.result(rank).exists():
            return rank, _RETURNED, files.result(rank).read_bytes()
        return rank, _LOST, b"the rank ended without a result"


def columns_of(rows: Iterable[Any], dtypes: Mapping[str, str]) -> Columns:
    """Return the columns of some rows as arrays, shapes [rows, ...]. Raises: AttributeValueError."""
    taken = list(rows)
    found = {}
    for k, (name, dtype) in enumerate(dtypes.items()):
        values = [row[k] for row in taken]
        try:
            if any(v is None or (isinstance(v, list) and None in v) for v in values):
                raise ValueError("a null among them")
            found[name] = np.array(values, dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise AttributeValueError(
                f"spark.run: column {name} is no array of {dtype}", got=str(error).splitlines()[0],
                hint="data.dropna(); arrays of a column have one length",
            ) from None  # fmt: skip
    return found
