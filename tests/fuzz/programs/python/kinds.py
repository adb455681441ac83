"""Kinds of Python values: texts of values that differ, and how a function makes a number of one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A kind of value.

    values  expressions whose values a program must tell apart
    use     an expression of `{v}` that is a number or a tensor, another one for each value
    change  a statement that changes `{v}` where it stands, by the number of the call, `{k}`
    setup   what values need to be defined
    """

    name: str
    values: tuple[str, ...]
    use: str = "{v}"
    change: str = ""
    setup: tuple[str, ...] = ()


def _objects(name: str, definition: str, use: str = "{v}.k", change: str = "{v}.k = {k}.0") -> Kind:
    return Kind(name, ("Thing(1.0)", "Thing(2.0)", "Thing(5.0)"), use, change, tuple(definition.splitlines()))


_INIT = "class Thing:\n    def __init__(self, k): self.k = k\n"

NUMBERS = (
    Kind("bool", ("True", "False"), "(2.0 if {v} else 3.0)"),
    Kind("int", ("1", "2", "7")),
    Kind("int beyond 64 bits", ("1 << 70", "1 << 71"), "float({v}.bit_length())"),
    Kind("float", ("0.5", "1.5", "2.5")),
    Kind("float that Python needs", ("0.5", "1.5", "2.5"), "float(int({v} * 2))"),
    Kind("signed zero", ("0.0", "-0.0"), "math.copysign(2.0, {v})"),
    Kind("signed zero of a tensor's factor", ("0.0", "-0.0"), "1 / (out * 0 + 1) * {v}"),
    Kind("nan or not", ("float('nan')", "1.0"), "(2.0 if {v} != {v} else 3.0)"),
    Kind("infinities", ("float('inf')", "float('-inf')"), "(2.0 if {v} > 0 else 3.0)"),
    Kind("equal numbers", ("1", "1.0", "True"), "{int: 1.0, float: 2.0, bool: 3.0}[type({v})]"),
    Kind("complex", ("1j", "2j", "1 + 1j"), "({v}.imag + 3 * {v}.real)"),
    Kind("complex zero", ("0j", "complex(0, -0.0)"), "math.copysign(2.0, {v}.imag)"),
    Kind("Decimal", ("Decimal('1.5')", "Decimal('2.5')", "Decimal('1.50')"), "float({v}) + len(str({v}))"),
    Kind("Fraction", ("Fraction(1, 2)", "Fraction(3, 2)"), "float({v})"),
    Kind("numpy float64", ("np.float64(0.5)", "np.float64(1.5)"), "float({v})"),
    Kind("numpy float32", ("np.float32(0.5)", "np.float32(1.5)"), "float({v})"),
    Kind("numpy int64", ("np.int64(1)", "np.int64(2)"), "float({v})"),
    Kind("numpy int8 as a factor", ("np.int8(1)", "np.int8(2)")),
    Kind("numpy bool", ("np.bool_(True)", "np.bool_(False)"), "(2.0 if {v} else 3.0)"),
    Kind("numpy datetime64", ("np.datetime64('2001-01-01')", "np.datetime64('2002-01-01')"), "float({v}.astype(int))"),
)

TEXTS = (
    Kind("str", ("'a'", "'bb'", "'ccc'"), "float(len({v}))"),
    Kind("str that chooses", ("'add'", "'sub'"), "{'add': 1.0, 'sub': 2.0}[{v}]"),
    Kind("bytes", ("b'a'", "b'b'"), "float({v}[0])"),
    Kind("numpy str", ("np.str_('a')", "np.str_('bb')"), "float(len({v}))"),
    Kind("None or a value", ("None", "1.0"), "(2.0 if {v} is None else 3.0)"),
    Kind("Ellipsis or None", ("...", "None"), "(2.0 if {v} is None else 3.0)"),
    Kind("Enum", ("Color.RED", "Color.BLUE"), "float({v}.value)", "", ("class Color(enum.Enum):", "    RED, BLUE = 1, 2")),
    Kind("IntFlag", ("Mark.A", "Mark.A | Mark.B"), "float({v})", "", ("class Mark(enum.IntFlag):", "    A, B = 1, 2")),
    Kind("date", ("date(2001, 1, 1)", "date(2002, 1, 1)"), "float({v}.year)"),
    Kind("datetime", ("datetime(2001, 1, 1)", "datetime(2001, 1, 2)"), "float({v}.day)"),
    Kind("timedelta", ("timedelta(1)", "timedelta(2)"), "{v}.total_seconds()"),
    Kind("Path", ("Path('/a/b')", "Path('/a/bcd')"), "float(len({v}.name))"),
    Kind("UUID", ("UUID(int=1)", "UUID(int=2)"), "float({v}.int)"),
    Kind("pattern", ("re.compile('a')", "re.compile('a+')"), "float(len({v}.match('aaa').group()))"),
    Kind("range", ("range(1)", "range(2)", "range(5)"), "float(sum({v}) + len({v}))"),
    Kind("slice", ("slice(0, 1)", "slice(0, 2)"), "x[{v}].sum()"),
    Kind("dtype", ("lib.float32", "lib.float64"), "(x + 0.1).to({v}).double().sum()"),
    Kind("numpy dtype", ("np.dtype('f4')", "np.dtype('f8')"), "float({v}.itemsize)"),
)  # fmt: skip

