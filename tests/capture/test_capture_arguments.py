# ruff: noqa: E501 (tables)
"""What is passed to a compiled function and returned by it: each argument for what it is, aliases, identity."""

import itertools

import pytest
from capture_cases import Case, check
from capture_ways import WAYS

import stratal as st
from stratal.base.errors import CaptureError

pytestmark = pytest.mark.filterwarnings("ignore::stratal.tensor.capture.recaptures.RecompileWarning")
SETUP = """
def one(k): return st.full((1,), float(k))
def layer(k):
    made = nn.Linear(1, 1, bias=False)
    with st.no_grad(): made.weight.fill_(float(k))
    return made
@dataclasses.dataclass
class Pair:
    a: object
    b: object = 0
def extended(batch):
    batch["loss"] = batch["x"] * 2
    return batch
def grown(items):
    items.append(items[0] + 1)
    return items
def parts(v):
    inner = v.values() if isinstance(v, dict) else v if isinstance(v, (list, tuple)) else ()
    return [v, *(p for x in inner for p in parts(x))]
"""

# -- passed: how an argument is made of a number `k`, and how it is used -------------------------------------
PASSED = {
    "object": ("Plain(k)", "c.k"), "dataclass": ("Pair(k)", "c.a"), "lambda": ("lambda: k", "c()"),
    "slice": ("slice(0, k)", "c.stop"), "set": ("{k}", "max(c)"), "frozenset": ("frozenset({k})", "max(c)"),
    "deque": ("collections.deque([k])", "c[0]"), "NumPy scalar": ("np.int64(k)", "int(c)"),
    "Decimal": ("decimal.Decimal(k)", "float(c)"), "float": ("float(k)", "float(c)"), "int": ("int(k)", "int(c)"),
    "text": ("str(k)", "float(c)"), "range": ("range(k)", "len(c)"), "list": ("[k, [k]]", "c[1][0]"),
    "dict": ("{'a': {'k': k}}", "c['a']['k']"), "bound method": ("Plain(k).__getattribute__", "c('k')"),
    "array": ("np.full(1, float(k))", "c"), "tensor": ("one(k)", "c"), "module": ("layer(k)", "c(one(1))"),
}  # fmt: skip
NUMBERS = (0, 1, 2, 1, *range(12))


@pytest.mark.parametrize("kind", PASSED)
def test_each_argument_is_taken_for_what_it_is(kind):
    make, use = PASSED[kind]
    setup = f"{SETUP}def make(k): return {make}"
    given = f"one(3), make({NUMBERS}[i])"
    check(Case(setup, f"x * {use}", given=given, parameters="x, c", calls=len(NUMBERS)), WAYS["audited"])


def test_a_used_up_argument_is_refused():
    f = st.compile(lambda x, items: x * next(items))
    with pytest.raises(CaptureError, match="iterator from outside"):
        f(st.ones(1), iter([1, 2]))


def test_keyword_and_variable_arguments():
    f = st.compile(lambda x, *rest, **named: x * named["s"] + len(rest))
    x = st.ones(1)
    assert [f(x, s=2.0).item(), f(x, 1, 2, s=3.0).item(), f(x, s=4.0).item()] == [2, 5, 4]


# -- aliases -------------------------------------------------------------------------------------------------
GRADIENT = "w = nn.Parameter(one(2))"
BASES = "b1, b2 = st.zeros(2), st.zeros(2)"
VIEWS = "(b1[:1], b2[:1], b2[:1], b2[1:])"
ALIASES = {
    "the same tensor twice, and two": Case(
        "a, b = one(1), one(2)", "x - y", given="*((a, a), (a, a), (a, b), (b, a), (a, a))[i]", parameters="x, y"),
    "also read elsewhere": Case("h = one(5)", "x - h", given="(h, h, one(7), h, one(8), h)[i]", calls=6),
    "a weight": Case(
        "net = layer(2)", "net(x)", given="(net.weight, st.full((1, 1), 3.0), net.weight)[i]", calls=3),
    "written and also read elsewhere": Case(
        "h = one(5)", "x.add_(1)\nreturn h * 1", given="(one(7), h, one(1), h)[i]", calls=4),
    "gradient of a parameter": Case(
        GRADIENT, "g + w.grad", "w.grad = one(1 + i // 3)", given="(w.grad, one(10), w.grad)[i % 3]",
        parameters="g", calls=6, at=(0, 3)),
    "view that is written": Case(BASES, "x.add_(1)", "pass", "b1, b2", f"{VIEWS}[i]", calls=4),
    "view that is written after a whole": Case(BASES, "x.add_(1)", "pass", "b1, b2", f"(st.zeros(1), *{VIEWS})[i]"),
    "dicts in another order": Case(
        "", "{k: v * 2 for k, v in d.items()}", "pass", "list(results[-1])",
        "{k: one(1) for k in ('ab', 'ba')[i % 2]}", "d", calls=4),
}  # fmt: skip


