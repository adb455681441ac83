"""Errors that a size decides and a function catches hold for this size alone."""

import pytest
from capture_cases import Case, check
from capture_ways import SIZED_WAYS, WAYS, each_sized_way

import stratal as st

pytestmark = pytest.mark.filterwarnings("error")  # a guard notices, not an audit
# Each fits some of the sizes, and no bounds say which.
FITS = {
    "x @ ones(3)": "(x @ st.ones(3)).sum()", "ones(2, 3) @ x": "(st.ones(2, 3) @ x).sum()",
    "x + ones(3)": "(x + st.ones(3)).sum()", "x.add_(ones(3))": "(x * 1).add_(st.ones(3)).sum()",
    "view(-1, 2)": "x.view(-1, 2).sum()", "reshape(3, -1)": "x.reshape(3, -1).sum()",
    "reshape(2, 3)": "x.reshape(2, 3).sum()",
    "y[0:3] = x": "st.zeros(5).__setitem__(slice(0, 3), x) or x.sum()",
    "copy_": "st.zeros(3).copy_(x).sum()", "stack": "st.stack([x, st.ones(3)]).sum()",
    "cat": "st.cat([x.reshape(1, -1), st.ones(1, 3)]).sum()", "expand": "x.expand(4, 3).sum()",
    "broadcast_to": "st.broadcast_to(x, (2, 3)).sum()", "split": "st.split(x, [1, 2])[0].sum()",
    "chunk": "st.chunk(x, 3)[2].sum()", "unflatten": "x.unflatten(0, (3, -1)).sum()",
    "x[4]": "x[4] + x.sum()", "x[-4]": "x[-4] + x.sum()", "narrow": "x.narrow(0, 1, 3).sum()",
    "squeeze": "x.squeeze(0) * st.ones(2, 1, 1)", "where": "st.where(x > 0, st.ones(3), st.zeros(3)).sum()",
    "einsum": "st.einsum('i,i->', x, st.ones(3))", "dot": "st.dot(x, st.ones(3))",
    "outer and add": "(st.outer(x, x) + st.ones(3, 3)).sum()",
    "mse_loss": "st.nn.functional.mse_loss(x, st.zeros(3), reduction='sum') * 3",
    "linear": "st.nn.functional.linear(x, st.ones(1, 3)).sum()",
    "layer_norm": "st.nn.functional.layer_norm(x, (3,)).sum() + x.sum()", "topk": "st.topk(x, 3)[0].sum()",
    "unfold": "x.unfold(0, 4, 1).sum()", "list of that length": "x.sum() * [1, 2, 3, 4, 5][x.shape[0]]",
    "bytes of that length": "x.sum() * len(bytes(4 - x.shape[0]))",
    "a method of ints": "x.sum() * x.shape[0].bit_length()",
    "an operator of ints": "x.sum() * (x.shape[0] & 1)",
    "1 divided by it": "x.sum() * (1 // (x.shape[0] - 3))",
    "unpacked": "sum((k * y for k, y in enumerate(three(*x))), st.zeros(()))",
    "a number": "x.sum() * int(x.shape[0] == 3)",
    "range": "sum((x[k] for k in range(x.shape[0])), st.zeros(()))",
}  # fmt: skip
SIZES = (2, 3, 4, 6, 3, 5, 3, 8, 1, 2)
FUNCTIONS = """
count, box = st.zeros(1), Plain()
def three(a, b, c): return a, b, c
def op(x): return {op}
class Swallowing:
    def __enter__(self): pass
    def __exit__(self, *error): return True
def catch(x):
    {catch}
"""
BODY = """
y = catch(x)
count.add_(1)
box.last = y
return y + count.sum()
"""
EXCEPTS = """
    try: return op(x)
    except Exception: return x.sum() * 100
"""
CATCHES = {
    "suppressed": """
    y = x.sum() * 100
    with contextlib.suppress(Exception): y = op(x)
    return y
""",
    "returned": """
    y = x.sum() * 100
    try: y = op(x)
    finally: return y
""",
    "in a block": """
    with Swallowing(): return op(x)
    return x.sum() * 100
""",
    "in another function": """
    def inner():
        try: return op(x)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
            raise KeyError from error
    try: return inner()
    except KeyError: return x.sum() * 100
""",
    "in a generator": """
    def each():
        try: yield op(x)
        except Exception: yield x.sum() * 100
    return next(each())
""",
    "mapped": """
    try: return next(iter(map(op, [x])))
    except Exception: return x.sum() * 100
""",
    "excepts": EXCEPTS,
}


def case(op, catch):
    setup = FUNCTIONS.format(op=FITS[op], catch=catch.strip())
    return Case(setup, BODY, "pass", "box.last, count", f"st.arange(1.0, {SIZES}[i] + 1)", calls=len(SIZES))


@pytest.mark.sampled(16)
@each_sized_way
@pytest.mark.parametrize("op", FITS)
def test_an_error_that_is_caught_holds_for_its_size_alone(op, way):
    check(case(op, EXCEPTS), SIZED_WAYS[way])


SOME = ("x @ ones(3)", "view(-1, 2)", "x[4]", "a method of ints", "range", "1 divided by it")


@pytest.mark.parametrize("op", SOME)
@pytest.mark.parametrize("catch", CATCHES)
def test_however_it_is_caught(catch, op):
    check(case(op, CATCHES[catch]), WAYS["audited"])


def test_what_a_function_does_once_it_caught_an_error_is_taken_back():
    log = []

    @st.compile
    def f(x):
        try:
            return x.sum() * isinstance(x.shape[0], int)
        except Exception as error:
            log.append(error)
            return x.sum() * 100

    for n in SIZES:
        assert f(st.ones(n)).item() == n
    assert not log


OF_ITS_OWN = """
try:
    if x.ndim == 1: raise ValueError
except ValueError: return x * 2
return x
"""
LOOK_UPS = """
found = 0
for look in (lambda: {}["a"], lambda: Plain().none, lambda: [][0], lambda: next(iter(()))):
    try: look()
    except (LookupError, AttributeError, StopIteration): found += 1
return x * found
"""


@pytest.mark.parametrize("body", [OF_ITS_OWN, LOOK_UPS], ids=["of its own", "look-ups"])
def test_errors_that_no_size_decides_cost_no_capture(body):
    check(Case("", body, given="st.ones(i + 2)", calls=10, captures=(2,)), WAYS["audited"])