CONTAINERS = (
    Kind("tuple", ("(1.0, 2.0)", "(2.0, 1.0)"), "({v}[0] + 3 * {v}[1])"),
    Kind("tuple of signed zeros", ("(0.0,)", "(-0.0,)"), "math.copysign(2.0, {v}[0])"),
    Kind("tuple of equal numbers", ("(1,)", "(1.0,)", "(True,)"), "float(len(repr({v})))"),
    Kind("nested tuple", ("((1.0,), 2.0)", "((2.0,), 2.0)"), "{v}[0][0]"),
    Kind("named tuple", ("Pair(1.0, 2.0)", "Pair(2.0, 1.0)"), "({v}.a + 3 * {v}.b)", "",
         ("class Pair(NamedTuple):", "    a: float", "    b: float")),
    Kind("frozenset", ("frozenset({1, 2})", "frozenset({1, 2, 3})"), "float(sum({v}))"),
    Kind("frozenset of objects", ("frozenset({Hashed(1.0)})", "frozenset({Hashed(2.0)})"), "next(iter({v})).k", "",
         ("class Hashed:", "    def __init__(self, k): self.k = k")),
    Kind("list", ("[1.0, 2.0]", "[2.0, 1.0]", "[3.0, 1.0]"), "({v}[0] + 3 * {v}[1])", "{v}[1] = {k}.0"),
    Kind("list by length", ("[1.0]", "[1.0, 1.0]"), "float(len({v}))", "{v}.append(1.0)"),
    Kind("list by order", ("[1.0, 2.0]", "[2.0, 1.0]"), "sum(3 ** k * a for k, a in enumerate({v}))", "{v}.reverse()"),
    Kind("list of lists", ("[[1.0]]", "[[2.0]]"), "{v}[0][0]", "{v}[0][0] = {k}.0"),
    Kind("list in a tuple", ("([1.0],)", "([2.0],)"), "{v}[0][0]", "{v}[0][0] = {k}.0"),
    Kind("list that holds itself", ("loop(1.0)", "loop(2.0)"), "{v}[1][1][0]", "{v}[0] = {k}.0",
         ("def loop(k):", "    made = [k]", "    made.append(made)", "    return made")),
    Kind("long list", ("[0.0] * 5000", "[0.0] * 4999 + [1.0]"), "sum({v})", "{v}[4999] = {k}.0"),
    Kind("long tuple", ("(0.0,) * 5000", "(0.0,) * 4999 + (1.0,)"), "sum({v})"),
    Kind("long str", ("'a' * 5000", "'a' * 4999 + 'b'"), "float(ord({v}[-1]))"),
    Kind("deep list", ("deep(1.0)", "deep(2.0)"), "bottom({v})[0]", "bottom({v})[0] = {k}.0",
         ("def deep(k):", "    made = [k]", "    for _ in range(40): made = [made]", "    return made",
          "def bottom(v):", "    while type(v[0]) is list: v = v[0]", "    return v")),
    Kind("dict", ("{'k': 1.0}", "{'k': 2.0}"), "{v}['k']", "{v}['k'] = {k}.0"),
    Kind("dict by keys", ("{'a': 1.0}", "{'b': 1.0}"), "float(len(next(iter({v}))) + ord(next(iter({v}))[0]))", "{v}.update({next(iter({v})) + 'a': 0}); {v}.pop(next(iter({v})))"),
    Kind("dict by order", ("{'a': 1.0, 'b': 2.0}", "{'b': 2.0, 'a': 1.0}"), "list({v}.values())[0]", "{v}['a'] = {v}.pop('a'); {v}['b'] = {v}.pop('b') if {k} % 2 else {v}['b']"),
    Kind("dict by membership", ("{'a': 1}", "{'b': 1}"), "(2.0 if 'a' in {v} else 3.0)", "{v}.pop('a', None) or {v}.setdefault('a', 1)"),
    Kind("nested dict", ("{'a': {'b': 1.0}}", "{'a': {'b': 2.0}}"), "{v}['a']['b']", "{v}['a']['b'] = {k}.0"),
    Kind("dict with object keys", ("{Hashed(1.0): 1}", "{Hashed(2.0): 1}"), "next(iter({v})).k", "next(iter({v})).k = {k}.0",
         ("class Hashed:", "    def __init__(self, k): self.k = k")),
    Kind("long dict", ("dict.fromkeys(range(5000), 0.0)", "dict.fromkeys(range(5000), 0.5)"), "{v}[4999]", "{v}[4999] = {k}.0"),
    Kind("set", ("{1, 2}", "{1, 2, 3}"), "float(sum({v}))", "{v}.add({k} + 10)"),
    Kind("set by membership", ("{1}", "{2}"), "(2.0 if 1 in {v} else 3.0)", "{v}.symmetric_difference_update({1})"),
    Kind("deque", ("deque([1.0])", "deque([2.0])"), "{v}[0]", "{v}[0] = {k}.0"),
    Kind("deque by length", ("deque([1.0])", "deque([1.0, 1.0])"), "float(len({v}))", "{v}.append(1.0)"),
    Kind("OrderedDict", ("OrderedDict(k=1.0)", "OrderedDict(k=2.0)"), "{v}['k']", "{v}['k'] = {k}.0"),
    Kind("OrderedDict by order", ("OrderedDict(a=1.0, b=2.0)", "OrderedDict(b=2.0, a=1.0)"), "list({v}.values())[0]", "{v}.move_to_end(next(iter({v})))"),
    Kind("defaultdict", ("defaultdict(float, k=1.0)", "defaultdict(float, k=2.0)"), "{v}['k']", "{v}['k'] = {k}.0"),
    Kind("defaultdict by factory", ("defaultdict(lambda: 1.0)", "defaultdict(lambda: 2.0)"), "{v}.default_factory()", "{v}.default_factory = lambda: {k}.0"),
    Kind("Counter", ("Counter('a')", "Counter('aab')"), "float({v}['a'])", "{v}.update('a')"),
    Kind("ChainMap", ("ChainMap({}, {'k': 1.0})", "ChainMap({}, {'k': 2.0})"), "{v}['k']", "{v}['k'] = {k}.0"),
    Kind("ChainMap by its maps", ("ChainMap({}, {'k': 1.0})", "ChainMap({}, {'k': 2.0})"), "{v}['k']", "{v}.maps[1]['k'] = {k}.0"),
    Kind("UserDict", ("UserDict(k=1.0)", "UserDict(k=2.0)"), "{v}['k']", "{v}['k'] = {k}.0"),
    Kind("UserList", ("UserList([1.0])", "UserList([2.0])"), "{v}[0]", "{v}[0] = {k}.0"),
    Kind("mapping proxy", ("proxied(1.0)", "proxied(2.0)"), "{v}['k']", "under['k'] = {k}.0",
         ("under = {}", "def proxied(k):", "    under['k'] = k", "    return types.MappingProxyType(under)")),
    Kind("dict's view", ("{'k': 1.0}.values()", "{'k': 2.0}.values()"), "sum({v})"),
    Kind("bytearray", ("bytearray(b'a')", "bytearray(b'b')"), "float({v}[0])", "{v}[0] = {k} + 1"),
    Kind("array", ("array('d', [1.0])", "array('d', [2.0])"), "{v}[0]", "{v}[0] = {k}.0"),
    Kind("memoryview", ("memoryview(bytearray(b'a'))", "memoryview(bytearray(b'b'))"), "float({v}[0])", "{v}[0] = {k} + 1"),
    Kind("list's subclass", ("Own([1.0])", "Own([2.0])"), "{v}[0]", "{v}[0] = {k}.0", ("class Own(list): pass",)),
    Kind("attribute of a list's subclass", ("owned(1.0)", "owned(2.0)"), "{v}.k", "{v}.k = {k}.0",
         ("class Own(list): pass", "def owned(k):", "    made = Own()", "    made.k = k", "    return made")),
    Kind("attribute of a dict's subclass", ("owned(1.0)", "owned(2.0)"), "{v}.k", "{v}.k = {k}.0",
         ("class Own(dict): pass", "def owned(k):", "    made = Own()", "    made.k = k", "    return made")),
    Kind("dict of objects", ("{'a': SimpleNamespace(k=1.0)}", "{'a': SimpleNamespace(k=2.0)}"), "{v}['a'].k", "{v}['a'].k = {k}.0"),
    Kind("int's subclass", ("Level(1, 'a')", "Level(1, 'bb')"), "float(len({v}.label))", "{v}.label = 'c' * ({k} + 3)",
         ("class Level(int):", "    def __new__(cls, n, label):", "        made = super().__new__(cls, n)", "        made.label = label", "        return made")),
)  # fmt: skip