@pytest.mark.parametrize("name", ALIASES)
def test_arguments_that_are_one_are_one(name):
    case = ALIASES[name]
    check(case._replace(setup=f"{SETUP}{case.setup}"), WAYS["audited"])


@pytest.mark.parametrize("order", list(itertools.product([True, False], repeat=4)))
@pytest.mark.parametrize("kind", ["list", "dict"])
def test_an_argument_that_is_a_container_found_elsewhere(kind, order):
    entry, total = (
        ("held.append(float(len(items)))", "sum(held)")
        if kind == "list"
        else ("held[len(items)] = 1.0", "len(held)")
    )
    body = f"{entry}\nreturn x + 10 * len(items) + 100 * {total}"
    given = f"items if {order}[i] else {kind}(), st.full((1,), float(i))"
    seen = "list(items), list(arguments[0])"
    check(
        Case(f"items = {kind}()", body, "items.clear()", seen, given, "held, x", 4, range(4)),
        WAYS["not audited"],
    )


GRADIENTS = {
    "made": "(w * x).sum().backward()", "made anew": "setattr(w, 'grad', None), (w * x).sum().backward()",
    "assigned": "setattr(w, 'grad', x * 2)", "linked": "setattr(w, 'grad', x)", "removed": "setattr(w, 'grad', None)",
    "changed in place": "w.grad.mul_(3)", "read": "x.mul_(w.grad)",
}  # fmt: skip
GRADED = """
kept = [one(k + 1).requires_grad_(True) for k in range(2)]
def graded(k):
    w = kept[k % 2] if k < 4 else one(k).requires_grad_(True)
    if w.grad is None: w.grad = one(10 * k + 1)
    return w
"""


@pytest.mark.parametrize("kind", GRADIENTS)
def test_gradients_of_arguments_are_those_of_the_call(kind):
    setup = f"{SETUP}{GRADED}def act(w, x): return {GRADIENTS[kind]}"
    seen = "arguments[1], arguments[0].grad, arguments[0].grad is arguments[1]"
    case = Case(setup, "(act(w, x), x * 1)[1]", "pass", seen, "graded(i), one(i + 2)", "w, x", calls=6)
    check(case, WAYS["not audited"])


# -- returned: tensors and containers that are passed are returned themselves --------------------------------
RETURNED = {
    "result and argument": ("(x + 1, x)", "one(k)"), "argument changed in place": ("x.add_(1)", "one(k)"),
    "argument alone": ("x", "one(k)"), "dict extended": ("extended(x)", "{'x': one(k)}"),
    "dict in a dict": ("{'a': extended(x), 'n': len(x)}", "{'x': one(k)}"),
    "list extended": ("grown(x)", "[one(k)]"), "nn.Identity": ("f = nn.Identity()", "one(k)"),
    "Dropout in eval": ("f = nn.Dropout().eval()", "one(k)"), "float()": ("x.float()", "one(k)"),
    "contiguous()": ("x.contiguous()", "one(k)"), "nested": ("[x, [x, x + 1]]", "one(k)"),
    "nothing": ("None", "one(k)"), "named tuple": ("collections.namedtuple('N', 'a b')(x, x * 2)", "one(k)"),
    "a result twice": ("[x * 2] * 2", "one(k)"),
}  # fmt: skip
EACH = range(1, 9)
SAME = "[[r is a for a in parts(arguments[0])] for r in parts(results[-1]) if isinstance(r, (st.Tensor, dict, list))]"


@pytest.mark.parametrize("kind", RETURNED)
def test_results_are_the_calls_own(kind):
    body, make = RETURNED[kind]
    seen = f"{SAME}, list(results[-1]) if isinstance(results[-1], dict) else None"
    check(
        Case(
            f"{SETUP}def make(k): return {make}",
            body,
            "results.clear()",
            seen,
            "make(i + 1)",
            calls=6,
            at=EACH,
        ),
        WAYS["audited"],
    )


class Pair:
    def __init__(self, a, b):
        self.a, self.b = a, b


def test_new_objects_are_made_by_each_call():
    f = st.compile(lambda x: Pair(x * 2, [x]))
    made = [f(st.full((1,), float(k))) for k in range(6)]
    assert [p.a.item() for p in made] == [0, 2, 4, 6, 8, 10]
    assert len({id(p) for p in made}) == 6


def test_parameters_are_returned_themselves():
    net = st.nn.Linear(1, 1)
    f = st.compile(lambda x: (net(x), net.weight))
    assert all(f(st.ones(1, 1))[1] is net.weight for _ in range(4))
