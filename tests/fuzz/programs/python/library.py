"""Calls of Python's library and of NumPy: what each does to the objects that it is given, and to the process."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

_GROUPS: dict[str, tuple[str, str, str]] = {
    # what stands outside; what a function does with it, one of these a program; what is looked at after each call
    "list": (
        "held = [3, 1, 2]\nimport bisect, functools, heapq, json, operator",
        """
        heapq.heappush(held, 0) | heapq.heappushpop(held, 2) | heapq.heapify(held) | heapq.heapreplace(held, 9) | heapq.nsmallest(1, held)
        bisect.insort(held, 2) | bisect.bisect(held, 2) | held.sort(key=lambda v: -v) | held.reverse() | held.insert(0, len(held))
        held.remove(1) if 1 in held else 0 | held.clear() | held.extend(held) | held.__imul__(2) | held.copy() | held.pop() if held else 0
        held.index(2) if 2 in held else -1 | held.__setitem__(slice(0, 1), [7, 7]) | held.append(held.__delitem__(0)) | max(held, key=lambda v: -v)
        [*map(str, held)] | sorted(held) | sum(held) | json.dumps(held) | functools.reduce(operator.add, held, 0)
        held.append(len(held)) | operator.iadd(held, [1]) | operator.setitem(held, 0, held[0] + 1) | held.count(3) | any(held)
        [held.append(v) for v in held[:1]] | list(zip(held, held)) | [*enumerate(held)] | [*filter(None, held)] | held == [3, 1, 2]
        """,
        "held",
    ),
    "dict": (
        "held = {'a': 1, 'b': 2, 'c': 3, 'd': 4, 'e': 5, 'f': 6}",
        """
        held.setdefault('q%d' % len(held), 1) | held.pop('a', None) | held.popitem() | held.__ior__({'m': len(held)}) | held.get('zz')
        dict.update(held, n=len(held)) | dict.fromkeys('ab') | [*held.items()] | held.update([('a', held['a'] + 1)]) | held.clear()
        held.__delitem__(min(held)) | {**held, 'a': 2} | held | {'k': 1} | list(reversed(held)) | 'a' in held | held.keys() & {'a'}
        """,
        "list(held.items())",
    ),
    "set": (
        "held, frozen = {1, 2, 3}, frozenset([1, 2])",
        """
        held.add(len(held)) | held.discard(1) | held.__ior__({5, len(held)}) | held & frozen | held.update([len(held), 7])
        held.difference_update({1, len(held)}) | held.issuperset(frozen) | held.remove(max(held)) if held else 0 | len(held ^ {1, 9}) | held.clear()
        held.symmetric_difference_update({1, 9}) | held.intersection_update({1, 2}) | sorted(held)
        """,
        "sorted(held)",
    ),
    "collections": (
        """
        from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
        queue, chain, counts, ordered = deque([1, 2, 3]), ChainMap({}, {'k': 1}), Counter('ab'), OrderedDict(a=1, b=2, c=3, d=4)
        table, items, default, point = UserDict(a=1), UserList(), defaultdict(int), namedtuple('Point', 'a b')(1, 2)
        """,
        """
        queue.rotate(1) | queue.append(queue.popleft() * 2) | queue.extendleft([1]) | queue.insert(1, len(queue)) | queue.reverse()
        chain['k'] | chain.__setitem__('k', chain['k'] + 1) | chain.new_child({'z': 1})['k'] | chain.maps[0].update(k=len(chain.maps[0]))
        counts.update('ab') | counts.subtract('a') | counts.most_common(1) | counts['zz'] | counts.total() | +counts
        ordered.move_to_end(next(iter(ordered))) | ordered.popitem(last=False) if ordered else 0 | ordered.__setitem__('z', len(ordered))
        table.update(a=table['a'] + 1) | table.pop('a', 0) | items.append(len(items)) | items.extend([len(items)])
        default['new%d' % len(default)] | default['a'] | default.get('zz') | point._replace(a=point.a + 1) | point._asdict()
        """,
        "queue, list(chain.maps), counts, list(ordered.items()), table.data, items.data, dict(default), point",
    ),
    "bytes": (
        "import array, binascii, codecs, struct, zlib\nheld, floats = bytearray(b'abc'), array.array('d', [1.0, 2.0])\n"
        "view, packer, coder = memoryview(held), struct.Struct('B'), zlib.compressobj()\n"
        "decoder = codecs.getincrementaldecoder('utf-8')()",
        """
        held.__setitem__(0, (held[0] + 1) % 256) | view.__setitem__(0, (view[0] + 1) % 256) | view[0] | floats.append(floats[-1] + 1)
        floats.__setitem__(0, floats[0] * 2) | floats.reverse() | packer.pack_into(held, 0, (held[0] + 1) % 256) | struct.unpack_from('B', held)
        zlib.crc32(held) | binascii.hexlify(held) | coder.compress(b'abc' * 9) + coder.flush(2) | decoder.decode(b'\\xa9' if decoder.getstate()[0] else b'\\xc3')
        codecs.lookup('utf-8').name | held.decode() | bytes(held) | held.replace(b'a', b'b') | floats.tobytes() | view.tolist()
        """,
        "bytes(held), list(floats), decoder.getstate()",
    ),
    "NumPy": (
        "import numpy as np\nheld, square, pairs = np.array([3.0, 1.0, 2.0]), np.eye(3), np.zeros(2, [('a', 'f8'), ('b', 'f8')])\n"
        "objects, flat, flat_of = np.array([1, []], dtype=object), held.flat, iter(held.flat)",
        """
        np.copyto(held, held + 1) | held.sort() | held.__setitem__(0, held[0] + 1) | held.fill(held[1] + 1) | np.add(held, 1, out=held)
        held.resize((1, 3)) | setattr(held, 'shape', (3, 1)) | setattr(held, 'dtype', np.int64) | held.setflags(write=False) | held.tolist()
        held.view().__setitem__(0, held[0] + 1) | held[1:].__iadd__(1) | np.put(held, [0], held[0] + 1) | np.place(held, held > 0, [9.0])
        np.fill_diagonal(square, square[0, 0] + 1) | square.T.__setitem__((0, 1), square[0, 1] + 1) | held.partition(1) | held.byteswap(inplace=True)
        pairs.__setitem__(0, (pairs['a'][0] + 1, 2.0)) | pairs['b'].__setitem__(0, pairs['b'][0] + 1) | objects.__setitem__(0, objects[0] + 1)
        objects[1].append(1) | flat[0] | flat.__setitem__(0, held[0] + 1) | next(flat_of, 0) | np.random.shuffle(held) | held.sum() | np.seterr(all='ignore')
        np.set_printoptions(precision=3) | np.geterr()['over'] | np.get_printoptions()['precision'] | setattr(held, 'real', 2.0) | held.argsort()
        np.multiply.at(held, [0], 2.0) | np.minimum.reduce(held) | np.einsum('i,i', held, held) | np.nditer(held)
        """,
        "held.copy(), held.shape, str(held.dtype), square.copy(), pairs.copy(), list(objects), np.geterr(), np.get_printoptions()['precision']",
    ),
    "objects": (
        """
        import dataclasses, enum, fractions, functools, types, weakref
        @dataclasses.dataclass
        class Data:
            v: int = 1
            items: list = dataclasses.field(default_factory=list)
        class Kind(enum.Enum): A = 1
        class Property:
            _v = 0
            @property
            def value(self): return self._v
            @value.setter
            def value(self, v): self._v = v
        class Slotted: __slots__ = ('v',)
        class Descriptor:
            def __get__(self, owner, kind): return getattr(owner, '_x', 0)
            def __set__(self, owner, v): owner._x = v
        class Described: x = Descriptor()
        class Callable:
            n = 0
            def __call__(self): self.n += 1; return self.n
        class Lazy:
            @functools.cached_property
            def found(self): return len(vars(self))
        class Plain: pass
        data, names, prop, slotted, described, call, lazy, plain = Data(), types.SimpleNamespace(v=1), Property(), Slotted(), Described(), Callable(), Lazy(), Plain()
        slotted.v = 1
        def count():
            k = 0
            while True: k += 1; yield k
        made = count()
        part = functools.partial(int, '3')
        @functools.lru_cache
        def cached(): return 4
        @functools.singledispatch
        def single(v): return 1
        weak, fraction = weakref.WeakValueDictionary(), fractions.Fraction(1, 3)
        """,
        """
        setattr(data, 'v', data.v + 1) | data.items.append(1) | data == Data() | dataclasses.replace(data, v=3).v | dataclasses.asdict(data)
        names.__dict__.update(w=len(vars(names))) | setattr(names, 'v', names.v + 1) | Kind.A.value | Kind(1) is Kind.A | Kind['A'].name
        prop.value | setattr(prop, 'value', prop.value + 1) | slotted.v | setattr(slotted, 'v', slotted.v + 1) | delattr(plain, 'zz') if hasattr(plain, 'zz') else 0
        described.x | setattr(described, 'x', described.x + 1) | call() | made.send(None) | next(made) | lazy.found | vars(lazy).pop('found', 0)
        part() | cached() | cached.cache_clear() | single(1) | fraction + 1 | plain.__dict__.update(a=len(vars(plain))) | setattr(Plain, 'k', getattr(Plain, 'k', 0) + 1)
        object.__setattr__(plain, 'z', len(vars(plain))) | len(weak) | weak.__setitem__('a', plain)
        type('T', (), {}).__name__ | type(plain).__name__ | dir(plain)[-1] | Plain.__dict__.get('k') | isinstance(call, Plain) | plain.__class__.__name__
        """,
        "data.v, data.items, vars(names), prop._v, slotted.v, vars(described), call.n, vars(lazy), vars(plain), getattr(Plain, 'k', None)",
    ),
    "process": (
        """
        import builtins, contextvars, ctypes, decimal, gc, queue, sys, threading, warnings
        lock, again, ready, tasks = threading.Lock(), threading.RLock(), threading.Event(), queue.Queue()
        condition, places, own, variable = threading.Condition(), threading.Semaphore(30), threading.local(), contextvars.ContextVar('v', default=1)
        text, number = ctypes.create_string_buffer(8), ctypes.c_int(3)
        """,
        """
        gc.collect() is None | gc.disable() | gc.isenabled() | gc.set_threshold(600, 10, 10) | gc.get_threshold()[0] | gc.freeze() | gc.get_count()[0] > -1
        lock.acquire(False) | lock.locked() | lock.acquire() and lock.release() | again.acquire() | again.__enter__() and again.__exit__(None, None, None)
        tasks.put(2) | tasks.qsize() | ready.set() | ready.is_set() | condition.acquire(False) | places.acquire(False) | places._value | places.release()
        own.__dict__.update(x=getattr(own, 'x', 0) + 1) | setattr(own, 'x', getattr(own, 'x', 0) + 1) | variable.get() | variable.set(variable.get() + 1)
        number.value | setattr(number, 'value', number.value + 1) | text.value | threading.current_thread().name
        decimal.getcontext().prec | setattr(decimal.getcontext(), 'prec', decimal.getcontext().prec + 1) | decimal.Decimal(1) / 3 | sys.getrecursionlimit()
        setattr(builtins, 'fuzzed', getattr(builtins, 'fuzzed', 0) + 1) | len(sys.path) | threading.active_count() > 0 | sys.setswitchinterval(0.005)
        """,
        "gc.isenabled(), gc.get_threshold(), lock.locked(), again._is_owned(), list(tasks.queue), ready.is_set(), places._value, vars(own), variable.get(), number.value, decimal.getcontext().prec, getattr(builtins, 'fuzzed', 0)",
    ),
}  # fmt: skip

_PROGRAM = """
def calls():
{setup}
    @compiled
    def f(x):
        found = {expression}
        return x * 1.0, found
    for k in range(5):
        r = f(one(k))
        yield look(r[1] if isinstance(r[1], (int, float, str, bytes, list, tuple, dict, set)) else type(r[1]).__name__, {state})
"""


def library_programs() -> Iterator[tuple[str, str]]:
    """Yield names and texts of programs."""
    for group, (setup, expressions, state) in _GROUPS.items():
        outside = textwrap.indent(textwrap.dedent(setup).strip(), "    ")
        for line in textwrap.dedent(expressions).strip().splitlines():
            for expression in line.split(" | "):
                text = _PROGRAM.format(setup=outside, expression=expression, state=state)
                yield f"{group}: {expression}", text
