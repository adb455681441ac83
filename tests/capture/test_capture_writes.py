# ruff: noqa: E501 (tables)
"""State that functions write: each call writes it, and returns what stood there or stands there now."""

import itertools
import threading

import pytest
from capture_cases import Case, check
from capture_ways import WAYS, each_way
from waiting import joined

import stratal as st
from stratal import nn

pytestmark = pytest.mark.filterwarnings("error")  # a guard notices, not an audit

# -- what stands there already: the act, what undoes it, what is seen ----------------------------------------
OWNER = """
global STANDING
STANDING = 1
class Slotted: __slots__ = ("a",)
class Kind: c = 1
o = Kind()
o.flag, o.d, o.e, o.q, o.n, o.a, o.l, o.s = True, {"k": 1}, [], collections.deque(), 3, {1}, [7], Slotted()
o.s.a = 1
"""
REWRITTEN = {
    "attribute": ("o.flag = True", "o.flag = False", "o.flag"),
    "setattr": ("setattr(o, 'flag', 1)", "o.flag = 0", "o.flag"),
    "slot": ("setattr(o.s, 'a', 1)", "o.s.a = 0", "o.s.a"),
    "global": ("global STANDING; STANDING = 1", "globals().update(STANDING=5)", "STANDING"),
    "item": ("o.d['k'] = 1", "o.d.update(k=7)", "o.d['k']"),
    "attribute dict": ("o.__dict__['n'] = 3", "o.__dict__.update(n=4)", "o.n"),
    "clear": ("o.e.clear()", "o.e.append(0)", "len(o.e)"),
    "clear of a deque": ("o.q.clear()", "o.q.append(0)", "len(o.q)"),
    "add": ("o.a.add(1)", "o.a.discard(1)", "len(o.a)"), "slice": ("o.l[:] = [7]", "o.l.append(8)", "[*o.l]"),
    "delete": ("del o.e[2:]", "o.e.extend('abc')", "len(o.e)"),
    "class attribute": ("type(o).c = 1", "type(o).c = 2", "o.c"),
}  # fmt: skip


@each_way
@pytest.mark.parametrize("kind", REWRITTEN)
def test_what_stands_there_already_is_written_again(kind, way):
    act, undo, seen = REWRITTEN[kind]
    check(Case(OWNER, f"{act}\nreturn x * 2", undo, seen, calls=9, at=(5, 7)), WAYS[way])


EQUAL = {
    "sign of zero": ("0.0", "-0.0"), "bool": ("1", "True"), "float": ("1", "1.0"), "complex": ("0j", "complex(0, -0.0)"),
    "tuple": ("(1,)", "(1.0,)"), "tuple of zero": ("(0.0,)", "(-0.0,)"),
}  # fmt: skip


@pytest.mark.parametrize("kind", EQUAL)
@pytest.mark.parametrize("owner", ["variable", "thing.k", "table['k']", "items[0]"])
@pytest.mark.filterwarnings("ignore::stratal.tensor.capture.recaptures.RecompileWarning")
def test_an_equal_value_of_another_kind_is_written(owner, kind):
    was, now = EQUAL[kind]
    write = "nonlocal variable; variable = thing.k = table['k'] = items[0] ="
    setup = "thing, table, items, variable = Plain(), {}, [None], None"
    case = Case(
        setup, f"{write} {now}\nreturn x * 1", f"{write} {was}", f"repr({owner})", at=range(3), calls=3
    )
    check(case, WAYS["not audited"])


# -- state that is returned ----------------------------------------------------------------------------------
STATES = {
    "item": ("d = {'h': st.zeros(1)}", "d['h']"), "attribute": ("o = Plain(st.zeros(1))", "o.k"),
    "slot": ("class Holder: __slots__ = ('h',)\no = Holder(); o.h = st.zeros(1)", "o.h"),
    "module": ("m = types.ModuleType('made'); m.h = st.zeros(1)", "m.h"), "closure": ("cell = st.zeros(1)", "cell"),
}  # fmt: skip


