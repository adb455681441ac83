"""Ranks inside of a Spark job: a partitioned source feeds them, what is missing or fails is named."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from launching import HERE, environment, needs_mpi

from stratal.base.errors import AttributeValueError, MissingExtraError
from stratal.integrations import spark

HAS_SPARK = importlib.util.find_spec("pyspark") is not None and shutil.which("java") is not None


@needs_mpi
@pytest.mark.skipif(not HAS_SPARK, reason="pip install 'stratal[spark]', and a Java runtime")
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.row("F22")
def test_a_partitioned_frame_feeds_ranks_and_no_row_is_lost_or_repeated(tmp_path: Path) -> None:
    env = {**environment(), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_DIRS": str(tmp_path)}
    env["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [env.get("PYTHONPATH", "")])])
    driver = subprocess.Popen(
        [sys.executable, str(HERE / "spark_training.py")], env=env, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, process_group=0, text=True, errors="replace",
    )  # fmt: skip
    try:
        output, _ = driver.communicate(timeout=280)
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    assert driver.returncode == 0, output
    assert "fed by a frame" in output and "refused in words" in output


def test_without_pyspark_or_java_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'stratal\[spark\]'"):
        spark.run(lambda: None)
    session = type("SparkSession", (), {"getActiveSession": staticmethod(lambda: None)})
    monkeypatch.setitem(sys.modules, "pyspark", type(sys)("pyspark"))
    monkeypatch.setitem(sys.modules, "pyspark.sql", type(sys)("pyspark.sql"))
    monkeypatch.setattr(sys.modules["pyspark.sql"], "SparkSession", session, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(MissingExtraError, match="Java runtime"):
        spark.run(lambda: None)


@pytest.mark.quick
def test_rows_become_arrays_of_their_columns_and_gaps_are_refused() -> None:
    rows = [(1, [1.0, 2.0]), (2, [3.0, 4.0])]
    found = spark.columns_of(rows, {"a": "int32", "x": "float32"})
    np.testing.assert_array_equal(found["x"], np.array([[1, 2], [3, 4]], np.float32))
    assert found["a"].dtype == np.int32 and found["x"].dtype == np.float32
    assert spark.columns_of([], {"a": "int64"})["a"].shape == (0,)
    for bad in ([(None, [1.0])], [(1, [1.0]), (1, [1.0, 2.0])], [(1, [None])]):
        with pytest.raises(AttributeValueError, match="is no array of"):
            spark.columns_of(bad, {"a": "int32", "x": "float32"})
