# ruff: noqa: E501 (tables)
"""What changes between calls is noticed by a guard: what functions read, look up and ask of objects and tensors."""

import functools

import pytest
from capture_cases import Case, check, check_noticed
from capture_ways import WAYS

import stratal as st

pytestmark = pytest.mark.filterwarnings("error")  # a guard notices, not an audit
EACH = range(1, 20)

# -- what Python looks up by itself: the use of an object `a` whose class has another special method then -----
USES = {
    "add": "a + 1", "sub": "a - 1", "mul": "a * 1", "truediv": "a / 1", "floordiv": "a // 1", "mod": "a % 1",
    "pow": "a ** 1", "lt": "a < 1", "le": "a <= 1", "gt": "a > 1", "ge": "a >= 1", "getitem": "a[1]",
    "radd": "1 + a", "rsub": "1 - a", "rmul": "1 * a", "rtruediv": "1 / a", "rfloordiv": "1 // a",
    "rmod": "1 % a", "rpow": "1 ** a", "neg": "-a", "pos": "+a", "abs": "abs(a)", "float": "float(a)",
    "len": "len(a)", "int": "int(a)", "index": "[*range(10)][a]", "hash": "hash(a)", "call": "a()",
    "bool": "3.0 if a else 9.0", "eq": "3.0 if a == 1 else 9.0", "contains": "3.0 if 1 in a else 9.0",
    "getattr": "a.anything", "iter": "next(x for x in a)", "str": "float(str(a))", "format": "float(f'{a}')",
    "enter": "read(a)",
}  # fmt: skip
GIVEN = {
    **dict.fromkeys(("len", "int", "index", "hash"), ("3", "9")),
    **dict.fromkeys(("bool", "eq", "contains"), ("True", "False")),
    **dict.fromkeys(("str", "format"), ("'3'", "'9'")), "iter": ("iter([3.0])", "iter([9.0])"),
}  # fmt: skip


@pytest.mark.parametrize("name", USES)
def test_special_methods_that_are_replaced_are_noticed(name):
    method, (old, new) = f"__{name}__", GIVEN.get(name, ("3.0", "9.0"))
    setup = f"""
class Kind:
    def __exit__(self, *error): pass
    {method} = lambda *_: {old}
a = Kind()
def read(s):
    with s as value: return float(value)
"""
    check_noticed(
        Case(setup, f"x * ({USES[name]})", f"Kind.{method} = lambda *_: {new}"), WAYS["not audited"]
    )