ARRAYS = (
    Kind("numpy array", ("np.ones(1, 'f4')", "np.full(1, 2, 'f4')"), "{v}", "{v}[0] = {k}.0"),
    Kind("numpy array read by Python", ("np.ones(1, 'f4')", "np.full(1, 2, 'f4')"), "float({v}[0])", "{v}[0] = {k}.0"),
    Kind("numpy array made a tensor", ("np.ones(1, 'f4')", "np.full(1, 2, 'f4')"), "lib.tensor({v})", "{v}[0] = {k}.0"),
    Kind("numpy array of no axes", ("np.array(1.0)", "np.array(2.0)"), "float({v})", "{v}[...] = {k}.0"),
    Kind("numpy array of objects", ("np.array([[1.0]], object)", "np.array([[2.0]], object)"), "{v}[0, 0]", "{v}[0, 0] = {k}.0"),
    Kind("numpy array of records", ("np.array([(1.0,)], 'f8,')", "np.array([(2.0,)], 'f8,')"), "float({v}['f0'][0])", "{v}['f0'][0] = {k}.0"),
    Kind("view of a numpy array", ("np.arange(4.0)[1:]", "np.arange(5.0)[2:]"), "float({v}[0])", "{v}.base[...] = {k}.0"),
    Kind("large numpy array", ("np.zeros(9999)", "np.ones(9999)"), "float({v}[-1])", "{v}[-1] = {k}.0"),
    Kind("tensor", ("one(1)", "one(2)"), "{v}"),
    Kind("tensor changed in place", ("one(1)", "one(2)"), "{v}", "{v}.add_(1)"),
    Kind("tensor assigned to", ("one(1)", "one(2)"), "{v}", "{v}[0] = {k}.0"),
    Kind("tensor that takes a gradient", ("one(1).requires_grad_(True)", "one(2)"), "(2.0 if {v}.requires_grad else 3.0)", "{v}.requires_grad_({k} % 2 == 0)"),
    Kind("tensor's dtype", ("one(1)", "one(1).double()"), "(2.0 if {v}.dtype == lib.float32 else 3.0)"),
    Kind("tensor's shape", ("lib.ones(1)", "lib.ones(2)"), "{v}.shape[0]"),
    Kind("gradient of a tensor", ("graded(1.0)", "graded(2.0)"), "{v}.grad", "{v}.grad.add_(1)",
         ("def graded(k):", "    made = one(1).requires_grad_(True)", "    (made * k).sum().backward()", "    return made")),
    Kind("list of tensors", ("[one(1)]", "[one(2)]", "[one(1), one(3)]"), "sum({v})", "{v}.append(one({k}))"),
    Kind("dict of tensors", ("{'k': one(1)}", "{'k': one(2)}"), "{v}['k']", "{v}['k'] = one({k})"),
    Kind("parameter", ("lib.nn.Parameter(one(1))", "lib.nn.Parameter(one(2))"), "{v}"),
)  # fmt: skip