@each_way
@pytest.mark.parametrize("stored", [False, True], ids=["returned", "stored"])
@pytest.mark.parametrize("kind", STATES)
def test_what_stood_there_before_is_each_calls_own(kind, stored, way):
    setup, state = STATES[kind]
    body = f"{'nonlocal cell' if kind == 'closure' else 'pass'}\nold = {state}\n{state} = old + x\n"
    body += "log.append(old)\n" * stored + "return old"
    check(Case(f"{setup}\nlog = []", body, seen=f"{state}, log", calls=8), WAYS[way])


VIEWED = ("t[:1]", "t[:]", "t.detach()", "t.view(2)", "t.data", "t.view(2, 1).T")


@each_way
@pytest.mark.parametrize("view", VIEWED)
def test_views_of_state_that_are_returned_show_what_later_calls_write(view, way):
    change = "results[0].add_(5.0)"
    check(Case("t = st.zeros(2)", f"t.add_(x)\nreturn {view}", change, "t, results", at=(4,)), WAYS[way])


GRADIENT = "p = nn.Parameter(st.ones(1)); opt = optim.SGD([p], lr=1.0); log = []"
BACKWARD = "opt.zero_grad()\n(p * x).sum().backward()\n"


@each_way
@pytest.mark.parametrize("stored", [False, True], ids=["returned", "stored"])
def test_a_gradient_that_is_returned_is_the_tensors_own(stored, way):
    body, grads = (
        (BACKWARD + "log.append(p.grad)", "log") if stored else (BACKWARD + "return p.grad", "results")
    )
    change, seen = f"{grads}[-1].mul_(0.1); opt.step()", f"p, {grads}[-1] is p.grad, {grads}"
    check(Case(GRADIENT, body, change, seen, "st.full((1,), float(i))", calls=7, at=range(1, 7)), WAYS[way])


# -- state that calls carry on -------------------------------------------------------------------------------
PREVIOUS = "old = s['h']\ns['h'] = old + x\nprev['h'] = old\nreturn old"
REFILLED = "old = s['l'][0]\ns['l'].clear()\ns['l'].extend([old + x, old])\nreturn old"
ARGUMENT = "s, prev = {'h': st.zeros(1), 'l': [st.zeros(1)]}, {}"
OBJECTS = """
class Items:
    __slots__ = ("v", "w")
class Kind: v = 1.0
items = [Items(), Kind()]
items[0].v = 1.0
"""
SET_AND_GET = """
list(map(setattr, iter(items), itertools.repeat('w'), (x, x * 2)))
return x * sum(map(getattr, (b for b in items), ('v' for _ in items)))
"""
REMEMBERING = """
class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", st.zeros(2))
    def forward(self, x):
        self.h = self.h + x
        return self.h * 1
net = Remembering()
"""
ANYTHING = """
class Anything:
    def __init__(self): self._known = {"k": 2.0}
    def __getattr__(self, name): return self._known[name]
shown = st.ones(3)
"""
METRICS = "first, second, held = st.metrics.MeanMetric(), st.metrics.MeanMetric(), st.zeros(3)"
UPDATES = """
first.update(x)
second.update(y * 2)
x.add_(1)
first.update(x)
held.copy_(x)
second.update(held)
held.mul_(0)
return x
"""
LOSSES = """
loss = ((w * x) ** 2).sum()
opt.zero_grad()
loss.backward()
opt.step()
losses.append(loss.detach())
"""
METRIC = "box, metric = Plain(2.0), st.metrics.MeanMetric()"
SQUARED = "metric = st.metrics.MeanSquaredError()"
TRAINED = "losses, w = [], nn.Parameter(st.ones(1)); opt = optim.SGD([w], lr=0.1)"
IN_BOTH_WAYS = {
    "tensor in an argument": Case(ARGUMENT, PREVIOUS, "pass", "s, prev", "s, prev, st.ones(1)", "s, prev, x"),
    "list in an argument": Case(ARGUMENT, REFILLED, "pass", "s, prev", "s, prev, st.ones(1)", "s, prev, x"),
    "attributes set by functions in C": Case(
        OBJECTS, SET_AND_GET, "items[0].v = (i - 1) * 2.0; Kind.v = (i - 1) % 3.0", "[b.w for b in items]",
        "st.full((1,), i)", at=range(1, 5)),
    "buffer": Case(REMEMBERING, "f = net", "pass", "net.h", "st.ones(2) * i", calls=6, captures=range(3)),
    "buffer that is replaced": Case(
        REMEMBERING, "f = net", "net.h = st.ones(2)", "net.h", "st.ones(2) * i", calls=7, at=(6,)),
}  # fmt: skip
AUDITED = {
    "metric beside a number that varies": Case(
        METRIC, "out = x * box.k\nmetric.update(x)\nreturn (out,)", "box.k += 1.0", "metric.compute()",
        "st.arange(3.0) + i", at=range(1, 5)),
    "argument of any attribute": Case(
        ANYTHING, "(p.mul_(a.k), x + v[0])[1]", "pass", "arguments[3]",
        "st.arange(3.0) + i, Anything(), shown[1:], st.ones(3)", "x, a, v, p"),
    "array of objects": Case(
        "items = np.empty(2, object); items[0] = st.zeros(2)", "items.__setitem__(0, items[0] + x)", "pass",
        "*items", "st.ones(2)"),
    "metrics of tensors that are written": Case(
        METRICS, UPDATES, "pass", "first.compute(), second.compute()", "st.arange(3.0) + i, st.ones(3) * i",
        "x, y", captures=(1,), rtol=1e-7),
    "variable of a closure": Case("k = 0", "nonlocal k\nk += 1\nreturn x * k", seen="k", calls=4),
    "array": Case("a = np.zeros(2)", "a[0] += 1\nreturn x + float(a[0])", seen="a", calls=4),
    "losses": Case(TRAINED, LOSSES, "pass", "losses", "st.ones(1)", captures=(1,), rtol=1e-5),
    "metric": Case(
        SQUARED, "metric.update(x * 2, y)\nreturn x", "pass", "metric.compute()",
        "st.full((1,), i), st.ones(1)", "x, y", captures=(1,)),
}  # fmt: skip
CARRIED = [*itertools.product(IN_BOTH_WAYS, WAYS), *itertools.product(AUDITED, ["audited"])]