# -- what a read finds ---------------------------------------------------------------------------------------
LAYERS = "net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))"
BUFFERED = "net = nn.Linear(2, 2); net.register_buffer('scale', st.ones(2))"
MATCHING = """
class Kind:
    __match_args__ = ("a",)
    a, b = 3.0, 9.0
k = Kind()
def matched(s):
    match s:
        case Kind(first): return float(first)
"""
SEVEN = """
class Seven(nn.Linear):
    def forward(self, x): return x * 7
"""
RULES = """
@st.custom_vjp
def once(x): return x * 1
def rule(k): once.defvjp(lambda x: (once(x), None), lambda kept, ct: (ct * k,))
rule(1.0)
"""
DEFINED = """
class Kind: pass
class Sized:
    def __len__(self): return 1
class Longer:
    def __len__(self): return 2
class Slotted: __slots__ = ("a",)
class Items(list):
    def __getitem__(self, key): return 1.0
c = Kind()
"""
READS = {
    "descriptor": ("class D:\n def __get__(self, owner, kind): return 3.0\nclass Kind: d = D()\nk = Kind()", "x * k.d",
                   "D.__get__ = lambda *args: 9.0"),
    "positional pattern": (MATCHING, "x * matched(k)", "Kind.__match_args__ = ('b',)"),
    "length of keys": ("d = {'a': 1.0}; view = d.keys()", "x * len(view)", "d.update(b=2.0)"),
    "length of a proxy": ("d = {'a': 1.0}; proxy = types.MappingProxyType(d)", "x * len(proxy)", "d.update(c=2.0)"),
    "method caller": ("d = {'a': 1.0}", "x * operator.methodcaller('get', 'z', 1.0)(d)", "d.update(z=5.0)"),
    "default factory": ("d = collections.defaultdict(lambda: 1.0)",
                        "x * (d['q'], d.pop('q'))[0]", "d.default_factory = lambda: 2.0"),
    "attributes of a module": ("m = types.ModuleType('made'); m.__getattr__ = lambda name: 1.0",
                               "x * m.v", "m.__getattr__ = lambda name: 2.0"),
    "slot by its descriptor": (f"{DEFINED}\ns = Slotted(); s.a = 1.0", "x * Slotted.a.__get__(s)", "s.a = 2.0"),
    "callable": (DEFINED, "x * (2.0 if callable(c) else 1.0)", "Kind.__call__ = lambda s: 0"),
    "dir": (DEFINED, "x * len(dir(c))", "c.new = 0"),
    "name of a class": (DEFINED, "x * len(Kind.__name__)", "Kind.__name__ = 'Longer'"),
    "length by another class": (f"{DEFINED}\ns = Sized()", "x * len(s)", "s.__class__ = Longer"),
    "method taken away": (f"{DEFINED}\nl = Items([5.0])", "x * l[0]", "del Items.__getitem__"),
    "text of an error": ("e = ValueError('1.')", "x * float(str(e))", "e.args = ('2.',)"),
    "flat array": ("a = np.zeros((2, 3))", "x * (a.flat[0] + 1)", "a.fill(1)"),
    "flags": ("a = np.zeros((2, 3))", "x * (1.0 + a.flags.writeable)", "a.setflags(write=False)"),
    "partial": ("p = functools.partial(pow, 2.0)", "x * p(2.0)", "p.__setstate__((pow, (3.0,), {}, {}))"),
    "attribute dict": ("o = Plain()", "x * o.__dict__.get('j', 1.0)", "o.j = 2.0"),
    "path of a user's class": ("class Tagged(type(pathlib.PurePath())): pass\np = Tagged('a'); p.scale = 2.0",
                               "x * p.scale", "p.scale = 3.0"),
    "property that comes later": (f"{DEFINED}\nc.k = 1", "x * c.k", "Kind.k = property(lambda self: 60)"),
    "rule of derivatives": (RULES, "st.grad(lambda x: once(x).sum())(x)", "rule(10.0)"),
    "class of a layer": (f"{LAYERS}{SEVEN}", "net(x)", "net[1].__class__ = Seven"),
    "class of a layer alone": ("net = nn.Dropout(0.0)", "net(x)", "net.__class__ = nn.Tanh"),
    "hooks that are cleared": ("net = nn.Identity(); net.register_forward_hook(lambda m, i, o: o * 2)",
                               "net(x)", "net._forward_hooks.clear()"),
    "parameter": (BUFFERED, "net(x) * net.scale", "net._parameters['weight'] = nn.Parameter(st.zeros(2, 2))"),
    "parameter taken away": (BUFFERED, "net(x) * net.scale", "net._parameters.update(bias=None)"),
    "buffer": (BUFFERED, "net(x) * net.scale", "net._buffers['scale'] = st.zeros(2)"),
    "updated buffers": (BUFFERED, "net(x) * net.scale", "net._buffers.update({'scale': st.zeros(2)})"),
    "joined buffers": (BUFFERED, "net(x) * net.scale", "operator.ior(net._buffers, {'scale': st.zeros(2)})"),
}  # fmt: skip


@pytest.mark.parametrize("name", READS)
def test_what_is_read_is_guarded(name):
    setup, body, change = READS[name]
    given = "st.ones(2)" if "net" in setup else "st.ones(1)"
    check_noticed(Case(f"st.manual_seed(0)\n{setup}", body, change, given=given), WAYS["not audited"])


