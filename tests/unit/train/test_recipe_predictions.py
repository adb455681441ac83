"""`stratal predict`: a saved model says of a file what its net said in training, files prepared alike."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn
from stratal.base.errors import AttributeValueError, DTypeError, FormatError
from stratal.cli import main
from stratal.data import BadRowError
from stratal.train.recipes import predict, problem_of, read_config, run

pytestmark = pytest.mark.row("B9")


def trained(folder: Path, text: str) -> tuple[Any, Path]:
    """Return the result of a configuration and the path of its model."""
    (folder / "c.toml").write_text(text)
    config = read_config(folder / "c.toml")
    return run(config, problem_of(config), progress=False), folder / "run" / "model.stratal"


def table(path: Path, rows: list[list[Any]], header: str) -> Path:
    with open(path, "w", newline="") as file:
        csv.writer(file, delimiter=";").writerows([header.split(), *rows])
    return path


TABLE = """kind = "table"
[data]
path = "t.csv"
target = "{target}"
features = ["heat", "code"]
delimiter = ";"
{more}
[model]
hidden = [16]
[training]
epochs = 12
lr = 0.02
"""


@pytest.fixture
def pumps(tmp_path: Path) -> Path:
    """Return a folder with a table of 200 pumps, their codes texts of digits for the most part."""
    rng = np.random.default_rng(0)
    rows = []
    for k in range(200):
        heat, code = int(rng.integers(40, 80)), ["007", "12", "b"][k % 3]
        rows.append([heat, code, "hot" if heat > 60 else "cold", 1000 + 5 * heat])
    table(tmp_path / "t.csv", rows, "heat code state cost")
    return tmp_path


def test_rows_of_another_file_are_prepared_as_those_of_training(
    pumps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, model = trained(pumps, TABLE.format(target="state", more=""))
    new = table(pumps / "new.csv", [["007", 45, 1], ["12", 75, 2], ["99", 75.5, 3]], "code heat other")
    assert main(["predict", str(model), str(new), "--json", str(pumps / "p.json")]) == 0
    printed = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(printed.out)))
    assert [(r["row"], r["prediction"]) for r in rows] == [("0", "cold"), ("1", "hot"), ("2", "hot")]
    assert all(0.5 < float(r["probability"]) <= 1 for r in rows)
    assert "column 'code': 1 rows with a text that was not there in training" in printed.err
    loaded = st.load(model)
    code = [float(c == "007") for c in loaded.options["features"][1]["categories"]]
    scores = np.asarray(loaded(st.tensor([[45.0, *code], [45.0, *code]])))[0].astype(np.float64)
    found = predict(loaded, new)
    assert found.probabilities is not None
    assert found.probabilities[0] == pytest.approx(1 / np.exp(scores - scores.max()).sum(), rel=1e-6)
    assert found == predict(model, new, batch_size=2)
    assert json.loads((pumps / "p.json").read_text()) == json.loads(json.dumps(found._asdict()))


def test_the_file_of_training_gets_the_predictions_of_its_evaluation(pumps: Path) -> None:
    result, model = trained(pumps, TABLE.format(target="cost", more='task = "regression"'))
    assert result.validation["r2"] > 0.9
    found = predict(model, pumps / "t.csv", batch_size=64)
    with open(pumps / "t.csv", newline="") as file:
        costs = [float(row["cost"]) for row in csv.DictReader(file, delimiter=";")]
    assert found.probabilities is None and len(found.values) == 200
    assert 1 - np.var(np.subtract(found.values, costs)) / np.var(costs) > 0.9


def test_rows_with_missing_values_are_refused_or_skipped(
    pumps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, model = trained(pumps, TABLE.format(target="state", more=""))
    new = table(pumps / "new.csv", [[45, "007"], ["", "12"], [75, ""], ["nan", "b"], [70, "b"]], "heat code")
    with pytest.raises(AttributeValueError, match="column 'heat' of new") as caught:
        predict(model, new)
    assert "2 of 5 rows, the first is row 1" in caught.value.got and "--skip" in caught.value.hint
    assert main(["predict", str(model), str(new), "--skip", "--output", str(pumps / "p.csv")]) == 0
    assert "3 of 5 rows have no prediction" in capsys.readouterr().err
    rows = [line.split(",")[1] for line in (pumps / "p.csv").read_text().splitlines()[1:]]
    assert rows == ["cold", "", "", "", "hot"]


def test_columns_that_are_not_there_or_of_another_type_are_refused(pumps: Path) -> None:
    _, model = trained(pumps, TABLE.format(target="state", more=""))
    with pytest.raises(AttributeValueError, match="has the columns that the model takes") as caught:
        predict(model, table(pumps / "new.csv", [[1]], "heat"))
    assert "no code" in caught.value.got
    with pytest.raises(BadRowError, match="row 1, column 'heat'") as bad:
        predict(model, table(pumps / "new.csv", [[1, "b"], ["warm", "b"]], "heat code"))
    assert "empty the cell" in bad.value.hint
    with pytest.raises(FileNotFoundError):
        predict(model, pumps / "absent.csv")
    with pytest.raises(AttributeValueError, match="ends in"):
        predict(model, pumps)
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    numbers: dict[str, list[Any]] = {"heat": [1], "code": [7]}
    for columns, words in ((numbers, "'code' has texts"), ({"heat": ["1"], "code": ["b"]}, "'heat' has num")):
        parquet.write_table(arrow.table(columns), pumps / "t.parquet")
        with pytest.raises(DTypeError, match=words):
            predict(model, pumps / "t.parquet")
    parquet.write_table(arrow.table({"heat": [41, None], "code": ["b", "b"]}), pumps / "t.parquet")
    assert predict(model, pumps / "t.parquet", skip=True).values == ["cold", None]


def test_models_of_another_kind_are_refused(tmp_path: Path) -> None:
    net = nn.Linear(2, 2)
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    st.save(net, tmp_path / "net.stratal", inputs=st.zeros(2, 2))
    st.save(net.state_dict(), tmp_path / "weights.stratal")
    options = {"kind": "table", "task": "regression", "classes": [], "delimiter": ","}
    for name, features in (("half", [3]), ("none", [])):
        given = {**options, "features": features}
        st.save(net, tmp_path / f"{name}.stratal", inputs=st.zeros(2, 2), options=given)
    for name in ("net", "weights", "half", "none"):
        with pytest.raises(FormatError, match="takes a model of `stratal train`"):
            predict(tmp_path / f"{name}.stratal", tmp_path / "t.csv")


def test_images_are_read_as_in_training(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for label, base in (("dark", 0), ("light", 150)):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for k in range(20):
            pixels = rng.integers(base, base + 100, (12, 10, 3)).astype(np.uint8)
            image.fromarray(pixels).save(tmp_path / "photos" / label / f"{k:02d}.png")
    _, model = trained(tmp_path, """kind = "images"
