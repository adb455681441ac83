# ruff: noqa: E501 (tables)
"""What no compiled function can repeat is refused with a hint, and the refused call leaves nothing behind."""

import sys

import numpy as np
import pytest
from capture_cases import Case, plain
from capture_ways import WAYS

import stratal as st
from stratal import nn
from stratal.base.errors import CaptureError

pytestmark = pytest.mark.filterwarnings("error")  # a guard notices, not an audit
FOREIGN = "class Array: __array__ = np.ndarray.__array__\na = Array()"
LOADER = "loader = st.data.DataLoader(st.data.TensorDataset(np.ones(6, np.float32)), 2, shuffle=True)"
STREAM = "with contextlib.redirect_stdout(io.StringIO()): return x * random.random()"
GROUPS = "opt = optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1); more = nn.Linear(2, 2)"
DEEPER = "K = 1\ndef deeper(n): return deeper(n + 1)"
# a set-up, a body, and what is as it was before
REFUSED = {
    "st.load": ("", "st.load(folder / 'a.stratal')['x'] * x"),
    "load_tensors": ("", "st.formats.load_tensors(folder / 'a.safetensors')['x'] * x"),
    "st.save": ("", "st.save({'x': x}, folder / 'b.stratal')"),
    "np.load": ("", "st.tensor(np.load(folder / 'a.npy')) * x"),
    "np.loadtxt": ("", "x * float(np.loadtxt(folder / 'a.txt'))"),
    "np.fromfile": ("", "st.tensor(np.fromfile(folder / 'a.bin', np.float32)) * x"),
    "np.save": ("", "np.save(folder / 'c.npy', np.ones(1))"), "tofile": ("", "np.ones(1).tofile(folder / 'c.bin')"),
    "clock": ("", "x * (np.datetime64('now', 's') > np.datetime64('2020'))"),
    "loader": (LOADER, "[a * x for (a,) in loader]"), "list of a loader": (LOADER, "list(loader)"),
    "another library's array": (FOREIGN, "x * st.tensor(a)"), "init": ("", "nn.init.normal_(st.empty(2)) * x"),
    "new layer": ("", "nn.Linear(2, 2)(x)"),
    "reset layer": ("net = nn.Linear(2, 2)", "(net.reset_parameters(), net(x))[1]", "net.weight.tolist()"),
    "finalizer": ("class Dies:\n    def __del__(self): ...", "(Dies(), x)[1]"),
    "lock": ("lock = threading.Lock()", "x * lock.locked()"),
    "redirected output": ("", STREAM, "id(sys.stdout)"),
    "parameter group": (GROUPS,
                        "opt.add_param_group({'params': more.parameters()})\nreturn x * random.random()", "len(opt.param_groups)"),
    "seed of a generator": ("g = st.Generator()", "g.manual_seed(4)\nreturn x * random.random()", "g.get_state().tolist()"),
    "end of the stack": (DEEPER, "with contextlib.suppress(RecursionError): deeper(0)\nreturn x * K"),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("files")
    st.save({"x": st.ones(2), "k": 1}, made / "a.stratal")
    st.formats.save_tensors(made / "a.safetensors", {"x": np.ones(2)})
    np.save(made / "a.npy", np.ones(2))
    np.savetxt(made / "a.txt", np.ones(1))
    np.ones(2, np.float32).tofile(made / "a.bin")
    return made


@pytest.mark.parametrize("name", REFUSED)
def test_what_depends_on_more_than_state_is_refused(name, folder):
    setup, body, *seen = REFUSED[name]
    f, _, _, look = Case(setup, body, "pass", *seen).program([], [], folder)
    before = look(), sorted(folder.iterdir())
    with pytest.raises(CaptureError) as refused:
        st.compile(f)(st.ones(2))
    assert refused.value.hint and (look(), sorted(folder.iterdir())) == before


# -- iterators from outside ----------------------------------------------------------------------------------
ITERATORS = {
    "iter": "iter([1.0, 2.0, 3.0])", "reversed": "reversed([1.0, 2.0, 3.0])",
    "zip": "zip([1.0, 2.0], [3.0, 4.0], strict=True)", "map": "map(float, [1, 2, 3])",
    "filter": "filter(None, [1.0, 2.0])", "enumerate": "enumerate([1.0, 2.0])",
    "chain": "itertools.chain([1.0], [2.0])", "islice": "itertools.islice([1.0, 2.0], 2)",
    "generator": "(float(k) for k in range(3))", "dict": "iter({1.0: 2.0})",
    "groupby": "itertools.groupby([1.0, 1.0])",
}  # fmt: skip
CONSUMED = {
    "next": "next(it)", "next with a default": "next(it, None)", "list": "list(it)", "star": "[*it]",
    "for": "[None for _ in it]", "unpacked": "(lambda first, *rest: first)(*it)", "sum": "len(tuple(it))",
    "any": "any(it)", "zip": "list(zip(it, [1.0], strict=False))", "map": "list(map(str, it))",
    "yield from": "list(passed_on(it))", "method": "it.__next__()", "sorted": "len(sorted(it, key=str))",
}  # fmt: skip


@pytest.mark.parametrize("way", CONSUMED)
@pytest.mark.parametrize("kind", ITERATORS)
def test_an_iterator_from_outside_is_refused_however_it_is_used(kind, way):
    make = ITERATORS[kind]
    setup = (
        f"kept, box = {make}, [{make}]\ndef passed_on(it): yield from it\ndef use(it): return {CONSUMED[way]}"
    )
    for source in ("kept", "box[0]"):
        case = Case(setup, f"(use({source}), x * 1)[1]", seen=f"len([*{source}]), len([*{make}])")
        f, _, _, look = case.program([], [])
        with pytest.raises(CaptureError, match="iterator from outside"):
            WAYS["not audited"](f)(st.ones(1))
        left, all_items = look()
        assert left == all_items, "the refused call has taken an item"


@pytest.mark.parametrize("take", ["it.__next__", "functools.partial(next, it)"])
@pytest.mark.parametrize("kind", ITERATORS)
def test_a_bound_next_of_an_iterator_from_outside_is_refused(kind, take):
    f, *_ = Case(f"it = {ITERATORS[kind]}\ntake = {take}", "(take(), x * 1)[1]").program([], [])
    with pytest.raises(CaptureError, match="iterator from outside"):
        WAYS["not audited"](f)(st.ones(1))


# -- arrays of NumPy's among the arguments -------------------------------------------------------------------
COMPUTED = {
    "method": "a.std()", "function": "np.mean(a)", "operator": "a / 2", "between arrays": "a * a", "item": "a[0]",
    "item set": "a.__setitem__(0, 5.0)", "in place": "a.__iadd__(1)", "float": "float(a[0])",
    "iteration": "[None for _ in a]", "class": "isinstance(a, np.ndarray)", "dtype": "str(a.dtype)",
    "identity": "a is None", "truth": "bool(a.all())",
}  # fmt: skip


@pytest.mark.parametrize("kind", COMPUTED)
def test_what_numpy_computes_of_an_argument_is_refused(kind):
    case = Case(f"def compute(a): return {COMPUTED[kind]}", "(compute(a), x * 1)[1]", parameters="x, a")
    f, *_ = case.program([], [])
    a = np.array([1.0, 2.0])
    with pytest.raises(CaptureError, match="array that is an argument"):
        WAYS["not audited"](f)(st.ones(1), a)
    assert a.tolist() == [1.0, 2.0]


# -- refusals that are caught --------------------------------------------------------------------------------
ASKED = {
    "bool": "bool(x.sum() > 0)", "float": "float(x.sum())", "int": "int(x.sum())", "item": "x.sum().item()",
    "index": "[0.0, 1.0, 2.0, 3.0][x.sum().astype(st.int64)]", "list": "x.tolist()", "array": "np.asarray(x)",
    "key of max": "max([x, x * 2], key=lambda t: float(t.sum()))", "size that is data": "st.unique(x)",
    "random": "random.random()", "clock": "time.time()",
}  # fmt: skip
CAUGHT = {
    "suppress": "with contextlib.suppress(Exception):\n ask(x)\n return x * 2\nreturn x * 0",
    "narrow": "try: ask(x)\nexcept (TypeError, ValueError, RuntimeError): return x * 0\nreturn x * 2",
    "finally": "try:\n ask(x)\n _ = x * 2\nfinally: return x * 0",
    "again": "for _ in range(3):\n try:\n  ask(x)\n  return x * 2\n except Exception: continue\nreturn x * 0",
}  # fmt: skip


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("caught", CAUGHT)
def test_a_refusal_that_the_function_catches_is_raised(asked, caught):
    """Uncompiled, what is asked for is there, so what the function does without it is another program."""
    f, *_ = Case(f"def ask(x): return {ASKED[asked]}", CAUGHT[caught]).program([], [])
    compiled = st.compile(f)
    for _ in range(3):
        with pytest.raises(CaptureError):
            compiled(st.full((1,), 3.0))


def test_a_state_dict_of_values_that_a_function_computes_is_refused_by_its_name():
    net = nn.Linear(2, 2)
    before = net.weight.tolist()

    @st.compile
    def f(x):
        net.load_state_dict({"weight": net.weight * x, "bias": net.bias * x})
        return net(x)

    with pytest.raises(CaptureError, match="load_state_dict") as refused:
        f(st.full((2,), 3.0))
    assert "copy_" in refused.value.hint and net.weight.tolist() == before

    @st.compile
    def g(x):
        with st.no_grad():
            net.weight.copy_(net.weight * x)
        return net(x).detach()

    g(st.full((2,), 3.0))
    np.testing.assert_array_equal(np.asarray(net.weight), np.float32(3) * np.asarray(before, np.float32))


def _victim():
    return 1


@pytest.mark.parametrize("install", [sys.settrace, sys.setprofile])
def test_captures_inside_a_tracing_function_are_refused(install):
    f, refused = st.compile(lambda x: x * 2), []

    def tracer(frame, event, arg):
        if frame.f_code is _victim.__code__ and event == "call":
            try:
                f(st.ones(1))
            except CaptureError as error:
                refused.append(error)

    before = sys.gettrace(), sys.getprofile()
    install(tracer)
    try:
        _victim()
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
    assert len(refused) == 1 and f(st.ones(1)).item() == 2


UNWOUND = """
global WRITES
WRITES = 0
class Unwound:
    depth, exits = 0, 0
    def __init__(self):
        self.log, self.table, self.box = [], {"inner": {"count": 0}}, types.SimpleNamespace(count=0)
    def write(self):
        global WRITES
        WRITES += 1
        self.exits += 1
        self.log.append(self.exits)
        self.table["inner"]["count"] += 1
        self.box.count += 1
    def __enter__(self):
        self.depth += 1
    def __exit__(self, *error):
        self.depth -= 1
        self.write()
state, iterator = Unwound(), iter(range(9))
def refused(): next(iterator)
"""
INNER = """
count = 0
def inner():
    nonlocal count
    try: refused()
    finally:
        count += 1
        inner.count = count
        state.write()
inner()
"""
BLOCKS = {
    "with": "with state: refused()", "finally": "try: refused()\nfinally: state.write()",
    "except": "try: refused()\nexcept BaseException:\n state.log = [*state.log, 1]\n state.write()\n raise",
    "caught": "try: refused()\nexcept Exception: state.exits += 1\nstate.write()", "inner": INNER,
}  # fmt: skip


@pytest.mark.parametrize("block", BLOCKS)
def test_what_blocks_write_while_a_refusal_passes_is_taken_back(block):
    seen = "WRITES, state.depth, state.exits, state.log, state.table, state.box.count, iterator"
    f, _, _, look = Case(UNWOUND, f"{BLOCKS[block]}\nreturn x * 1", seen=seen).program([], [])
    compiled, before = st.compile(f), plain(look())
    for turn in range(3):
        with pytest.raises(CaptureError, match="iterator"):
            compiled(st.ones(2))
        assert plain(look()) == before
        assert next(before[-1]) == turn