# -- what changes at each call -------------------------------------------------------------------------------
PARTS = "for part in net.children(): part.scale = 1.0"
ASKS = """
one, net, box = st.ones(1).requires_grad_(), nn.Linear(2, 2), Plain(st.ones(1))
def asked():
    held = box.k.requires_grad
    return [one.requires_grad, any(p.requires_grad for p in net.parameters()), held, net.bias.is_leaf]
changes = [lambda: one.requires_grad_(False), lambda: net.requires_grad_(False), lambda: box.k.requires_grad_(),
           lambda: net.weight.requires_grad_(True)]
"""
CACHED = "value = [0.5]; cached = functools.lru_cache(lambda: value[0])"
MEAN = """
class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.h, self.k = st.zeros(1), 1.0
    def forward(self, x):
        self.h = self.h + x
        return self.h * self.k
net = Mean()
"""
SCALE = """
box = Plain(1.5)
@functools.singledispatch
def scale(k): return 1
@scale.register
def _(k: float): return k * 2
"""
NEXT = "box.k = (1.5, 2.5, 3.5, 1.5, 2.5, 1.5, 4.5)[i % 7]"
NAMED = "st.grad(lambda v: v.max(0).values.sum() + v.sort().values[1])(x)"
REFILL = "value[0] = (0.5, 1.5, 0.5, 2.5)[i % 4]\nif i % 3 == 1: cached.cache_clear()"
ANSWERED = "(x * sum(2.0**k for k, yes in enumerate(asked()) if yes)).sum()"
OTHER = "class Other(Plain): pass\nbox = Plain()"
AGAIN = {
    "named results inside": Case("", NAMED, given="st.tensor([3.0 + i, 1.0, 2.0])"),
    "whether tensors take gradients": Case(
        ASKS, ANSWERED, "changes[i // 2 % 4]()", given="st.ones(1)", calls=16, at=range(0, 16, 2)),
    "cache that is cleared and filled again": Case(CACHED, "x + cached()", REFILL, "cached()", calls=9, at=range(9)),
    "class of an argument": Case(
        OTHER, "x * (2 if type(b) is Plain else 3)", "box.__class__ = Other", given="st.ones(2), box",
        parameters="x, b", at=(1,)),
    "dispatch on a number": Case(SCALE, "x * scale(box.k)", NEXT, at=EACH),
    "class of a number": Case(SCALE, "x * (2 if box.k.__class__ is float else 99)", NEXT, at=EACH),
    "type of a number": Case(SCALE, "x * (2 if type(box.k) is float else 99)", NEXT, at=EACH),
    "isinstance of a number": Case(SCALE, "x * (2 if isinstance(box.k, float) else 99)", NEXT, at=EACH),
    "lists of numbers": Case(
        SCALE, "x * sum([box.k, box.k] + [box.k])", NEXT, calls=7, at=EACH, captures=range(3)),
}  # fmt: skip
SCALES = "x * sum(map(operator.attrgetter('scale'), net.children()))"
NOT_AUDITED = {
    "name put into builtins": Case("import builtins; builtins.PUT = 0", "x * PUT", "builtins.PUT = i", at=EACH),
    "parts of a module": Case(f"{LAYERS}\n{PARTS}", SCALES, "net[i % 2].scale += 1", at=EACH),
    "attribute of a module that is written": Case(MEAN, "f = net", seen="net.h", given="st.ones(1) * i", calls=6),
}  # fmt: skip


@pytest.mark.parametrize("name", AGAIN | NOT_AUDITED)
def test_what_changes_again_and_again_is_right_at_each_call(name):
    check((AGAIN | NOT_AUDITED)[name], WAYS["audited" if name in AGAIN else "not audited"])


def test_named_arguments_come_in_the_order_of_the_call():
    f = st.compile(lambda x, **k: functools.reduce(lambda x, value: x * 10 + value, k.values(), x))
    x = st.zeros(1)
    assert [f(x, p=1.0, q=2.0).item(), f(x, q=2.0, p=1.0).item()] == [12, 21]
    assert st.compile(lambda **k: list(k))(q=1, p=2) == ["q", "p"]


# -- what functions read that are called by others in C ------------------------------------------------------
CALLED = {
    "map a dict's get": "sum(map(d.get, ['k']))", "map a list's item": "sum(map(items.__getitem__, [0]))",
    "map an attribute": "sum(map(operator.attrgetter('k'), [c]))",
    "map a partial": "sum(functools.partial(map, operator.attrgetter('k'))([c]))",
    "map getattr": "sum(map(getattr, [c], ['k']))", "starmap getattr": "sum(itertools.starmap(getattr, [(c, 'k')]))",
    "filter by an attribute": "len([*filter(operator.attrgetter('is_three'), [c])])",
    "any item in": "float(any(map(d.keys().__contains__, ['is_three'])))",
    "reduce": "functools.reduce(dict.get, ['k'], d)", "format an attribute": "float('{.k}'.format(c))",
}  # fmt: skip
BY_THREE = "c.k = d['k'] = items[0] = 3.0; c.is_three = True; d['is_three'] = True"


@pytest.mark.parametrize("name", CALLED)
def test_what_functions_read_that_are_called_by_others_in_c_is_guarded(name):
    setup = "c, d, items = Plain(2.0), {'k': 2.0}, [2.0]; c.is_three = False"
    check_noticed(
        Case(setup, f"x * {CALLED[name]}", BY_THREE, given="st.ones(1)", at=(2,)), WAYS["not audited"]
    )