OBJECTS = (
    _objects("object", _INIT),
    _objects("slotted object", "class Thing:\n    __slots__ = ('k',)\n    def __init__(self, k): self.k = k"),
    _objects("equal objects", _INIT + "    def __eq__(self, other): return True\n    def __hash__(self): return 1"),
    _objects("unhashable object", _INIT + "    def __eq__(self, other): return self.k == other.k"),
    _objects("SimpleNamespace", "Thing = lambda k: SimpleNamespace(k=k)"),
    _objects("argparse Namespace", "Thing = lambda k: Namespace(k=k)"),
    _objects("dataclass", "@dataclass\nclass Thing:\n    k: float"),
    _objects("slotted dataclass", "@dataclass(slots=True)\nclass Thing:\n    k: float"),
    _objects("frozen dataclass", "@dataclass(frozen=True)\nclass Thing:\n    k: float", change=""),
    _objects("frozen dataclass with a list", "@dataclass(frozen=True)\nclass Items:\n    k: list\nThing = lambda k: Items([k])",
             "{v}.k[0]", "{v}.k[0] = {k}.0"),
    _objects("property", "class Thing:\n    def __init__(self, k): self._k = k\n    @property\n    def k(self): return self._k",
             change="{v}._k = {k}.0"),
    _objects("cached property", "class Thing:\n    def __init__(self, k): self._k = k\n    @functools.cached_property\n    def k(self): return self._k",
             change="{v}._k = {k}.0; vars({v}).pop('k', None)"),
    _objects("__getattr__", "class Thing:\n    def __init__(self, k): self._k = {'k': k}\n    def __getattr__(self, name): return self._k[name]",
             change="{v}._k['k'] = {k}.0"),
    _objects("__getattribute__", "class Thing:\n    def __init__(self, k): self._k = k\n    def __getattribute__(self, name):\n        return object.__getattribute__(self, '_k' if name == 'k' else name)",
             change="{v}._k = {k}.0"),
    _objects("__getitem__", _INIT + "    def __getitem__(self, at): return self.k", "{v}[0]"),
    _objects("__len__", _INIT + "    def __len__(self): return int(self.k)", "float(len({v}))"),
    _objects("__bool__", _INIT + "    def __bool__(self): return self.k == 2", "(2.0 if {v} else 3.0)"),
    _objects("__contains__", _INIT + "    def __contains__(self, at): return at == self.k", "(2.0 if 2 in {v} else 3.0)"),
    _objects("__iter__", _INIT + "    def __iter__(self): return iter([self.k])", "sum({v})"),
    _objects("__float__", _INIT + "    def __float__(self): return float(self.k)", "float({v})"),
    _objects("__index__", _INIT + "    def __index__(self): return int(self.k)", "float(len(range(10)[{v}:]))"),
    _objects("__call__", _INIT + "    def __call__(self): return self.k", "{v}()"),
    Kind("context manager", ("Thing(1.0)", "Thing(2.0)"), "entered({v})", "{v}.k = {k}.0",
        ("class Thing:", "    def __init__(self, k): self.k = k", "    def __enter__(self): return self.k", "    def __exit__(self, *e): pass",
         "def entered(v):", "    with v as k: return k")),
    _objects("__format__", _INIT + "    def __format__(self, form): return 'a' * int(self.k)", "float(len(format({v})))"),
    Kind("operators", ("Thing(1.0)", "Thing(2.0)"), "(1.0 + {v})", "{v}.k = {k}.0",
        ("class Thing:", "    def __init__(self, k): self.k = k", "    def __radd__(self, other): return other + self.k")),
    _objects("inherited property", "class Base:\n    scale = 1.0\n    @property\n    def k(self): return self._k * self.scale\nclass Thing(Base):\n    def __init__(self, k): self._k = k",
             change="Base.scale = {k}.0"),
    _objects("exception", "Thing = lambda k: ValueError(k)", "{v}.args[0]", "{v}.args = ({k}.0,)"),
    Kind("weak reference", ("weak(1.0)", "weak(2.0)"), "{v}().k", "{v}().k = {k}.0",
        ("class Thing:", "    def __init__(self, k): self.k = k", "kept = []", "def weak(k):", "    kept.append(Thing(k))", "    return weakref.ref(kept[-1])")),
    _objects("thread's object", "def Thing(k):\n    made = threading.local()\n    made.k = k\n    return made"),
    _objects("object whose class changes", "class Other:\n    k = 9.0\nclass Thing:\n    k = 3.0\n    def __init__(self, k): self.j = k",
             "({v}.k + {v}.j)", "{v}.__class__ = (Thing, Other)[{k} % 2]"),
    _objects("object that gets an attribute", _INIT, "(2.0 if hasattr({v}, 'j') else 3.0)", "vars({v}).pop('j', None) or setattr({v}, 'j', 1)"),
    _objects("object's whole __dict__", _INIT, change="{v}.__dict__ = {'k': {k}.0}"),
    Kind("cycle of objects", ("pair(1.0)", "pair(2.0)"), "{v}.other.other.k", "{v}.k = {k}.0",
         ("def pair(k):", "    a = SimpleNamespace(k=k)", "    a.other = SimpleNamespace(other=a)", "    return a")),
    Kind("class", ("First", "Second"), "{v}.k", "{v}.k = {k}.0",
         ("class First:", "    k = 1.0", "class Second:", "    k = 2.0")),
    Kind("class with a metaclass", ("First", "Second"), "{v}.k", "Meta.k = {k}.0",
         ("class Meta(type):", "    k = 1.0", "class First(metaclass=Meta): pass", "class Second(metaclass=Meta):", "    k = 2.0")),
    Kind("base class", ("First", "Second"), "{v}().k", "Base.k = {k}.0",
         ("class Base:", "    k = 1.0", "class First(Base): pass", "class Second(Base):", "    k = 2.0")),
    Kind("module object", ("named(1.0)", "named(2.0)"), "{v}.k", "{v}.k = {k}.0",
         ("def named(k):", "    made = types.ModuleType('made')", "    made.k = k", "    return made")),
    Kind("context variable", ("variable(1.0)", "variable(2.0)"), "{v}.get()", "{v}.set({k}.0)",
         ("def variable(k):", "    made = contextvars.ContextVar('made')", "    made.set(k)", "    return made")),
    Kind("text buffer", ("io.StringIO('a')", "io.StringIO('bb')"), "float(len({v}.getvalue()))", "{v}.write('c' * ({k} + 3))"),
)  # fmt: skip

