"""What frozen inputs decide is computed once: in the first run, and again after one of them has changed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim
from stratal.base import settings
from stratal.base.artifact import Host, Once, flat
from stratal.base.errors import IndexOutOfRangeError, VerifyError
from stratal.compiler import Lowerings, compile_graph
from stratal.graph.graph import Graph
from stratal.graph.json_form import graph_from_json, graph_to_json
from stratal.graph.text import parse_graph
from stratal.optimize.prologue import hoist
from stratal.runtime.pack import pack, unpack
from stratal.runtime.storage import Storage
from stratal.runtime.timing import TimedProgram

SCALED = (
    'graph "scaled"(%0: f32[8,6] = "x", %1: f32[6] frozen = "g", %2: f32[6] frozen = "v") {\n'
    "  %3 = rsqrt(%2) : f32[6]\n  %4 = mul(%1, %3) : f32[6]\n"
    "  %5 = broadcast(%4) shape=(8,6) axes=(1,) : f32[8,6]\n  %6 = mul(%0, %5) : f32[8,6]\n"
    "  return %6\n}"
)
Array = np.ndarray[Any, Any]


def parts(graph: Graph) -> tuple[list[str], list[str]]:
    """Return the ops of the prologue and of the rest."""
    prologue, rest = hoist(graph, Lowerings())
    made = [] if prologue is None else [n.op.name for n in prologue.nodes if n.op.name != "input"]
    return made, [n.op.name for n in rest.nodes if n.op.name != "input"]


class Small(nn.Module):  # type: ignore[misc, unused-ignore]
    """Convolution, batch norm and a linear layer: each has something to prepare.

    Rows are too short for dot products, which would be taken where weights are not held: other bits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 12, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(12)
        self.out = nn.Linear(12, 10)

    def forward(self, x: Any) -> Any:
        return self.out(st.relu(self.norm(self.conv(x))).mean((2, 3)))


def images(seed: int = 1, batch: int = 2) -> Any:
    return st.tensor(np.random.default_rng(seed).standard_normal((batch, 3, 9, 9), dtype=np.float32))


def inference(batch: int = 2) -> tuple[Small, Callable[[], Array], Callable[[], Array]]:
    """Return a model, its compiled inference after two runs, and the same work where nothing is held."""
    st.manual_seed(0)
    model = Small().eval()
    x = images(batch=batch)
    compiled = st.compile(lambda x: model(x))

    def run() -> Array:
        with st.inference_mode():
            return np.array(compiled(x))

    def expected() -> Array:
        with st.inference_mode():
            return np.array(model(x))  # lazily: the weights are inputs like all others

    run()
    np.testing.assert_array_equal(run(), expected())
    run.compiled = compiled  # type: ignore[attr-defined]
    return model, run, expected


def num_prepared(compiled: Any, x: Any) -> int:
    """Return how many commands that run once do so in the next run."""
    loaded = compiled.program.loaded
    timed = TimedProgram(loaded)
    entry = compiled._last
    _, inputs = entry.gather([x])
    timed.run(inputs)
    once = [c for command in loaded.executable.commands if isinstance(command, Once) for c in command.body]
    assert once
    steps = {id(step): k for k, step in enumerate(timed.steps)}
    return sum(int(timed.calls[steps[id(c)]]) for c in once)


# -- what is held apart --------------------------------------------------------------------------------------
def test_what_held_inputs_decide_is_made_apart() -> None:
    assert parts(parse_graph(SCALED)) == (["rsqrt", "mul"], ["broadcast", "mul"])


def test_without_held_inputs_a_graph_stays_as_it_is() -> None:
    graph = parse_graph(SCALED.replace(" frozen", ""))
    prologue, rest = hoist(graph, Lowerings())
    assert prologue is None and rest is graph


