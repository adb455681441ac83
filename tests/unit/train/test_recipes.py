"""`stratal train`: configurations, their errors, and runs of each kind, from files to a loaded model."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal.base.errors import AttributeValueError, FormatError
from stratal.cli import main
from stratal.train.recipes import KINDS, example, problem_of, read_config, run
from stratal.train.recipes.texts import SPECIAL, numbers_of, words_of


def written(folder: Path, text: str) -> Path:
    (folder / "c.toml").write_text(text)
    return folder / "c.toml"


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def pumps(tmp_path: Path) -> Path:
    """Return a folder with a table of 300 pumps."""
    rng = np.random.default_rng(0)
    heat, load = rng.normal(60, 10, 300), rng.uniform(0, 1, 300)
    state = rng.choice(["new", "ok", "worn"], 300)
    failed = (heat - 60) / 10 + 3 * (state == "worn") + load > 1
    with open(tmp_path / "pumps.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["heat", "load", "state", "failed", "cost"])
        for k in range(300):
            table.writerow([heat[k], load[k], state[k], "yes" if failed[k] else "no", 1000 + 5 * heat[k]])
    return tmp_path


TABLE = """kind = "table"
[data]
path = "pumps.csv"
target = "failed"
features = ["heat", "load", "state"]
[model]
hidden = [16]
[training]
epochs = {epochs}
lr = 0.01
patience = 0
[output]
folder = "{folder}"
"""


# -- configurations ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
def test_an_example_is_a_configuration_with_comments_and_without(kind: str, tmp_path: Path) -> None:
    text = example(kind)
    config = read_config(written(tmp_path, text))
    assert config.kind == kind
    assert all(value is not None or KINDS[kind]["training"][key].default is None
               for key, value in config.training.items())  # fmt: skip
    lines = text.splitlines()
    shown = [line.removeprefix("# ") if " = " in line else line for line in lines]
    whole = read_config(written(tmp_path, "\n".join(shown)))
    assert None not in {**whole.data, **whole.model, **whole.training}.values()
    again = read_config(written(tmp_path, whole.to_toml()))
    assert again._replace(data={**again.data, "path": whole.data["path"]}) == whole


GOOD = 'kind = "table"\n[data]\npath = "a.csv"\ntarget = "y"\n'


@pytest.mark.parametrize(("text", "words"), [
    ("kind = 3", "kind is one of"),
    ('kind = "tabel"', "did you mean table"),
    ("", "no key of that name"),
    ("kind = ", "not TOML"),
    ('kind = "table"\nepochs = 3', r"epochs stands in the section \[training\]"),
    ('kind = "table"\n[trainig]\nepochs = 3', "did you mean training"),
    ('kind = "table"\n[data]\ntarget = "y"', r"\[data\] needs path"),
    ('kind = "images"\n[data]\nfolder = "a"', "did you mean path"),
    (GOOD + '[output]\nout = "a"', "did you mean folder"),
    (GOOD + "[training]\nlearning_rate = 1.0", "did you mean lr"),
    (GOOD + '[training]\nlr = "fast"', r'c.toml: \[training\] lr is a number above 0\n  got:   "fast"'),
    (GOOD + "[training]\nlr = inf", "lr is a number above 0"),
    (GOOD + "[training]\nepochs = true", "a whole number from 1"),
    (GOOD + '[output]\nfolder = "a\\u0000b"', r"\[output\] folder is text in quotes"),
    (GOOD + 'features = "x"', "a list of texts"),
    (GOOD + 'missing = "mean"', 'one of "refuse", "drop"'),
    ('kind = "images"\n[data]\npath = "a"\nsize = [3]', "a list of 2 whole numbers"),
    ('kind = "text"\n[data]\npath = "a.csv"\n[model]\nname = "bert"', 'one of "bag", "transformer"'),
])  # fmt: skip
def test_what_a_configuration_gets_wrong_is_named_with_what_is_meant(
    text: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises((AttributeValueError, FormatError), match=words) as caught:
        read_config(written(tmp_path, text))
    assert "c.toml" in str(caught.value)


def test_a_configuration_that_is_not_there_and_an_unknown_example_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_config(tmp_path / "absent.toml")
    with pytest.raises(AttributeValueError, match="did you mean images"):
        example("image")


# -- tables --------------------------------------------------------------------------------------------------
@pytest.mark.row("B9")
def test_a_table_is_trained_resumed_and_loaded_without_code(
    pumps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(pumps, TABLE.format(epochs=4, folder="whole"))
    assert main(["train", str(config), "--json", str(pumps / "r.json")]) == 0
    shown = capsys.readouterr().out
    assert "300 rows: 240 to train on, 60 held out; 3 features, 2 classes" in shown
    assert "whole/model.stratal" in shown
    rows = rows_of(pumps / "whole" / "metrics.csv")
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "4"]
    assert float(rows[-1]["validation_accuracy"]) > 0.8
    assert main(["train", str(config)]) == 1  # a run is there
    assert "--resume" in capsys.readouterr().err

    written(pumps, TABLE.format(epochs=2, folder="parts"))
    assert main(["train", str(config)]) == 0
    written(pumps, TABLE.format(epochs=4, folder="parts"))
    assert main(["train", str(config), "--resume"]) == 0
    whole, parts = (st.load(pumps / name / "model.stratal") for name in ("whole", "parts"))
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)
    assert parts.options["classes"] == ["no", "yes"]
    assert [f["name"] for f in parts.options["features"]] == ["heat", "load", "state"]
    assert parts.options["features"][2]["categories"] == ["new", "ok", "worn"]
    cold, hot = [40.0, 0.5, 1.0, 0.0, 0.0], [90.0, 0.5, 0.0, 0.0, 1.0]
    assert np.asarray(parts(st.tensor([cold, hot, hot]))).argmax(1).tolist() == [0, 1, 1]
    written(pumps, TABLE.format(epochs=4, folder="parts").replace("0.01", "0.02"))
    assert main(["train", str(config), "--resume"]) == 1
    assert "lr: 0.02 for 0.01" in capsys.readouterr().err
    assert read_config(pumps / "parts" / "config.toml").located("pumps.csv").name == "pumps.csv"


def test_a_regression_predicts_in_the_units_of_its_target(pumps: Path) -> None:
    text = TABLE.format(epochs=20, folder="out").replace('"failed"', '"cost"\ntask = "regression"')
    text = text.replace("patience = 0", 'schedule = "cosine"\nbatch_size = 16')
    config = read_config(written(pumps, text))
    result = run(config, problem_of(config), progress=False)
    assert result.validation["r2"] > 0.95
    found = st.load(pumps / "out" / "model.stratal")(st.tensor([[60.0, 0.5, 1.0, 0.0, 0.0]]))
    assert found.shape == (1,) and abs(found.item() - 1300) < 30


@pytest.mark.parametrize(("change", "words"), [
    ({"target = \"failed\"": "target = \"faild\""}, "did you mean failed"),
    ({"\"load\"": "\"laod\""}, "did you mean load"),
    ({"pumps.csv": "pumps.txt"}, "ends in .parquet or .csv"),
    ({"pumps.csv": "absent.csv"}, "is not there"),
    ({"\"failed\"": "\"cost\""}, 'task = "regression"'),
    ({"\"failed\"": "\"failed\"\ntask = \"regression\""}, "'failed' has numbers"),
    ({"\"failed\"": "\"heat\""}, "beside the target"),
    ({"pumps.csv": "gaps.csv"}, "2 of 6 rows, the first is row 1"),
    ({"pumps.csv": "one.csv"}, "at least two classes"),
    ({"pumps.csv": "few.csv"}, "too few rows"),
])  # fmt: skip
def test_what_the_data_do_not_give_is_said_with_the_file(
    change: dict[str, str], words: str, pumps: Path
) -> None:
    head = "heat,load,state,failed\n"
    gaps = "1,1,ok,no\n,1,ok,yes\n3,1,ok,no\nnan,1,ok,yes\n5,1,ok,no\n6,1,ok,no\n"
    (pumps / "gaps.csv").write_text(head + gaps)
    (pumps / "one.csv").write_text(head + "1,1,ok,no\n2,1,ok,no\n")
    (pumps / "few.csv").write_text(head + "1,1,ok,no\n2,1,ok,yes\n")
    text = TABLE.format(epochs=1, folder="out")
    for old, new in change.items():
        assert old in text
        text = text.replace(old, new)
    with pytest.raises(st.StratalError, match=words):
        problem_of(read_config(written(pumps, text)))


@pytest.mark.parametrize(
    "text", ["heat,load,state,failed\n1,2,on,no\n2,3,on,yes,3\n", "heat,heat,failed\n1,2,no\n"]
)
def test_hints_about_a_file_are_keys_of_the_configuration_not_python(text: str, pumps: Path) -> None:
    (pumps / "pumps.csv").write_text(text)
    with pytest.raises(FormatError, match=r"mend the file: c.toml|correct it") as caught:
        problem_of(read_config(written(pumps, TABLE.format(epochs=1, folder="out"))))
    assert "Pipeline" not in str(caught.value) and "names=" not in str(caught.value)


def test_rows_with_missing_values_are_left_out_where_that_is_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, list[Any]] = {
        "x": [1.0, None, 3.0, 4.0] * 10, "name": ["a", "b", None, "c"] * 10, "y": [True, False] * 20,
    }  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    text = 'kind = "table"\n[data]\npath = "t.parquet"\ntarget = "y"\nmissing = "drop"\n'
    problem = problem_of(read_config(written(tmp_path, text)))
    assert problem.text.startswith("20 rows: 16 to train on")
    assert problem.options["classes"] == [False, True]
    assert problem.options["features"][1] == {"name": "name", "categories": ["a", "c"]}


def test_columns_between_semicolons_are_read_where_the_delimiter_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{k % 2 + 0.01 * k:.2f};{'uv'[k % 2]}" for k in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(["size;kind", *rows, ""]))
    text = 'kind = "table"\n[data]\npath = "a.csv"\ntarget = "kind"\n'
    assert main(["train", str(written(tmp_path, text))]) == 1
    assert 'delimiter = ";" in [data]' in capsys.readouterr().err
    text += 'delimiter = ";"\n[training]\nepochs = 1\n'
    assert main(["train", str(written(tmp_path, text))]) == 0


# -- images and texts ----------------------------------------------------------------------------------------
@pytest.mark.sampled(4)
def test_a_folder_of_images_is_trained_and_damaged_ones_are_left_out(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for label, base in (("dark", 0), ("light", 150)):
        folder = tmp_path / "photos" / label
        folder.mkdir(parents=True)
        for k in range(30):
            pixels = rng.integers(base, base + 100, (20, 20, 3)).astype(np.uint8)
            image.fromarray(pixels).save(folder / f"{k:02d}.png")
    (tmp_path / "photos" / "dark" / "30.png").write_bytes(b"no image")
    text = """kind = "images"