FUNCTIONS = (
    Kind("function", ("double", "triple"), "{v}(1.0)", "{v}.__code__ = (double, triple, half)[{k} % 3].__code__",
         ("def double(a): return a * 2", "def triple(a): return a * 3", "def half(a): return a / 2")),
    Kind("lambda", ("lambda a: a * 2", "lambda a: a * 3"), "{v}(1.0)"),
    Kind("lambda with a closure", ("times(2.0)", "times(3.0)"), "{v}(1.0)", "{v}.__closure__[0].cell_contents = {k}.0",
         ("def times(k): return lambda a: a * k",)),
    Kind("function's default", ("times(2.0)", "times(3.0)"), "{v}()", "{v}.__defaults__ = ({k}.0,)",
         ("def times(k): return lambda a=k: a",)),
    Kind("function's keyword default", ("times(2.0)", "times(3.0)"), "{v}()", "{v}.__kwdefaults__ = {'a': {k}.0}",
         ("def times(k): return lambda *, a=k: a",)),
    Kind("function's mutable default", ("times(2.0)", "times(3.0)"), "{v}()", "{v}.__defaults__[0][0] = {k}.0",
         ("def times(k): return lambda a=[k]: a[0]",)),
    Kind("function's attribute", ("times(2.0)", "times(3.0)"), "{v}.k", "{v}.k = {k}.0",
         ("def times(k):", "    def made(): pass", "    made.k = k", "    return made")),
    Kind("partial", ("functools.partial(pow, 2.0)", "functools.partial(pow, 3.0)"), "{v}(2.0)"),
    Kind("partial's keywords", ("functools.partial(scaled, k=2.0)", "functools.partial(scaled, k=3.0)"), "{v}(1.0)", "{v}.keywords['k'] = {k}.0",
         ("def scaled(a, k): return a * k",)),
    Kind("bound method", ("Thing(2.0).get", "Thing(3.0).get"), "{v}()", "{v}.__self__.k = {k}.0",
         ("class Thing:", "    def __init__(self, k): self.k = k", "    def get(self): return self.k")),
    Kind("bound method of a built-in", ("[1.0].__len__", "[1.0, 2.0].__len__"), "float({v}())", "{v}.__self__.append(1.0)"),
    Kind("built-in function", ("math.sin", "math.cos"), "{v}(1.0)"),
    Kind("function of tensors", ("lib.sin", "lib.cos"), "{v}(x).sum()"),
    Kind("operator", ("operator.add", "operator.sub"), "{v}(1.0, 2.0)"),
    Kind("cached function", ("cached(1.0)", "cached(2.0)"), "{v}()", "box['k'] = {k}.0; {v}.cache_clear()",
         ("box = {'k': 5.0}", "def cached(k): return functools.lru_cache(lambda: k + box['k'])")),
    Kind("generator function", ("yields(1.0)", "yields(2.0)"), "sum({v}())", "box['k'] = {k}.0",
         ("box = {'k': 5.0}", "def yields(k):", "    def made():", "        yield k", "        yield box['k']", "    return made")),
    Kind("decorated function", ("twice(2.0)", "twice(3.0)"), "{v}(1.0)", "{v}.__wrapped__.k = {k}.0",
         ("def twice(k):", "    def inner(a): return a * inner.k", "    inner.k = k",
          "    @functools.wraps(inner)", "    def outer(a): return 2 * inner(a)", "    return outer")),
)  # fmt: skip