def test_neither_views_nor_what_is_larger_than_its_operands_is_kept() -> None:
    graph = parse_graph(
        'graph "g"(%0: f32[8,6] = "x", %1: f32[6] frozen = "a", %2: f32[8] frozen = "b") {\n'
        "  %3 = broadcast(%1) shape=(8,6) axes=(1,) : f32[8,6]\n"
        "  %4 = broadcast(%2) shape=(8,6) axes=(0,) : f32[8,6]\n"
        "  %5 = add(%3, %4) : f32[8,6]\n  %6 = mul(%0, %5) : f32[8,6]\n  return %6\n}"
    )
    assert parts(graph) == ([], ["broadcast", "broadcast", "add", "mul"])


def test_a_state_is_not_held_whatever_its_input_says() -> None:
    graph = parse_graph(
        'graph "g"(%0: f32[6] = "x", %1: f32[6] frozen = "a") {\n'
        "  %2 = exp(%1) : f32[6]\n  %3 = mul(%0, %2) : f32[6]\n  return %3\n  update %1 <- %3\n}"
    )
    assert parts(graph) == ([], ["exp", "mul"])


def test_a_call_with_effects_is_made_in_every_run() -> None:
    calls: list[float] = []

    def seen(a: Array) -> Array:
        calls.append(float(a[0]))
        return a

    w = st.tensor(np.arange(4, dtype=np.float32))
    f = st.compile(lambda x: x + st.host_call(seen, w, w))
    f(w * 2)
    f(w * 2)
    assert len(calls) == 2


def test_what_runs_on_the_host_is_kept_like_all_else() -> None:
    w = st.tensor(np.array([3, 1, 2], np.float32))
    f = st.compile(lambda x: x + st.host_call(np.flip, w, w, pure=True))
    for _ in range(2):
        np.testing.assert_array_equal(np.array(f(st.tensor(np.ones(3, np.float32)))), [3, 2, 4])
    assert any(isinstance(c, Host) for once in f.program.executable.commands[:1] for c in flat((once,)))


def test_held_inputs_survive_text_and_json_and_count_in_the_digest() -> None:
    graph = parse_graph(SCALED)
    plain = parse_graph(SCALED.replace(" frozen", ""))
    for form in (parse_graph(str(graph)), graph_from_json(graph_to_json(graph))):
        assert form == graph and str(form) == str(graph)
    assert graph.digest != plain.digest


def test_a_graph_with_a_prologue_gives_the_bits_of_one_without() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.random(s, dtype=np.float32) for s in ((8, 6), (6,), (6,))]
    results = []
    for text in (SCALED, SCALED.replace(" frozen", "")):
        program = compile_graph(parse_graph(text))
        types = program.graph.input_types
        for _ in range(2):
            (made,) = program.run([Storage.copy_of(a, t) for a, t in zip(arrays, types, strict=True)])
            results.append(made.array.copy())
    for result in results:
        np.testing.assert_array_equal(result, results[0])


def test_an_executable_with_a_prologue_survives_packing() -> None:
    made = compile_graph(parse_graph(SCALED)).executable
    again = unpack(pack(made))
    assert any(isinstance(c, Once) for c in again.commands)
    assert (again.commands, again.values) == (made.commands, made.values)
    assert (again.persistent_bytes, again.frozen) == (made.persistent_bytes, made.frozen) != (0, ())


def test_the_plan_says_what_is_prepared_once_and_how_much_is_kept() -> None:
    plan = compile_graph(parse_graph(SCALED)).plan
    assert "once, and again after one of 2 frozen inputs has changed" in str(plan)
    assert "persistent 64 B" in str(plan) and plan.memory["persistent_bytes"] == 64
    (once,) = (c for c in plan.commands if c["do"] == "once")
    assert all(kernel["times"] == 0 for kernel in once["body"])


