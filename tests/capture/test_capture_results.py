# ruff: noqa: E501, F401 (tables of programs, which use the imports)
"""What a compiled function makes and returns or stores is each call's own: every container, way to store and value."""

import array
import collections
import contextlib
import functools
import io
import itertools
import sys
import types

import numpy as np
import pytest

import stratal as st
from stratal import nn
from stratal.base.errors import CaptureError

pytestmark = pytest.mark.filterwarnings("ignore::stratal.tensor.capture.recaptures.RecompileWarning")


class Items(list):
    pass


class Table(dict):
    pass


class Plain:
    def __init__(self, x=0):
        self.x = x


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


def shown(value, above=()):
    """Return a value as text: its class, and all that is found in it, functions called."""
    if any(value is x for x in above):
        return "itself"
    show = functools.partial(shown, above=(*above, value))
    name = type(value).__name__
    if isinstance(value, st.Tensor):
        return f"{name}{value.tolist()}"
    if isinstance(value, dict):
        return name + str({show(k): show(v) for k, v in value.items()})
    if isinstance(value, (set, frozenset)):
        return name + str(sorted(map(show, value)))
    if isinstance(value, (list, tuple, collections.deque)):
        return name + str([*map(show, value)])
    if isinstance(value, types.MappingProxyType):
        return name + show(dict(value))
    if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
        return name + show(value()) + show(value())
    if isinstance(value, types.BuiltinFunctionType):
        return name + show(value.__self__)
    if isinstance(value, BaseException):
        return name + show(value.args)
    if isinstance(value, slice):
        return name + show((value.start, value.stop))
    if hasattr(value, "__next__"):
        return name + show([*itertools.islice(value, 5)])
    if isinstance(value, nn.Module):
        return name + show(dict(value.named_parameters()))
    if isinstance(value, Slotted) or hasattr(value, "__dict__"):
        return name + show(value.x if isinstance(value, Slotted) else vars(value))
    if isinstance(value, (type({}.values()), type({}.items()), type({}.keys()))):
        return name + show([*value])
    return repr(value)


def history(source, compiled, sizes=(1,) * 4, arguments=(), **settings):
    """Return what calls of a function give, print and leave behind, one text for each."""
    scope = {**globals(), "L": [], "D": {}, "O": Plain(), "Q": collections.deque(maxlen=9), "S": set(),
             "B": bytearray(), "OD": collections.OrderedDict(), "DD": collections.defaultdict(list),
             "UD": collections.UserDict(), "UL": collections.UserList(), "I": Items(), "T": Table()}  # fmt: skip
    names = ("L", "D", "O", "Q", "S", "B", "OD", "DD", "UD", "UL", "I", "T")
    exec("def f(x, *args):\n" + "".join(f"    {line}\n" for line in source.splitlines()), scope)
    f = st.compile(scope["f"], audit=False, **settings) if compiled else scope["f"]
    found, results = [], []
    for k, size in enumerate(sizes):
        st.manual_seed(0)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            results.append(f(st.full((size,), float(k)), *arguments))
        held = [scope[n] for n in names if scope[n] or n == "O"]
        found.append(shown(results[-1]) + said.getvalue() + shown([held, *arguments]))
    return found