@pytest.mark.filterwarnings("ignore::stratal.tensor.capture.recaptures.RecompileWarning")
@pytest.mark.parametrize(("name", "way"), CARRIED)
def test_state_is_carried_from_call_to_call(name, way):
    check((IN_BOTH_WAYS | AUDITED)[name], WAYS[way])


@each_way
def test_attributes_of_a_thread_are_its_own(way):
    def run(compiled):
        local, out = threading.local(), []
        local.h, local.k = st.zeros(1), 1.0

        def f(x):
            local.h = local.h + x * local.k
            return local.h

        f = compiled(f)
        found = [f(st.ones(1)).item() for _ in range(5)]

        def work():
            local.h, local.k = st.ones(1) * 100, 2.0
            out.extend([f(st.ones(1)).item(), local.h.item()])

        thread = threading.Thread(target=work)
        thread.start()
        joined(thread)
        return [found, out, local.h.item()]

    assert run(WAYS[way]) == run(lambda f: f)


def test_statistics_that_a_scan_updates_carry_no_history():
    norm, rows = nn.BatchNorm1d(1), st.arange(6.0).reshape(2, 3)

    def f(x):
        return st.scan(lambda c, r: (c + norm(r[:, None]).sum(), c), x.sum(), rows)[0]

    compiled = st.compile(f)
    for k in range(5):
        compiled(st.full((1,), float(k)))
    assert compiled.captures == 1 and norm.running_mean.grad_fn is None
    f(st.ones(1))
    assert norm.running_mean.grad_fn is None