# -- what functions in C look at in what they are handed -----------------------------------------------------
BOXES = """
class Counting:
    "An iterator written in Python."
    def __init__(self, items): self.items, self.k, self.itself = items, -1, self
    def __iter__(self): return self
    def __next__(self):
        self.k += 1
        if self.k == len(self.items): raise StopIteration
        return self.items[self.k]
class Box: pass
items = [Box(), Box(), Box()]
for k, box in enumerate(items): box.v, box.held = k + 1.0, [k + 1.0]
"""
BIGGER = "box = items[2 - (i - 1) % 3]; box.v += 3; box.held[0] += 2"
HANDING = {
    "list": "items", "iterator": "iter(items)", "generator": "(x for x in items)",
    "generator of another": "(x for x in (y for y in items))", "written in Python": "Counting(items)",
    "chain": "itertools.chain(iter(items[:1]), (x for x in items[1:]))",
    "zip": "map(operator.itemgetter(0), zip((x for x in items), iter(items), strict=True))",
    "partial": "map(functools.partial(max, key=bool), iter(items), iter(items))",
}  # fmt: skip
LOOKING = {
    "attrgetter": "sum(map(operator.attrgetter('v'), it))", "getattr": "sum(map(getattr, it, ('v',) * 3))",
    "getattr of one": "sum(map(functools.partial(getattr, next(it := iter(it))), ['v']))",
    "key": "max(it, key=operator.attrgetter('v')).v", "len": "sum(map(len, (b.held for b in it)))",
    "sum": "sum(map(sum, map(operator.attrgetter('held'), it)))", "max": "max(b.held for b in it)[0]",
    "starmap": "sum(itertools.starmap(getattr, ((b, 'v') for b in it)))",
    "methodcaller": "sum(map(operator.methodcaller('get', 'v'), map(vars, it)))",
    "reduce": "functools.reduce(operator.add, (b.held for b in it))[-1]",
}  # fmt: skip


@pytest.mark.parametrize("handing", HANDING)
@pytest.mark.parametrize("looking", LOOKING)
def test_what_functions_in_c_look_at_in_what_they_are_handed_is_guarded(looking, handing):
    body = f"it = {HANDING[handing]}\nreturn x * {LOOKING[looking]}"
    check(Case(BOXES, body, BIGGER, given="st.ones(1)", at=EACH), WAYS["not audited"])


# -- what is right at once, and stays so ---------------------------------------------------------------------
DISPATCHED = """
@functools.singledispatch
def dispatched(o, x): return x
@dispatched.register
def _(o: int, x): return x * o
"""
UNORDERED = "s = set(range(20)); s.difference_update({*range(20)} - {1, 8})"  # a copy has another order
CAUGHT = "global CAUGHT\ntry: raise ValueError(2)\nexcept ValueError as CAUGHT: return x * CAUGHT.args[0]"
PLAINLY = {
    "slice of an array": ("a = np.ones((4, 3), np.float32)", "x * st.asarray(a[0])"),
    "operand that is a slice": ("a = np.ones((4, 3), np.float32)", "x * a[0]"),
    "copied object": ("o = Plain(2.0); o.d = {}", "x * copy.copy(o).k"),
    "attributes of a new object": ("", "p = Plain()\nvars(p)['b'] = 2.0\nreturn x * p.b"),
    "exec": ("", "scope = {}\nexec('q = 2.', scope)\nreturn x * scope['q']"),
    "flag": ("o = Plain()", "o.flag = True\nreturn x * 2"),
    "named tuple": ("", "x * collections.namedtuple('P', 'a b')(1.0, 2.0).b"),
    "groupby": ("", "x * len([list(g) for _, g in itertools.groupby([1, 1, 2])])"),
    "tee": ("", "x * next(itertools.tee([2.0])[0])"), "mean": ("", "x * statistics.mean([1.0, 3.0])"),
    "copied deque": ("d = collections.deque([1.0, 2.0])", "x * copy.deepcopy(d)[0]"),
    "copied ordered dict": ("d = collections.OrderedDict(a=1.0)", "x * copy.deepcopy(d)['a']"),
    "lerp": ("", "st.lerp(x, x * 2, 0.05)"), "set": (UNORDERED, "x * sum(s)"),
    "parts of a path": ("p = pathlib.PurePath('a/b')", "x * len(p.parts) * len(p.with_name('c').name)"),
    "write that Python refuses": ("o = Plain()", "try: o.__weakref__ = None\nexcept AttributeError: return x + 1\nreturn x"),
    "error that is caught as a global": ("", CAUGHT, "'CAUGHT' in globals()"),
    "global that is taken away": ("", "global NAMED\nNAMED = 3\nx = x * NAMED\ndel NAMED\nreturn x", "'NAMED' in globals()"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLAINLY)
def test_nothing_is_said_where_nothing_changed(name):
    setup, body, *seen = PLAINLY[name]
    case = Case(setup, body, "pass", *seen, given="st.ones(3)", captures=range(3))
    check(case, WAYS["audited"])


def test_a_set_that_is_read_keeps_its_order():
    found = set(range(20))
    found.difference_update({*range(20)} - {1, 8})
    before = list(found)
    st.compile(lambda x: x * sum(found))(st.ones(1))
    assert list(found) == before != list(set(before))
