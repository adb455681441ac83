"""A compiled function gives what it gives uncompiled, whatever Python value it reads, or names the line."""

import pytest
from capture_kinds import CARRIERS, READ, SETUP

import stratal as st
from stratal.base.errors import CaptureError
from stratal.tensor.capture.guards import Guards

pytestmark = pytest.mark.filterwarnings("ignore::stratal.tensor.capture.recaptures.RecompileWarning")
CALLS = 8
CHANGED = (2, 3, 5)  # before which calls the value becomes this number


class Program:
    """One program as text, run: a function, and a way to change what it reads."""

    def __init__(self, kind, carrier):
        setup, read, change = READ[kind]
        self.file = f"<program: {kind} in a {carrier}>"
        self.scope = {"__name__": "capture_program"}
        body = CARRIERS[carrier].format(read=read)
        exec(compile(f"{SETUP}\n{setup}\n{body}\n", self.file, "exec"), self.scope)
        self.change_code = compile(change, "<change>", "exec")
        self.f = self.scope["f"]

    def change(self, i):
        self.scope["i"] = i
        exec(self.change_code, self.scope)

    def results(self, function, calls=CALLS, changed=CHANGED):
        for k in range(calls):
            if k in changed:
                self.change(k)
            yield function(st.full((1,), 3.0)).tolist()


def expected(kind, carrier, **calls):
    program = Program(kind, carrier)
    return list(program.results(program.f, **calls))


def outcome(kind, carrier):
    """Return what a compiled program gave, or the error that refused it."""
    program = Program(kind, carrier)
    try:
        return list(program.results(st.compile(program.f, audit=False)))
    except CaptureError as error:
        assert any(line.file == program.file or "python3" in line.file for line in error.where)
        assert error.hint
        return None


UNWATCHED = list(READ)[list(READ).index("random") :]


@pytest.mark.sampled(20)
@pytest.mark.parametrize("kind", READ)
def test_what_a_function_reads_is_guarded_or_refused(kind):
    found = outcome(kind, "function")
    if kind in UNWATCHED:
        assert found is None
    else:
        assert found == expected(kind, "function")


PAIRS = [(kind, carrier) for carrier in list(CARRIERS)[1:] for kind in READ]


def check(kind, carrier):
    found = outcome(kind, carrier)
    assert (found is None) if kind in UNWATCHED else found is None or found == expected(kind, carrier)


@pytest.mark.parametrize("kind,carrier", PAIRS[::12])
def test_wherever_it_is_read(kind, carrier):
    check(kind, carrier)


@pytest.mark.slow
@pytest.mark.parametrize("kind,carrier", PAIRS)
def test_wherever_it_is_read_in_all_ways(kind, carrier):
    check(kind, carrier)


@pytest.mark.sampled(5)
@pytest.mark.filterwarnings("ignore::stratal.tensor.capture.audit.AuditWarning")
def test_audits_alone_notice_what_no_guard_watches(monkeypatch):
    monkeypatch.setattr(Guards, "failed", lambda self: None)
    watched = [kind for kind in READ if kind not in UNWATCHED]
    missed = []
    for kind in watched:
        program = Program(kind, "function")
        step = st.compile(program.f)
        found = list(program.results(step, calls=20, changed=(4,)))
        if found[-1] != expected(kind, "function", calls=20, changed=(4,))[-1]:
            missed.append(kind)
    assert len(missed) <= 0.05 * len(watched), missed