def test_a_held_operand_is_packed_once_however_few_rows_read_it() -> None:
    text = (
        'graph "product"(%0: f32[8,512] = "x", %1: f32[512,768] HELD = "w") {\n'
        '  %2 = contract(%0, %1) spec="ab,bc->ac" dtype=none : f32[8,768]\n  return %2\n}'
    )
    held, plain = (compile_graph(parse_graph(text.replace(" HELD", word))) for word in (" frozen", ""))
    (once,) = (c for c in held.plan.commands if c["do"] == "once")
    assert [kernel["tactic"] for kernel in once["body"]] == ["pack"]
    assert held.executable.frozen == (1,) and held.executable.persistent_bytes >= 4 * 512 * 768
    assert not any(c["do"] == "once" for c in plain.plan.commands)


# -- when it runs --------------------------------------------------------------------------------------------
def test_the_second_run_prepares_nothing() -> None:
    model, run, _ = inference()
    compiled = run.compiled  # type: ignore[attr-defined]
    assert num_prepared(compiled, images()) == 0
    with st.no_grad():
        model.norm.running_var.mul_(2.0)
    run()
    assert num_prepared(compiled, images()) == 0
    with st.no_grad():
        model.norm.running_var.mul_(2.0)
    assert num_prepared(compiled, images()) > 0


def _through_numpy(model: Small) -> None:
    view = model.conv.weight.detach().numpy()
    view *= 2


def _through_dlpack(model: Small) -> None:
    np.from_dlpack(model.conv.weight.detach())[...] += 1


def _by_optimizer(model: Small) -> None:
    optimizer = optim.SGD(model.parameters(), lr=0.5)
    model(images(3)).sum().backward()
    optimizer.step()


def _by_compiled_step(model: Small) -> None:
    optimizer = optim.Adam(model.parameters(), lr=0.5)

    @st.compile
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    model.train()
    step(images(3))
    model.eval()


def _by_index(model: Small) -> None:
    with st.no_grad():
        model.out.weight[2] = 7.0


def _by_copy(model: Small) -> None:
    with st.no_grad():
        model.out.weight.copy_(model.out.weight * 3)


def _in_place(model: Small) -> None:
    with st.no_grad():
        model.norm.weight += 1


def _load_state_dict(model: Small) -> None:
    model.load_state_dict({k: v.numpy() * 2 for k, v in model.state_dict().items()})


def _another_parameter(model: Small) -> None:
    model.out.weight = nn.Parameter(st.tensor(np.ones((10, 12), np.float32)))


WAYS = [
    _through_numpy, _through_dlpack, _by_optimizer, _by_compiled_step, _by_index, _by_copy, _in_place,
    _load_state_dict, _another_parameter,
]  # fmt: skip


@pytest.mark.parametrize("write", WAYS, ids=[w.__name__.strip("_") for w in WAYS])
def test_whatever_writes_to_a_held_input_is_seen(write: Callable[[Small], None]) -> None:
    model, run, expected = inference()
    before = run()
    for _ in range(2):
        write(model)
        np.testing.assert_array_equal(run(), expected())
        np.testing.assert_array_equal(run(), expected())
    assert not np.array_equal(run(), before)


def test_writes_through_a_numpy_view_are_seen_as_long_as_it_lives() -> None:
    model, run, expected = inference()
    view = model.conv.weight.detach().numpy()
    for _ in range(3):
        view += 1
        np.testing.assert_array_equal(run(), expected())
    view += 1
    del view
    np.testing.assert_array_equal(run(), expected())
    np.testing.assert_array_equal(run(), expected())


def test_training_between_evaluations_is_seen_by_both() -> None:
    st.manual_seed(0)
    model = Small()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = images()
    evaluate = st.compile(lambda x: model(x))

    @st.compile
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    seen = []
    for _ in range(4):
        model.eval()
        with st.inference_mode():
            found, expected = np.array(evaluate(x)), np.array(model(x))
        np.testing.assert_array_equal(found, expected)
        seen.append(found)
        model.train()
        step(x)
    assert all(not np.array_equal(a, b) for a, b in itertools.pairwise(seen))


