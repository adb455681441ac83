"""Every example learns, in its small form; ten lines of the README learn what a long form learns."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layout import ROOT
from long_form import accuracy, train

import stratal as st

EXAMPLES = ROOT / "examples"
pytestmark = pytest.mark.skipif(not EXAMPLES.exists(), reason="runs in a checkout only")


def outcome(name: str) -> Any:
    """Return what the `main` of an example returns in its small form."""
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main(small=True)


@pytest.mark.sampled(7)
@pytest.mark.row("A1")
@pytest.mark.parametrize(
    ("name", "least"), [("digits", 0.9), ("parallel", 0.9), ("karate", 0.9), ("sounds", 0.4)]
)
def test_an_example_learns(name: str, least: float) -> None:
    assert outcome(name) >= least


@pytest.mark.sampled(4)
@pytest.mark.row("A1")
def test_tumours_are_told_apart() -> None:
    pytest.importorskip("sklearn")
    assert outcome("tumours") >= 0.93


@pytest.mark.row("A1")
def test_clothes_are_told_apart() -> None:
    folder = Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))
    if not folder.exists():
        pytest.skip("Fashion-MNIST is not installed")
    assert outcome("fashion") >= 0.6


@pytest.mark.sampled(4)
@pytest.mark.row("A1", "D14")
def test_a_network_of_3d_convolutions_learns_where_digits_go() -> None:
    digits, ways = outcome("moving")
    assert ways >= 0.6
    assert digits >= 0.1


@pytest.mark.sampled(8)
@pytest.mark.row("A1", "D14")
def test_a_transformer_learns_what_follows_and_writes() -> None:
    loss, text = outcome("gpt")
    assert loss < 3.3  # all bytes alike: 5.55
    assert text.startswith("class ")
    assert len(text) > 100


def test_an_example_runs_as_a_program() -> None:
    run = [sys.executable, str(EXAMPLES / "karate.py"), "--small"]
    found = subprocess.run(run, capture_output=True, text=True, check=True, timeout=600)
    assert "of 34 are where they went" in found.stdout


def test_the_table_of_examples_names_them_all_and_each_fits_on_a_page() -> None:
    names = {file.name for file in EXAMPLES.glob("*.py")}
    assert set(re.findall(r"\[(\w+\.py)\]", (EXAMPLES / "README.md").read_text())) == names
    assert {n: lines for n in names if (lines := len((EXAMPLES / n).read_text().splitlines())) >= 60} == {}


# -- A12: ten lines and the long form ------------------------------------------------------------------------
@pytest.mark.sampled(4)
@pytest.mark.row("A12")
def test_ten_lines_of_the_readme_learn_what_the_long_form_learns() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = example.split("\n\nx, y = test")[0]
    ten = [line for line in lines.splitlines() if line and not re.match("import|from", line)]
    assert len(ten) <= 10
    assert max(map(len, ten)) <= 120

    st.manual_seed(3)
    names: dict[str, Any] = {}
    before, after = lines.split("opt = ")
    exec(before, names)
    start = [np.array(p.detach()) for p in names["net"].parameters()]
    state = st.get_rng_state()
    batches = [
        (x.numpy(), y.numpy())
        for _ in range(10)
        for x, y in st.data.DataLoader(names["train"], batch_size=64, shuffle=True, drop_last=True)
    ]
    st.set_rng_state(state)
    exec(f"opt = {after}", names)

    images, labels = (t.numpy() for t in names["test"].tensors)
    with st.no_grad():
        ours = float((names["net"](st.tensor(images)).argmax(1).numpy() == labels).mean())
    by_hand = accuracy(train(start, batches), images, labels)
    assert ours >= 0.95
    assert abs(ours - by_hand) <= 0.01  # 3.6 digits of 359