MADE = {
    "closure": "lambda: V", "default": "lambda v=V: v", "keyword default": "lambda *, v=V: v",
    "nested closure": "(lambda w: lambda: lambda: w)(V)()", "closure over a list": "(lambda n: lambda: n.append(V) or [*n])([])",
    "counter": "(lambda n: lambda: n.append(1) or len(n))([])",
    "partial": "functools.partial(lambda v: v, V)", "partial by name": "functools.partial(lambda v: v, v=V)",
    "exception": "KeyError(V)", "values": "{1: V}.values()", "items": "{1: V}.items()", "keys": "{1: V}.keys()",
    "proxy": "types.MappingProxyType({1: V})", "sum of lists": "[V] + [V]", "product": "[V] * 2", "slice of a list": "[V, 1][:1]",
    "union": "{1: V} | {2: V}", "fromkeys": "dict.fromkeys('ab', V)", "sum": "sum([[V], [V]], [])", "deque": "collections.deque([V], 3)",
    "list subclass": "Items([V])", "list subclass of numbers": "Items([1])", "dict subclass": "Table(a=V)", "namespace": "types.SimpleNamespace(a=V)",
    "Counter": "collections.Counter(a=V)", "defaultdict": "collections.defaultdict(list, {1: [V]})",
    "OrderedDict": "collections.OrderedDict([(1, V)])", "ChainMap": "collections.ChainMap({1: V})", "UserDict": "collections.UserDict(a=V)",
    "UserList": "collections.UserList([V])", "bound method": "Plain(V).__init__.__self__.__dict__.copy", "method of a list": "[V].append",
    "slice": "slice(V, None)", "map": "map(lambda v: v, [V, V])", "zip": "zip('ab', [V, V])", "enumerate": "enumerate([V])",
    "reversed": "reversed([V, V])", "iterator": "iter([V])", "chain": "itertools.chain([V], [V])", "islice": "itertools.islice([V, V], 1)",
    "count": "itertools.count(3)", "object": "Plain(V)", "slots": "Slotted(V)", "tuple": "(V, [V])", "sorted": "sorted([(1, V)])",
    "list": "list((V, V))", "dict": "dict(a=V)", "comprehension": "[v for v in (V, V)]", "nested": "[[V] + [V]] + [()]",
    "unpacked": "[*(V, V)]", "copy": "[V, [V]].copy()", "set": "set([1, 2])", "bytearray": "bytearray(b'ab')",
    "array.array": "array.array('d', [1.0])", "NumPy array": "np.ones(2)", "module": "nn.LayerNorm(1)",
    "list in itself": "(lambda l: (l.append(l), l.append(V), l)[2])([])", "object in itself": "(lambda o: (setattr(o, 'me', o), o)[1])(Plain(V))",
    "list in its tuple": "(lambda l: (l.append((l, V)), l)[1])([])", "named tuple": "collections.namedtuple('N', 'a')(V)",
    "shared": "(lambda l: [l, l])([V] + [])", "StringIO": "io.StringIO('a').getvalue()",
}  # fmt: skip
STORED = {
    "returned": "return M", "in a tuple": "return 1, M", "appended": "L.append(M)", "extended": "L.extend([M])",
    "item": "D['k'] = M", "updated": "D.update(k=M)", "attribute": "O.x = M", "of a deque": "Q.appendleft(M)",
}  # fmt: skip


@pytest.mark.parametrize("made", MADE)
def test_what_a_function_makes_is_each_calls_own(made):
    for value in ("x", "(x + 1)"):
        text = MADE[made].replace("V", value)
        for store in STORED.values():
            source = store.replace("M", f"({text})")
            assert history(source, True) == history(source, False), source


def test_made_objects_are_not_shared_between_calls():
    for text in [*MADE.values()]:
        if "namedtuple" in text or "StringIO" in text:
            continue
        f = st.compile(eval(f"lambda x: ({text.replace('V', 'x')})"), audit=False)  # noqa: S307
        results = [f(st.ones(1)) for _ in range(3)]
        assert len({*map(id, results)}) == 3, text


@pytest.mark.parametrize(
    "source",
    ["return (v for v in (x, x))", "L.append(v for v in (x, x))", "class C:\n    v = x\nreturn C",
     "class C:\n    v = x\nreturn C()", "import threading\nL.append(threading.Lock())",
     "class C:\n    def get(self):\n        return x\nreturn C()"],
)  # fmt: skip
def test_what_cannot_be_made_anew_is_refused_by_name(source):
    with pytest.raises(CaptureError, match=r"a new (class C|generator|lock)"):
        history(source, True)


# -- iterators -----------------------------------------------------------------------------------------------
YIELDING = {
    "generator": "(v for v in (x, x + 1))", "map": "map(lambda v: v, (x, x + 1))", "filter": "filter(lambda v: v is not None, [x, x + 1])",
    "reversed": "reversed([x, x + 1])", "iterator": "iter([x, x + 1])", "chain": "itertools.chain([x], [x + 1])",
    "islice": "itertools.islice([x, x + 1, x], 2)", "tuple": "(x, x + 1)", "values": "{1: x, 2: x + 1}.values()",
}  # fmt: skip
TAKING = [
    "L.extend(IT)", "Q.extend(IT)", "Q.extendleft(IT)", "OD.update(zip('ab', IT))", "DD.update(zip('ab', IT))",
    "UD.update(zip('ab', IT))", "UL.extend(IT)", "B.extend(v for v in (1, 2))", "vars(O).update(zip('ab', IT))",
    "D.setdefault('k', []).extend(IT)", "D.update(zip('ab', IT))", "D.__ior__(zip('ab', IT))", "L.__iadd__(IT)",
    "L[:0] = IT", "S.update(v for v in (1, 2))", "I.extend(IT)", "T.update(zip('ab', IT))", "L.extend(enumerate(IT))",
]  # fmt: skip


@pytest.mark.parametrize("taking", TAKING)
def test_what_an_iterator_yields_is_stored(taking):
    for yielding in YIELDING.values():
        source = taking.replace("IT", yielding)
        assert history(source, True) == history(source, False), source