def test_two_programs_over_one_model_and_one_over_two_models() -> None:
    st.manual_seed(0)
    models = [Small().eval() for _ in range(2)]
    x = images()
    compiled = [st.compile(lambda x, m=m: m(x)) for m in models]
    twice = st.compile(lambda x: models[0](x) * 2)
    for turn in range(3):
        with st.inference_mode():
            found = [np.array(f(x)) for f in (*compiled, twice)]
            expected = [np.array(m(x)) for m in models]
        for a, b in zip(found, [*expected, expected[0] * 2], strict=True):
            np.testing.assert_array_equal(a, b)
        with st.no_grad():
            models[turn % 2].out.bias.add_(1.0)


def test_a_tensor_whose_gradient_is_made_inside_is_not_held() -> None:
    w = st.tensor(np.ones(4, np.float32), requires_grad=True)
    c = st.tensor(np.full(4, 2, np.float32))

    @st.compile
    def gradient(x: Any) -> Any:
        w.grad = None
        loss = (x * w * c).sum()
        loss.backward()
        return loss

    gradient(st.tensor(np.ones(4, np.float32)))
    held = {n.op.label for n in gradient.graph.inputs if n.op.frozen}
    assert not any("w" in label for label in held) and len(held) == 1


def test_a_program_that_prepares_is_checked_in_every_run() -> None:
    with settings.verify(True):
        model, run, expected = inference(batch=3)  # no other test's program is this one
        with st.no_grad():
            model.conv.weight += 1
        np.testing.assert_array_equal(run(), expected())
        model.conv.weight._storage.array[...] = 5  # past everybody who could notice
        with pytest.raises(VerifyError, match="prepared once would have come out otherwise"):
            run()


def test_an_index_out_of_range_in_what_runs_once_is_refused_in_every_run() -> None:
    table = st.tensor(np.arange(6, dtype=np.float32))
    index = st.tensor(np.array([1, 9]))
    f = st.compile(lambda x: x + table[index])
    for _ in range(2):
        with pytest.raises(IndexOutOfRangeError):
            f(st.tensor(np.ones(2, np.float32)))
    index[1] = 4
    np.testing.assert_array_equal(np.array(f(st.tensor(np.ones(2, np.float32)))), [2, 5])


def test_what_is_kept_lies_outside_the_arena() -> None:
    made = compile_graph(parse_graph(SCALED)).executable
    once = [c for c in made.commands if isinstance(c, Once)]
    written = {w for c in flat(tuple(once)) for w in getattr(c, "writes", ())}
    read = {r for c in made.commands if not isinstance(c, Once) for r in c.reads}  # type: ignore[union-attr]
    assert {made.values[id_].home for id_ in written & read} == {"persistent"}


class Scaled(nn.Module):  # type: ignore[misc, unused-ignore]
    """Products with weights of many sizes that are scaled ahead, and then packed."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        sizes = [128 - 8 * k for k in range(layers + 1)]
        shapes = itertools.pairwise(sizes)
        self.weights = nn.ParameterList([nn.Parameter(st.ones(*shape)) for shape in shapes])
        self.scales = nn.ParameterList([nn.Parameter(st.ones(n) / 128) for n in sizes[1:]])

    def forward(self, x: Any) -> Any:
        for w, g in zip(self.weights, self.scales, strict=True):
            x = st.tanh(x @ (w * g))
        return x


def test_what_is_prepared_step_by_step_takes_the_memory_of_one_step() -> None:
    """A scaled weight lives until its packed copy is there, and the next one takes its memory."""
    arenas = []
    for layers in (2, 8):
        run = st.compile(Scaled(layers))
        with st.no_grad():
            got = run(st.ones(16, 128))
            np.testing.assert_array_equal(run(st.ones(16, 128)).numpy(), got.numpy())
        assert any(isinstance(c, Once) for c in run.program.executable.commands)
        arenas.append(run.plan.memory["arena_bytes"])
    assert arenas[1] == arenas[0] < 2 * 128 * 128 * 4