[data]
path = "photos"
size = [8, 8]
unreadable = "skip"
[model]
channels = [4, 8]
[training]
epochs = 6
lr = 0.01
"""
    config = read_config(written(tmp_path, text))
    result = run(config, problem_of(config), progress=False)
    assert result.validation["accuracy"] == 1.0
    model = st.load(tmp_path / "run" / "model.stratal")
    assert model.options["classes"] == ["dark", "light"] and model.options["size"] == [8, 8]
    assert "uint8" in model.options["takes"]  # what ImageFolder gives; floats would be of an unknown scale
    for base, label in ((20, 0), (200, 1)):
        pixels = np.full((3, 3, 8, 8), base, np.uint8)
        assert np.asarray(model(st.tensor(pixels))).argmax(1).tolist() == [label] * 3
        with pytest.raises(st.StratalError, match="u8"):
            model(st.tensor(pixels / 255).float())


@pytest.mark.parametrize("name", ["bag", pytest.param("transformer", marks=pytest.mark.slow)])
def test_texts_of_a_folder_are_trained_and_words_are_part_of_the_model(tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(0)
    for label, words in (("bad", ["awful", "broken", "sad"]), ("good", ["great", "fine", "lovely"])):
        folder = tmp_path / "reviews" / label
        folder.mkdir(parents=True)
        for k in range(40):
            (folder / f"{k}.txt").write_text(" ".join(rng.choice([*words, "the", "it"], 5)) + ".")
    text = f"""kind = "text"