def test_a_history_extended_by_an_iterator_is_no_reason_to_capture_anew():
    values = []
    f = st.compile(lambda x: values.extend(v for v in (x, x + 1)), audit=False)
    for k in range(5):
        f(st.full((1,), float(k)))
    assert f.captures == 1
    assert [v.item() for v in values] == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]


@pytest.mark.parametrize(
    "argument,write",
    [("{'k': 1.0}", "['k'] = 9.0"), ("[1.0]", "[0] = 9.0"), ("{1}", ".add(9)"), ("{'k': {'k': 1.0}}", "['k']['k'] = 9.0"),
     ("Plain({'k': 1.0})", ".x['k'] = 9.0"), ("bytearray(b'a')", "[0] = 9")],
)  # fmt: skip
def test_plain_data_in_an_argument_is_written(argument, write):
    results = [history("args[0]" + write, compiled, arguments=(eval(argument),)) for compiled in (True, False)]  # noqa: S307
    assert results[0] == results[1]


# -- sizes ---------------------------------------------------------------------------------------------------
OF_SIZES = [
    "args[0].append(x.sum())", "args[0][0] = x.sum()", "args[0].clear()", "args[0].pop() if args[0] else None",
    "args[0].extend(v for v in (x.sum(),))", "args[1]['l'].append(x.sum())", "args[1].update(k=x.sum())",
    "args[1].setdefault('n', []).append(x.sum())", "return {x.shape[0]: x.sum()}", "args[1].update({x.shape[0]: 1})",
    "args[1][x.shape[0]] = 1", "return hash(x.shape[0])", "return {x.shape[0]}", "s = set()\ns.add(x.shape[0])\nreturn s",
    "return slice(x.shape[0])", "return frozenset([x.shape[0]])", "return dict([(x.shape[0], 1)])", "return {n: 1 for n in x.shape}",
    "return {n for n in x.shape}", "return f'{x.shape[0]} {x.shape}'", "return str(x.shape[0])", "return '%s' % x.shape[0]",
    "return '{}'.format(x.shape[0])", "return repr(x.shape)", "return {3: 1}.get(x.shape[0])", "return {3: 1, 4: 2}.setdefault(x.shape[0], 9)",
    "return {3: 1, 4: 2}.pop(x.shape[0], 9)", "return dict.fromkeys(x.shape)", "return collections.Counter(x.shape)", "return x.shape[0]",
    "return {tuple(x.shape): 1}", "return (x.shape[0],) in {(3,): 5}", "return len({x.shape[0], 3, 4})", "print(x.shape[0], x.shape)",
]  # fmt: skip


@pytest.mark.parametrize("source", OF_SIZES)
@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_that_change_are_seen_in_what_is_stored_and_returned(source, dynamic):
    given = [([st.zeros(1)], {"l": [st.zeros(1)], "t": st.zeros(1)}) for _ in range(2)]
    sizes = (3, 4, 5, 6, 3)
    expected = history(source, False, sizes, given[0])
    assert history(source, True, sizes, given[1], dynamic=dynamic) == expected


@pytest.mark.parametrize("dynamic", [None, True])
def test_gradients_left_switched_off_are_refused_for_every_size(dynamic):
    f = st.compile(lambda x: (st.set_grad_enabled(False), x * 2)[1], dynamic=dynamic)
    for size in (3, 4, 5):
        with pytest.raises(CaptureError, match="switched on or off"):
            f(st.ones(size))
        assert st.is_grad_enabled()


# -- text ----------------------------------------------------------------------------------------------------
TEXTS = [
    "print(x.sum())", "print('a', x, x.sum(), sep='-')", "print(f'loss {x.sum()} of {x}')", "print(f'{x.sum():8.3f}', end='')",
    "L.append(f'{x.sum()}')", "O.x = str(x)", "D['k'] = repr([x, 1])", "return 'loss ' + str(x.sum()) + '!'", "return format(x.sum(), '.2f')",
    "return '%s of %d' % (x.sum(), 3)", "return '{} {:.1f}'.format(x, x.sum())", "return ', '.join([str(x), 'a'])",
    "return ', '.join(str(v) for v in (x, x + 1))", "return (f'{x}', 1)", "return {f'{x.sum()}': 1}.__len__()", "return ValueError(f'{x}')",
    "w = st.ones(1, requires_grad=True)\nreturn f'{w * x} {w}'", "x = x.double()\nreturn f'{x}'", "y = x.clone()\ns = str(y)\ny += 1\nreturn s",
]  # fmt: skip
LOOKED_INTO = [
    "len(str(x))", "str(x)[:3]", "str(x) == 'a'", "'1' in str(x)", "str(x).upper()", "[*str(x)]", "f'{str(x):>40}'", "f'{x!s:>40}'",
    "'%40s' % x", "'{!s:>40}'.format(x)", "{str(x): 1}", "{str(x)}", "hash(str(x))", "str(x).split('.')", "str(x) < 'a'", "str(x) * 2",
    "float(str(x.sum()))", "ord(str(x)[0])", "format(str(x), '>40')", "max(str(x), 'a')", "sorted([str(x), 'a'])", "str(x) in ['a']",
    "'a' in [str(x)]", "(str(x), 1) == ('a', 1)", "{(str(x), 1): 1}", "str(x).rjust(40)", "re.sub('1', '2', str(x))", "warnings.warn(str(x))",
]  # fmt: skip


