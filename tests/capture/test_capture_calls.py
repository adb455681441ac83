"""What calls of compiled functions make, print and warn of; methods, frozen values and audits."""

import contextlib
import dataclasses
import io
import itertools
import random
import warnings

import pytest
from capture_ways import WAYS

import stratal as st
from stratal.base.errors import CaptureError
from stratal.tensor.capture.audit import AuditWarning

pytestmark = pytest.mark.filterwarnings("ignore::stratal.tensor.capture.recaptures.RecompileWarning")
not_audited = WAYS["not audited"]


def one(k):
    return st.full((1,), float(k))


class Config:
    def __init__(self, k):
        self.k = k


def test_what_is_printed_each_call_prints():
    f = st.compile(lambda x: (print("shape", x.shape), x + 1)[1])
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        for k in range(3):
            f(one(k))
    assert out.getvalue() == "shape (1,)\n" * 3


@dataclasses.dataclass
class Scaled:
    k: float
    last: object = None

    @st.compile
    def scale(self, x):
        return x * self.k

    @st.compile
    def keep(self, x):
        self.last = x * 2
        return x + 1


def test_instances_that_compare_equal_have_captures_of_their_own():
    a, b = Scaled(1.0), Scaled(1.0)
    assert [a.scale(one(1)).item(), b.scale(one(1)).item()] == [1, 1]
    b.k = 5.0
    assert [a.scale(one(1)).item(), b.scale(one(1)).item(), a.scale(one(1)).item()] == [1, 5, 1]


def test_values_stored_on_an_object_are_values_at_each_size():
    o = Scaled(1.0)
    for n in (2, 3, 4, 2, 5):
        o.keep(st.ones(n))
        assert (o.last + 1).tolist() == [3.0] * n


def test_a_compiled_function_calls_another():
    o = Config(1.0)
    inner = st.compile(lambda x: x * o.k)
    outer = st.compile(lambda x: inner(x) + 1)
    assert outer(one(1)).item() == 2
    o.k = 3.0
    assert [outer(one(1)).item(), inner(one(1)).item()] == [4, 3]


@pytest.mark.parametrize(
    "make", [lambda: iter([1]), itertools.count, lambda: (k for k in range(2)), io.StringIO, lambda: Config],
    ids=["iterator", "count", "generator", "stream", "class"],
)  # fmt: skip
def test_new_objects_that_are_used_up_are_not_shared_by_calls(make):
    f = not_audited(lambda x: (x * 1, make()))
    try:
        found = f(one(1))[1], f(one(1))[1]
    except CaptureError as error:
        assert "new" in error.rule and error.hint
    else:
        made = make()
        assert (found[0] is found[1]) == (found[0] is made), "made anew, but for the same"
        if made is not found[0] and hasattr(made, "__next__"):
            assert [next(x, None) for x in found] == [next(made, None)] * 2


# -- warnings ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("action", ["always", "default", "once", "module", "ignore"])
def test_warnings_are_given_by_each_call_as_filters_say(action):
    def program(way):
        @way
        def f(x):
            for _ in range(2):
                warnings.warn(f"told {way is not_audited}", UserWarning, stacklevel=1)
            return x * 1

        found = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter(action)
            for k in range(4):
                f(one(k))
                found.append([(w.category.__name__, str(w.message)[:4]) for w in caught])
        return found

    assert program(not_audited) == program(lambda f: f)


def test_a_warning_that_is_an_error_is_raised_by_each_call():
    done = []

    @not_audited
    def f(x):
        done.append(1)
        warnings.warn("told", UserWarning, stacklevel=1)
        done.append(2)
        return x * 1

    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        f(one(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            with pytest.raises(UserWarning, match="told"):
                f(one(1))
    assert done == [1, 2, 1, 1, 1]


# -- frozen values and audits --------------------------------------------------------------------------------
def test_frozen_values_are_taken_once_also_by_audits():
    items = iter(range(100))
    f = st.compile(lambda x: x + st.frozen(next, items) + st.frozen(random.random) * 0)
    assert [f(one(0)).item() for _ in range(12)] == [0.0] * 12
    assert f.audits > 2
    assert next(items) == 1


def test_audits_are_counted_and_can_be_left_out():
    f, g = st.compile(lambda x: x + 1), st.compile(lambda x: x + 1, audit=False)
    for _ in range(20):
        f(one(1))
        g(one(1))
    assert (f.audits, g.audits) == (5, 0)  # calls 2, 3, 5, 9, 17


def test_an_audit_warns_names_the_line_and_gives_the_right_result(monkeypatch):
    monkeypatch.setattr("stratal.tensor.capture.guards.Guards.failed", lambda self: None)
    o = Config(1.0)
    f = st.compile(lambda x: x * o.k)
    assert [f(one(1)).item(), f(one(1)).item()] == [1, 1]
    o.k = 2.0
    with pytest.warns(AuditWarning, match=r"const.*test_capture_calls\.py"):
        assert f(one(1)).item() == 2
    assert f.captures == 2