# -- what a function writes, each call writes ----------------------------------------------------------------
WRITER = """
class Writer: pass
o = Writer()
o.k, o.odd, o.h, o.log, o.table, o.seen = 0, False, st.zeros(1), [], {}, set()
o.recent = collections.deque(maxlen=2)
"""
ACTS = {
    "counter": "o.k += 1\nreturn x * o.k", "toggle": "o.odd = not o.odd\nreturn x if o.odd else -x",
    "carried tensor": "o.h = o.h * 0.5 + x\nreturn o.h",
    "cache": "if 'w' not in o.table: o.table['w'] = x * 2\nreturn o.table['w'] + x",
    "None at first": "o.h = x if o.k == 0 else o.h + x\no.k = 1\nreturn o.h * 1",
    "append": "o.log.append(x * 2)\nreturn x", "append and look": "o.log.append(x * 2)\nreturn o.log[-1] + len(o.log)",
    "append numbers": "o.log.append(1)\nreturn x * len(o.log)", "key": "o.table.update(loss=x * 2)\nreturn x",
    "item": "o.table['loss'] = x * 2\nreturn x", "set": "o.seen.add(o.k)\nreturn x",
    "deque": "o.recent.append(x + 1)\nreturn x", "deque, looked at": "o.recent.append(x + 1)\nreturn sum(o.recent)",
    "pop": "o.log.append(x)\no.log.append(x + 1)\nreturn o.log.pop(0)",
    "clear": "o.log.clear()\no.log.append(x)\nreturn x", "setattr": "setattr(o, 'new', x * 3)\nreturn x",
    "deleted": "setattr(o, 'new', 1)\ndelattr(o, 'new')\nreturn x",
    # by functions in C that call others
    "mapped append": "any(map(o.log.append, [1, x]))\nreturn x",
    "mapped extend": "[*map(o.log.extend, [[x]])]\nreturn x",
    "mapped item": "[*map(o.table.__setitem__, ['k'], [x])]\nreturn x",
    "mapped setattr": "[*map(setattr, [o], ['k'], [x])]\nreturn x",
    "mapped delattr": "hasattr(o, 'k') and [*map(delattr, [o], ['k'])]\nreturn x",
}  # fmt: skip
REPLAYED = ("append", "carried tensor", "key", "item", "deque", "clear", "setattr")  # at no capture for each


@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.filterwarnings("ignore::stratal.tensor.capture.recaptures.RecompileWarning")
def test_what_a_function_writes_each_call_writes(kind):
    captures = range(3) if kind in REPLAYED else ()
    case = Case(
        WRITER, ACTS[kind], seen="vars(o)", given="st.full((1,), float(i))", calls=7, captures=captures
    )
    check(case, WAYS["not audited"])


# -- counters in tables --------------------------------------------------------------------------------------
TABLES = {
    "dict": "{'a': 1.0}",  # the collector does not track it until it holds what a capture puts there
    "ChainMap": "collections.ChainMap({}, {'a': 1.0})", "UserDict": "collections.UserDict(a=1.0)",
    "OrderedDict": "collections.OrderedDict(a=1.0)", "defaultdict": "collections.defaultdict(float, a=1.0)",
}  # fmt: skip
COUNTS = {
    "item": "t['a'] += 1", "get": "t['a'] = t.get('a') + 1", "update": "t.update(a=t['a'] + 1)",
    "update with a table": "t.update({'a': t['a'] + 1})", "each key": "for key in t: t[key] += 1",
    "each item": "for key, value in list(t.items()): t[key] = value + 1",
}  # fmt: skip


@each_way
@pytest.mark.parametrize("owner", ["counts", "box.k"], ids=["from outside", "argument"])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("table", TABLES)
def test_counters_count_each_call(table, count, owner, way):
    setup = f"counts = {TABLES[table]}\nbox = Plain(counts)\ndef count(t):\n    {COUNTS[count]}"
    body = f"(count({owner}), x * 1.0)[1]"
    check(Case(setup, body, "pass", "dict(counts)", "st.arange(3.0), box", "x, box"), WAYS[way])


MAKERS = """
made = []
def number():
    made.append("q")
    return 5.0
class Filling(dict):
    def __missing__(self, key):
        self[key] = number()
        return self[key]
class Missing(dict):
    def __missing__(self, key): return number()
class Ordered(collections.OrderedDict):
    def __missing__(self, key): return number()
"""
TAKE_AWAY = "if i in (4, 7): table['q'] = i - 1.0\nelif i % 2: table.pop('q', None)"
DEFAULTS = ("collections.defaultdict(number)", "collections.Counter()", "Filling()", "Missing()", "Ordered()")


@each_way
@pytest.mark.parametrize("table", DEFAULTS)
def test_guards_do_not_make_the_entries_that_they_look_for(table, way):
    setup = f"{MAKERS}table = {table}"
    case = Case(
        setup, "x + table['q']", TAKE_AWAY, "dict(table), len(made)", "st.ones(1)", calls=13, at=range(1, 13)
    )
    check(case, WAYS[way])