@pytest.mark.parametrize("source", TEXTS)
def test_text_made_of_a_tensor_has_the_value_of_its_call(source):
    try:
        found = history(source, True, (2, 2, 2))
    except CaptureError:
        assert "__len__" in source
    else:
        assert found == history(source, False, (2, 2, 2))


@pytest.mark.parametrize("source", LOOKED_INTO)
def test_looking_into_text_of_a_tensor_is_refused(source):
    with pytest.raises(CaptureError, match="text that is made of a tensor's value"):
        history(f"import re, warnings\nreturn {source}", True)


# -- places that calls read without an instruction that says so ----------------------------------------------
PLACES = {
    "keywords of a compiled partial": ("p = functools.partial(lambda x, k: x * k, k=1)\nf = p", "p.keywords['k'] = i"),
    "__missing__": ("class D(dict):\n def __missing__(s, k): return 1\nd = D()\nf = lambda x: x * d['a']", "D.__missing__ = lambda s, k: i"),
    "module": ("sys.modules['stratest'] = m = types.ModuleType('stratest'); m.k = 1\ndef f(x):\n import stratest\n return x * stratest.k",
               "sys.modules['stratest'] = m = types.ModuleType('stratest'); m.k = i"),
    "cache": ("k = [1]\n@functools.lru_cache\ndef g(): return k[0]\ng()\nf = lambda x: x * g()", "k[0] = i; g.cache_clear()"),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_a_place_that_is_read_implicitly_is_guarded(place):
    setup, change = PLACES[place]
    found = []
    for compiled in (False, True):
        scope = {**globals(), "sys": sys}
        exec(setup, scope)
        f = st.compile(scope["f"], audit=False) if compiled else scope["f"]
        found.append([])
        for i in range(5):
            found[-1].append(f(st.ones(1)).tolist())
            scope["i"] = i
            exec(change, scope)
    assert found[0] == found[1]


def test_filling_a_cache_by_what_writes_is_refused():
    calls = []
    cached = functools.lru_cache(lambda: calls.append(1) or 2)
    f = st.compile(lambda x: x * cached())
    with pytest.raises(CaptureError, match="fills its cache"):
        f(st.ones(1))


@pytest.mark.parametrize("of", ["an argument", "another tensor"])
def test_results_with_a_history_that_begins_inside_are_refused(of):
    w = st.ones(1)
    f = st.compile(lambda x: ((x if of == "an argument" else w).requires_grad_(), (w * x).sum())[1])
    with pytest.raises(CaptureError, match="requires_grad"):
        f(st.ones(1))


REGIONS = {
    "cond": lambda t, x: st.cond(x.sum() > 0, t, lambda a: a, x),
    "nested": lambda t, x: st.cond(x.sum() > 0, lambda b: st.cond(b.sum() > 0, t, lambda a: a, b), lambda a: a, x),
    "loop": lambda t, x: st.fori_loop(0, 2, lambda i, a: t(a), x),
    "scan": lambda t, x: st.scan(lambda c, r: (t(c), c), x, st.ones(3, 2))[0],
}


@pytest.mark.parametrize("region", REGIONS)
def test_text_made_in_a_region_of_a_tensor_around_it_has_the_value_of_its_call(region):
    outer = st.ones(2, requires_grad=True)

    def history(way):
        said = []

        @way
        def f(x):
            computed = x * 2

            def inside(a):
                said.append(str(x) + repr(computed))
                said.append(f"{outer} {[outer]}")
                return a * 2

            return REGIONS[region](inside, x).detach()

        return [(f(st.full((2,), k)).tolist(), [*said]) for k in (1.0, 2.0, 3.0)]

    assert history(st.compile) == history(lambda f: f)
