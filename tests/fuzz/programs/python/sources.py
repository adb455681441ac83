"""What changes by itself, or is asked of Python rather than read: the clock, chance, iterators, the environment,
questions about objects.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """Something a function asks; `before` is a statement ahead of call `{k}` that changes the answer."""

    name: str
    ask: str
    setup: str = ""
    before: str = ""
    grows: bool = False  # two runs never agree on the value; only whether it grows from call to call is seen


SOURCES = {
    s.name: s
    for s in (
        Source("random.random", "random.random()"),
        Source("random.Random", "chance.random()", "chance = random.Random(1)"),
        Source("random.shuffle", "(random.shuffle(cards), cards[0])[1]", "cards = [1.0, 2.0, 3.0, 4.0]"),
        Source("np.random.random", "float(np.random.random())"),
        Source("np.random.standard_normal as an array", "np.random.standard_normal(1).astype('f4')"),
        Source("np.random.Generator", "float(chance.random())", "chance = np.random.default_rng(1)"),
        Source("time.time", "time.time()", grows=True),
        Source("time.perf_counter", "time.perf_counter()", grows=True),
        Source("time.monotonic_ns", "float(time.monotonic_ns())", grows=True),
        Source("datetime.now", "datetime.now().timestamp()", grows=True),
        Source("itertools.count", "float(next(count))", "count = itertools.count()"),
        Source("itertools.cycle", "next(turns)", "turns = itertools.cycle([1.0, 2.0, 3.0])"),
        Source("list iterator", "next(items)", "items = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])"),
        Source("reversed iterator", "next(items)", "items = reversed([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])"),
        Source("zip iterator", "sum(next(items))", "items = zip(range(9), range(9))"),
        Source("generator", "next(made)", "def turns():\n    k = 0.0\n    while True:\n        yield k\n        k += 1\nmade = turns()"),
        Source("generator that is sent to", "made.send(1.0)", "def turns():\n    k = 0.0\n    while True:\n        k += yield k\nmade = turns()\nnext(made)"),
        Source("iterator class", "next(made)", "class Turns:\n    def __init__(self): self.k = 0.0\n    def __iter__(self): return self\n"
               "    def __next__(self):\n        self.k += 1\n        return self.k\nmade = Turns()"),
        Source("exhausted iterator", "float(len(list(items)))", "items = iter([1, 2])"),
        Source("file", "float(open(path).read())", "path = tempfile.mkstemp()[1]\nPath(path).write_text('1')", "Path(path).write_text(str({k}))"),
        Source("whether a file exists", "(2.0 if os.path.exists(path) else 3.0)", "path = tempfile.mkstemp()[1]", "os.path.exists(path) and os.remove(path)"),
        Source("open file", "float(file.readline())", "file = io.StringIO('1\\n2\\n3\\n4\\n5\\n6\\n7\\n')"),
        Source("os.environ", "float(os.environ.get('FUZZED', '0'))", "", "os.environ['FUZZED'] = str({k})"),
        Source("os.getenv", "float(os.getenv('FUZZED', '0'))", "", "os.environ['FUZZED'] = str({k})"),
        Source("whether a variable is set", "(2.0 if 'FUZZED' in os.environ else 3.0)", "os.environ.pop('FUZZED', 0)", "os.environ['FUZZED'] = '1'"),
        Source("working directory", "float(len(os.getcwd()))", "home = os.getcwd()", "os.chdir(('/', '/tmp')[{k} % 2])"),
        Source("sys.argv", "float(len(sys.argv))", "", "sys.argv = ['a'] * {k}"),
        Source("context variable", "cell.get()", "cell = contextvars.ContextVar('cell', default=0.0)", "cell.set({k}.0)"),
        Source("Decimal's context", "float(Decimal(1) / Decimal(3)) * 1000", "", "decimal.getcontext().prec = 2 + {k}"),
        Source("warnings' filters", "float(len(warnings.filters))", "", "warnings.simplefilter('ignore', category=(DeprecationWarning, UserWarning, FutureWarning, BytesWarning, ImportWarning, RuntimeWarning, ResourceWarning)[{k}])"),
        Source("grad mode", "(2.0 if lib.is_grad_enabled() else 3.0)", "", "lib.set_grad_enabled({k} % 2 == 0)"),
        Source("thread's name", "float(len(threading.current_thread().name))", "", "threading.current_thread().name = 'a' * ({k} + 1)"),
        Source("recursion limit", "float(sys.getrecursionlimit())", "", "sys.setrecursionlimit(5000 + {k})"),
        Source("line of the caller", "float(sys._getframe(1).f_lineno)"),
        Source("length", "float(len(held))", "held = []", "held.append(0)"),
        Source("membership", "(2.0 if 2 in held else 3.0)", "held = []", "held.append({k})"),
        Source("membership by equality", "(2.0 if Thing(2) in held else 3.0)", "class Thing:\n    def __init__(self, k): self.k = k\n    def __eq__(self, o): return self.k == o.k\nheld = []",
               "held.append(Thing({k}))"),
        Source("iteration order of a dict", "sum(3.0 ** k * ord(a) for k, a in enumerate(held))", "held = dict(a=0, b=0)", "held['a'] = held.pop('a') if {k} % 2 else 0"),
        Source("truth of a container", "(2.0 if held else 3.0)", "held = []", "held.append(1) if {k} == 3 else None"),
        Source("any and all", "(2.0 if any(held) else 3.0) + (2.0 if all(held) else 3.0)", "held = [False, False]", "held[{k} % 2] = True"),
        Source("min, max, sum, sorted", "min(held) + 2 * max(held) + 3 * sum(held) + 4 * sorted(held)[0]", "held = [1.0, 5.0]", "held.append({k} * 1.5)"),
        Source("zip, enumerate, map, filter", "float(len(list(zip(held, held))) + sum(k for k, _ in enumerate(held)) + sum(map(int, held)) + len(list(filter(None, held))))",
               "held = [1]", "held.append({k})"),
        Source("repr", "float(len(repr(held)))", "held = [1]", "held.append({k})"),
        Source("f-string", "float(len(f'{held}'))", "held = [1]", "held.append({k})"),
        Source("identity of two objects", "(2.0 if a.k is b.k else 3.0)", "a, b = types.SimpleNamespace(k=[]), types.SimpleNamespace(k=[])", "b.k = a.k if {k} % 2 else []"),
        Source("equality of two objects", "(2.0 if a == b else 3.0)", "a, b = [1], [1]", "b.append(1) if {k} % 2 else b.pop()"),
        Source("hasattr", "(2.0 if hasattr(thing, 'k') else 3.0)", "thing = types.SimpleNamespace()", "vars(thing).pop('k', None) or setattr(thing, 'k', 1)"),
        Source("getattr's default", "getattr(thing, 'k', 7.0)", "thing = types.SimpleNamespace()", "setattr(thing, 'k', {k}.0)"),
        Source("dict's default", "held.get('k', 7.0)", "held = {}", "held['k'] = {k}.0"),
        Source("AttributeError caught", "tried()", "thing = types.SimpleNamespace()\ndef tried():\n    try: return thing.k\n    except AttributeError: return 7.0", "thing.k = {k}.0"),
        Source("KeyError caught", "tried()", "held = {}\ndef tried():\n    try: return held['k']\n    except KeyError: return 7.0", "held['k'] = {k}.0"),
        Source("NameError caught", "tried()", "def tried():\n    try: return undefined\n    except NameError: return 7.0", "globals()['undefined'] = {k}.0"),
        Source("isinstance", "(2.0 if isinstance(thing, Thing) else 3.0)", "class Thing: pass\nclass Other: pass\nthing = Thing()", "thing.__class__ = (Thing, Other)[{k} % 2]"),
        Source("isinstance of a changed base", "(2.0 if isinstance(thing, Base) else 3.0)", "class Base: pass\nclass Other: pass\nclass Thing(Other): pass\nthing = Thing()",
               "Thing.__bases__ = ((Other,), (Base,))[{k} % 2]"),
        Source("isinstance of a registered class", "(2.0 if isinstance(thing, Base) else 3.0)", "class Base(abc.ABC): pass\nclass Thing: pass\nthing = Thing()", "Base.register(Thing)"),
        Source("callable", "(2.0 if callable(thing.k) else 3.0)", "thing = types.SimpleNamespace(k=1)", "thing.k = len if {k} % 2 else 1"),
        Source("dead weak reference", "(2.0 if weak() is None else 3.0)", "class Thing: pass\nheld = [Thing()]\nweak = weakref.ref(held[0])", "held.clear()"),
        Source("weak dictionary", "float(len(weak))", "class Thing: pass\nheld = []\nweak = weakref.WeakSet()", "held.append(Thing()); weak.add(held[-1])"),
        Source("loaded module", "(2.0 if 'made' in sys.modules else 3.0)", "sys.modules.pop('made', 0)", "sys.modules['made'] = types.ModuleType('made')"),
        Source("import inside", "tried()", "sys.modules['made'] = types.ModuleType('made')\nsys.modules['made'].k = 0.0\ndef tried():\n    from made import k\n    return k",
               "sys.modules['made'].k = {k}.0"),
        Source("subclasses", "float(len(Thing.__subclasses__()))", "class Thing: pass\nkept = []", "kept.append(type('Sub', (Thing,), {}))"),
        Source("reference count", "(2.0 if sys.getrefcount(thing) > limit else 3.0)", "thing, kept = object(), []\nlimit = sys.getrefcount(thing) + 3", "kept.append(thing)"),
    )
}  # fmt: skip