_NET = ("def net(k):", "    made = lib.nn.Linear(1, 1)", "    with lib.no_grad():",
        "        made.weight.fill_(k)", "        made.bias.fill_(0.5)", "    return made")  # fmt: skip
_OWN = ("class Net(lib.nn.Module):", "    scale = 1.0", "    def __init__(self, k):", "        super().__init__()",
        "        self.k, self._held, self.inner = k, [1.0], lib.nn.Identity()",
        "    def forward(self, a): return self.inner(a) * self.k * self.scale * self._held[0]")  # fmt: skip

MODULES = (
    Kind("nn module", ("net(1.0)", "net(2.0)"), "{v}(out[:1].float()).sum()", "", _NET),
    Kind("nn module's parameter in place", ("net(1.0)", "net(2.0)"), "{v}(out[:1].float()).sum()", "{v}.weight.data.fill_({k}.0)", _NET),
    Kind("nn module's other parameter", ("net(1.0)", "net(2.0)"), "{v}(out[:1].float()).sum()", "{v}.weight = lib.nn.Parameter(lib.full((1, 1), {k}.0))", _NET),
    Kind("nn module's attribute", ("Net(1.0)", "Net(2.0)"), "{v}(out[:1].float()).sum()", "{v}.k = {k}.0", _OWN),
    Kind("nn module's list", ("Net(1.0)", "Net(2.0)"), "{v}(out[:1].float()).sum()", "{v}._held[0] = {k}.0", _OWN),
    Kind("nn module's class attribute", ("Net(1.0)", "Net(2.0)"), "{v}(out[:1].float()).sum()", "Net.scale = {k}.0", _OWN),
    Kind("nn module's submodule", ("Net(1.0)", "Net(2.0)"), "{v}(out[:1].float()).sum()", "{v}.inner = (lib.nn.Tanh, lib.nn.Sigmoid)[{k} % 2]()", _OWN),
    Kind("nn module's forward", ("Net(1.0)", "Net(2.0)"), "{v}(out[:1].float()).sum()", "{v}.forward = lambda a: a * {k}.0", _OWN),
    Kind("nn module's mode", ("Mode(1.0)", "Mode(2.0)"), "{v}(out[:1].float()).sum()", "{v}.train({k} % 2 == 0)",
         ("class Mode(lib.nn.Module):", "    def __init__(self, k):", "        super().__init__()", "        self.k = k",
          "    def forward(self, a): return a * (self.k if self.training else 7.0)")),
    Kind("nn module's buffer", ("Counts(1.0)", "Counts(2.0)"), "{v}(out[:1].float()).sum()", "{v}.k.fill_({k}.0)",
         ("class Counts(lib.nn.Module):", "    def __init__(self, k):", "        super().__init__()", "        self.register_buffer('k', one(k))",
          "    def forward(self, a): return a * self.k")),
    Kind("ModuleList", ("lib.nn.ModuleList([net(1.0)])", "lib.nn.ModuleList([net(2.0)])"), "sum(m(out[:1].float()).sum() for m in {v})", "{v}.append(net({k}.0))", _NET),
    Kind("nn module's hook", ("net(1.0)", "net(2.0)"), "{v}(out[:1].float()).sum()", "{v}.register_forward_hook(lambda m, a, r: r * {k}.0)", _NET),
    Kind("list of nn modules", ("[net(1.0)]", "[net(2.0)]"), "sum(m(out[:1].float()).sum() for m in {v})", "{v}.append(net({k}.0))", _NET),
)  # fmt: skip

KINDS = {
    kind.name: kind
    for kind in (*NUMBERS, *TEXTS, *CONTAINERS, *ARRAYS, *OBJECTS, *FUNCTIONS, *MODULES)
}