[data]
path = "reviews"
length = 8
[model]
name = "{name}"
width = 8
heads = 2
layers = 1
[training]
epochs = 12
batch_size = 16
lr = 0.02
"""
    config = read_config(written(tmp_path, text))
    result = run(config, problem_of(config), progress=False)
    assert result.validation["accuracy"] > 0.85
    model = st.load(tmp_path / "run" / "model.stratal")
    x = numbers_of(["A great, lovely one", "broken and sad", ""], model.options["vocabulary"], 8)
    scores = np.asarray(model(st.tensor(x)))
    assert scores[:2].argmax(1).tolist() == [1, 0] and np.isfinite(scores).all()


def test_words_are_cut_at_signs_and_unknown_ones_have_a_number() -> None:
    assert words_of("It's GREAT, naïve!") == ["it", "'", "s", "great", ",", "naïve", "!"]
    assert numbers_of(["b c zz", ""], [*SPECIAL, "a", "b", "c"], 4).tolist() == [[3, 4, 1, 0], [1, 0, 0, 0]]


def test_options_of_a_net_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,label\n" + "a b,x\nc d,y\n" * 10)
    text = 'kind = "text"\n[data]\npath = "t.csv"\n[model]\nname = "transformer"\nwidth = 9\nheads = 2\n'
    with pytest.raises(AttributeValueError, match="2 heads, width 9"):
        problem_of(read_config(written(tmp_path, text)))


@pytest.mark.parametrize("change", ["a value", "a label", "a name", "fewer rows", "another order"])
def test_a_run_goes_on_with_the_data_it_began_with_alone(
    pumps: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(pumps, TABLE.format(epochs=1, folder="out"))
    assert main(["train", str(config)]) == 0
    lines = (pumps / "pumps.csv").read_text().splitlines()
    if change == "a value":
        lines[5] = lines[5].replace(".", "1.", 1)
    elif change == "a label":
        old, new = ("yes", "no") if ",yes," in lines[5] else ("no", "yes")
        lines[5] = lines[5].replace(f",{old},", f",{new},")
    elif change == "a name":
        lines[0] = lines[0].replace("cost", "price")
    elif change == "fewer rows":
        del lines[-1]
    else:
        lines[1], lines[2] = lines[2], lines[1]
    (pumps / "pumps.csv").write_text("\n".join(lines) + "\n")
    written(pumps, TABLE.format(epochs=2, folder="out"))
    assert main(["train", str(config), "--resume"]) == 1
    assert "goes on with the data it began with" in capsys.readouterr().err


def test_empty_cells_of_texts_in_a_csv_file_are_missing_values(tmp_path: Path) -> None:
    rows = ["x,name,y", *(f"{k},{'abc'[k % 3]},{['no', 'yes'][k % 2]}" for k in range(40))]
    rows[4], rows[9] = "3,,no", "8,c,"
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    text = 'kind = "table"\n[data]\npath = "t.csv"\ntarget = "y"\n'
    with pytest.raises(AttributeValueError, match="missing values"):
        problem_of(read_config(written(tmp_path, text)))
    problem = problem_of(read_config(written(tmp_path, text + 'missing = "drop"\n')))
    assert problem.text.startswith("38 rows") and problem.options["classes"] == ["no", "yes"]
    assert problem.options["features"][1]["categories"] == ["a", "b", "c"]


@pytest.mark.parametrize("row", [0, 1500], ids=["early", "late"])
@pytest.mark.parametrize(("column", "cell"), [("x", ""), ("x", "2.5"), ("y", ""), ("large", "")])
def test_a_column_of_whole_numbers_may_have_empty_cells_and_fractions_in_any_row(
    tmp_path: Path, row: int, column: str, cell: str
) -> None:
    rows = [{"x": k, "large": 20_240_101 + k, "y": k % 2} for k in range(1600)]
    lines = [",".join(str(cell if (k, name) == (row, column) else value) for name, value in r.items())
             for k, r in enumerate(rows)]  # fmt: skip
    (tmp_path / "t.csv").write_text("\n".join(["x,large,y", *lines]) + "\n")
    text = 'kind = "table"\n[data]\npath = "t.csv"\ntarget = "y"\n'
    if not cell:
        with pytest.raises(AttributeValueError, match=f"'{column}' has missing values") as caught:
            problem_of(read_config(written(tmp_path, text)))
        assert f"1 of 1600 rows, the first is row {row}" in caught.value.got
    problem = problem_of(read_config(written(tmp_path, text + 'missing = "drop"\n')))
    assert problem.text.startswith("1,600 rows" if cell else "1,599 rows")
    assert problem.options["classes"] == [0, 1]


def test_a_cell_that_is_no_number_is_named_with_what_a_configuration_can_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{k},{'n/a' if k == 1500 else k},{k % 2}" for k in range(1600)]
    (tmp_path / "t.csv").write_text("\n".join(["x,z,y", *rows]) + "\n")
    text = 'kind = "table"\n[data]\npath = "t.csv"\ntarget = "y"\n'
    config = written(tmp_path, text + 'missing = "drop"\n')
    assert main(["train", str(config)]) == 1
    shown = capsys.readouterr().err
    assert "t.csv:1502: row 1500, column 'z' cannot be read" in shown
    assert "features = [...]" in shown and "Pipeline" not in shown
    problem_of(read_config(written(tmp_path, text + 'features = ["x"]\n')))  # the column is not read


def test_missing_values_and_delimiters_are_those_of_texts_too(tmp_path: Path) -> None:
    rows = [f"{'no good' if k % 2 else '007'};{k % 2 if k != 4 else ''}" for k in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["text;label", *rows]) + "\n")
    text = 'kind = "text"\n[data]\npath = "t.csv"\ndelimiter = ";"\n'
    with pytest.raises(AttributeValueError, match="missing values"):
        problem_of(read_config(written(tmp_path, text)))
    problem = problem_of(read_config(written(tmp_path, text + 'missing = "drop"\n')))
    assert problem.text.startswith("39 texts") and "007" in problem.options["vocabulary"]
    assert problem.options["classes"] == [0, 1]


def test_hidden_folders_are_no_classes_of_a_run_and_classes_fix_the_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("bad", "good", "rest/", ".ipynb_checkpoints"):
        (tmp_path / "reviews" / name).mkdir(parents=True)
        for k in range(0 if name.endswith("/") else 10):
            (tmp_path / "reviews" / name / f"{k}.txt").write_text(f"{name} {k}")
    text = 'kind = "text"\n[data]\npath = "reviews"\n{}\n[training]\nepochs = 1\n[output]\nfolder = "{}"\n'
    assert main(["train", str(written(tmp_path, text.format("", "out")))]) == 1
    shown = capsys.readouterr().err
    assert "no .txt in rest" in shown and "classes=[...]" in shown
    config = written(tmp_path, text.format('classes = ["good", "rest", "bad"]', "out"))
    assert main(["train", str(config)]) == 0
    assert st.load(tmp_path / "out" / "model.stratal").options["classes"] == ["good", "rest", "bad"]
    (tmp_path / "reviews" / ".ipynb_checkpoints" / "new.txt").write_text("opened in a notebook")
    assert main(["train", str(config), "--resume"]) == 0
    (tmp_path / "t.csv").write_text("text,label\na,x\n")
    with pytest.raises(AttributeValueError, match="classes are folders"):
        problem_of(read_config(written(tmp_path, 'kind = "text"\n[data]\npath = "t.csv"\nclasses = ["x"]\n')))


# -- files of others -----------------------------------------------------------------------------------------
def trained(config: Path, *options: str) -> int:
    return main(["train", str(config), *options])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", ["metrics.csv", "model.stratal", "data.digest", "checkpoints"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_with_a_file_of_no_run_is_refused_and_stays_as_it_is(
    pumps: Path, name: str, resume: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(pumps, TABLE.format(epochs=1, folder="."))
    (pumps / name).write_text("mine")
    before = contents(pumps)
    assert trained(config, *["--resume"] * resume) == 1
    assert "not of a run" in capsys.readouterr().err
    assert contents(pumps) == before


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", ["metrics.csv", "link.csv"])
def test_results_never_replace_the_data(
    pumps: Path, name: str, resume: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    (pumps / "pumps.csv").rename(pumps / "metrics.csv")
    (pumps / "link.csv").symlink_to("metrics.csv")
    config = written(pumps, TABLE.format(epochs=1, folder=".").replace("pumps.csv", name))
    before = contents(pumps)
    assert trained(config, *["--resume"] * resume) == 1
    assert "replace a file that is read" in capsys.readouterr().err
    assert contents(pumps) == before


def test_results_never_replace_the_configuration_but_a_run_goes_on_with_its_own(
    pumps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = pumps / "config.toml"
    config.write_text("# my notes\n" + TABLE.format(epochs=1, folder="."))
    before = contents(pumps)
    for options in ([], ["--resume"]):
        assert trained(config, *options) == 1
        assert "replace a file that is read" in capsys.readouterr().err
    assert contents(pumps) == before
    assert trained(config, "--output", str(pumps / "run")) == 0
    own = pumps / "run" / "config.toml"
    own.write_text(own.read_text().replace("epochs = 1", "epochs = 2"))
    assert trained(own, "--output", str(pumps / "run"), "--resume") == 0
    assert len(rows_of(pumps / "run" / "metrics.csv")) == 2


@pytest.mark.parametrize("output", ["pumps.csv", "c.toml"])
def test_a_report_never_replaces_the_data_or_the_configuration(
    pumps: Path, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(pumps, TABLE.format(epochs=1, folder="run"))
    before = contents(pumps)
    assert trained(config, "--json", str(pumps / output)) == 1
    assert "replace a file that is read" in capsys.readouterr().err
    assert contents(pumps) == before


def test_results_in_the_folder_of_data_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in ("good", "bad"):
        (tmp_path / kind).mkdir()
        for k in range(8):
            (tmp_path / kind / f"{k}.txt").write_text(f"{kind} words")
    config = written(tmp_path, 'kind = "text"\n[data]\npath = "."\n[output]\nfolder = "run"\n')
    before = contents(tmp_path)
    assert trained(config) == 1
    assert "outside of the folder of data" in capsys.readouterr().err
    assert contents(tmp_path) == before