[data]
path = "photos"
size = [8, 8]
[model]
channels = [4]
[training]
epochs = 5
lr = 0.02
""")
    found = predict(model, tmp_path / "photos", batch_size=16)
    assert found.rows[0] == "dark/00.png" and found.values == ["dark"] * 20 + ["light"] * 20
    one = predict(model, tmp_path / "photos" / "light" / "00.png")
    assert one.rows == ["00.png"] and one.values == ["light"]
    (tmp_path / "photos" / "a.png").write_bytes(b"no image")
    with pytest.raises(BadRowError) as caught:
        predict(model, tmp_path / "photos")
    assert "--skip" in caught.value.hint
    assert predict(model, tmp_path / "photos", skip=True).values[:2] == [None, "dark"]
    (tmp_path / "none").mkdir()
    with pytest.raises(FormatError, match="has rows"):
        predict(model, tmp_path / "none")


def test_texts_are_cut_into_words_as_in_training(tmp_path: Path) -> None:
    words = ["great", "fine", "awful", "sad"]
    rows = [[f"It was {words[k % 4]}", "good" if k % 4 < 2 else "bad"] for k in range(80)]
    table(tmp_path / "t.csv", rows, "text label")
    _, model = trained(tmp_path, """kind = "text"
[data]
path = "t.csv"
delimiter = ";"
length = 6
[model]
width = 8
dropout = 0.0
[training]
epochs = 15
lr = 0.05
""")
    new = table(tmp_path / "new.csv", [["GREAT!"], ["so awful"], [""], ["fine"]], "text")
    assert predict(model, new, skip=True).values == ["good", "bad", None, "good"]
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "1.txt").write_text("sad")
    (tmp_path / "letters" / "2.txt").write_text("great")
    found = predict(model, tmp_path / "letters")
    assert found.rows == ["1.txt", "2.txt"] and found.values == ["bad", "good"]
    (tmp_path / "letters" / "3.txt").write_bytes(b"\xff\xfe")
    assert predict(model, tmp_path / "letters", skip=True).values == ["bad", "good", None]
    with pytest.raises(FormatError, match=r"3\.txt is text in UTF-8"):
        predict(model, tmp_path / "letters")
    options = dict(st.load(model).options)
    vocabulary = options["vocabulary"]
    assert vocabulary[:2] == ["<padding>", "<unknown>"] and "re.findall" in options["takes"]
    x = np.zeros((2, 6), np.int64)
    x[0, 0], x[1, 0] = vocabulary.index("great"), vocabulary.index("sad")  # by hand, as `takes` says
    assert np.asarray(st.load(model)(st.tensor(x))).argmax(1).tolist() == [
        options["classes"].index("good"), options["classes"].index("bad"),
    ]  # fmt: skip
