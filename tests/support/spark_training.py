"""Ranks inside of a local Spark with two slots: fed by a frame, refused, failing. Prints what was shown."""

from __future__ import annotations

from typing import Any

import numpy as np
from pyspark.sql import SparkSession

from stratal.base.errors import AttributeValueError
from stratal.integrations import spark

ROWS = 41


def train(columns: Any, steps: int) -> Any:
    """Fit a line by gradients over all ranks; return the rows this rank had, and what it learned."""
    import numpy as np

    import stratal as st
    from stratal import distributed as dist

    count = int(dist.all_reduce(len(columns["y"]), "min"))
    x, y = st.tensor(columns["x"][:count]), st.tensor(columns["y"][:count])
    layer = st.nn.Linear(3, 1)
    optimizer = st.optim.SGD(layer.parameters(), lr=0.1)

    def step() -> Any:
        loss = ((layer(x)[:, 0] - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    taken = st.compile(dist.parallel(step, dist.data()))
    losses = [float(dist.all_reduce(taken(), "mean")) for _ in range(steps)]
    weight = np.asarray(layer.weight.detach())
    return dist.rank(), columns["id"], x.shape, str(columns["y"].dtype), losses, weight


def broken() -> None:
    from stratal import distributed as dist

    if dist.rank() == 1:
        raise KeyError("broken rank")
    dist.barrier()


def main() -> None:
    settings = {"ui.enabled": "false", "driver.host": "localhost", "driver.bindAddress": "127.0.0.1",
                "sql.shuffle.partitions": "2"}  # fmt: skip
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(f"spark.{name}", value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, 3))
    rows = [(k, float(x[k].sum()), x[k].tolist()) for k in range(ROWS)]
    frame = session.createDataFrame(rows, "id int, y float, x array<float>").repartition(5)
    found = spark.run(train, 2, data=frame, args=(30,))
    assert [rank for rank, *_ in found] == [0, 1]
    assert sorted(np.concatenate([ids for _, ids, *_ in found]).tolist()) == list(range(ROWS))
    (_, _, shape, dtype, losses, weight), (_, _, _, _, others, other) = found
    assert shape == (ROWS // 2, 3) and dtype == "float32"
    assert losses == others and losses[-1] < losses[0] / 10, losses
    np.testing.assert_array_equal(weight, other)
    print("fed by a frame", flush=True)

    nulls = session.createDataFrame([(1,), (None,)], "a int")
    texts = session.createDataFrame([("a",)], "s string")
    for kind, said, call in (
        (spark.RanksFailedError, "rank 1 of 2 failed.*KeyError: 'broken rank'", lambda: spark.run(broken)),
        (spark.RanksFailedError, "a null among them", lambda: spark.run(train, data=nulls)),
        (AttributeValueError, "3 ranks on 2 slots", lambda: spark.run(broken, 3)),
        (AttributeValueError, "s of string", lambda: spark.run(train, data=texts)),
    ):  # fmt: skip
        try:
            call()
        except kind as error:
            assert all(part in str(error) for part in said.split(".*")), error
            continue
        raise AssertionError(f"not refused: {said}")
    print("refused in words", flush=True)
    session.stop()


if __name__ == "__main__":
    main()
