"""Patterns of open reports of silently wrong captures in PyTorch, rewritten for a compiled function here.

Each is named by its report. Most write state: 169253 (list of a class), 191821 (a global bound again in a loop),
196173 (control flow on an object's identity), 197896 (a closure's list in a method of a class made in the call),
198189 (`move_to_end`); others alias arguments or iterate.
"""

from __future__ import annotations

import textwrap

_CALLS = """
def calls():
    for k in range(5):
        {call}
"""


def _program(text: str, call: str) -> str:
    return textwrap.dedent(text).strip() + "\n" + _CALLS.replace("{call}", call)


ISSUES = {
    "pytorch#169253 list of a class": _program(
        """
        class Model(lib.nn.Module):
            items = []
            def forward(self, x):
                Model.items.append(x)
                return x * 2
        net = Model()
        f = compiled(net.forward)
        """,
        "yield look(f(one(k)), Model.items)",
    ),
    "pytorch#176851 attribute of a class": _program(
        """
        class State:
            factor = 1.0
        @compiled
        def f(x):
            return x * State.factor
        """,
        "State.factor = 1.0 + k; yield look(f(one(4)))",
    ),
    "pytorch#196173 identity of a mutable object": _program(
        """
        class Node:
            def __init__(self, k):
                self.k, self.seen = k, 0
        a, b = Node(1.0), Node(2.0)
        class Holder:
            current = a
        @compiled
        def f(x):
            node = Holder.current
            node.seen += 1
            if node is a:
                Holder.current = b
                return x * node.k
            Holder.current = a
            return x - node.k
        """,
        "yield look(f(one(3)), a.seen, b.seen, Holder.current is a)",
    ),
    "pytorch#197896 closure's list in a method of a class made inside": _program(
        """
        def make():
            state = {"n": 0, "log": []}
            @compiled
            def f(x):
                class Helper:
                    def touch(self):
                        state["n"] += 1
                        state["log"].append(state["n"])
                Helper().touch()
                return x * 2
            return f, state
        f, state = make()
        """,
        "yield look(f(one(k)), state)",
    ),
    "pytorch#198189 move_to_end": _program(
        """
        cache = OrderedDict(a=1, b=2, c=3)
        @compiled
        def f(cache, x):
            cache.move_to_end(next(iter(cache)))
            return x + 1
        """,
        "yield look(f(cache, one(k)), list(cache))",
    ),
    "pytorch#191821 global bound again in a loop": _program(
        """
        @dataclass
        class Region:
            hidden: object
        region = Region(one(0))
        def inner():
            return region.hidden + 1
        @compiled
        def f(hidden):
            global region
            for _ in range(2):
                region = Region(hidden)
                hidden = inner()
            return hidden
        """,
        "yield look(f(one(k)), region.hidden)",
    ),
    "pytorch#196211 reversed iterator used twice": _program(
        """
        @compiled
        def f(items, x):
            same = iter(items)
            first = next(same)
            return x + first * 10 + next(items)
        """,
        "yield look(f(reversed([3 + k, 5, 7 + k]), one(1)))",
    ),
    "pytorch#175855 list that grows while it is iterated": _program(
        """
        @compiled
        def f(x):
            values = [x.sum()]
            def grow():
                for item in values:
                    if len(values) < 3:
                        values.append(item + 1)
                    yield item
            return lib.stack(list(grow())).sum()
        """,
        "yield look(f(one(k)))",
    ),
    "pytorch#152262 exhausted iterator": _program(
        """
        @compiled
        def f(x):
            it = iter([1, 2, 3])
            list(it)
            try:
                next(it)
            except StopIteration:
                return x * 2
            return x * 3
        """,
        "yield look(f(one(k)))",
    ),
    "pytorch#139789 arguments that overlap from the second call": _program(
        """
        @compiled
        def f(x, y):
            x.mul_(2)
            return x + y
        base = lib.ones(8)
        """,
        "x, y = (lib.ones(4), lib.ones(4)) if k % 2 == 0 else (base[:4], base[2:6]); yield look(f(x, y), x, y, base)",
    ),
    "pytorch#195422 in place through dropout that does nothing": _program(
        """
        @compiled
        def f(x):
            y = lib.nn.functional.dropout(x, 0.5, False)
            y += y
            return y
        """,
        "x = one(k); yield look(f(x), x)",
    ),
    "pytorch#139476 parameters that take gradients by turns": _program(
        """
        class Model(lib.nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = lib.nn.Parameter(one(2)), lib.nn.Parameter(one(3))
                self.turn = 0
            def forward(self, x):
                self.turn += 1
                return (x * self.a * self.b).sum()
        net = Model()
        f = compiled(net)
        """,
        "net.a.requires_grad_(k % 2 == 0); net.zero_grad(); loss = f(one(k + 1)); loss.backward(); yield look(loss, net.a.grad, net.b.grad, net.turn)",
    ),
    "pytorch#108898 global function put in its place": _program(
        """
        def inner(x):
            return lib.sin(x) + 20
        @compiled
        def f(x):
            def add(a, b): return a + b
            return add(inner(x), x)
        """,
        "globals().update(inner=(lib.sin, lib.cos)[k % 2]); yield look(f(one(1)))",
    ),
    "pytorch#115774 buffer put in its place": _program(
        """
        class Model(lib.nn.Module):
            def __init__(self):
                super().__init__()
                self.cache = lib.zeros(2)
            def forward(self, x, at):
                self.cache[at] = x
                return self.cache * 1
        net = Model()
        f = compiled(net)
        """,
        "yield look(f(one(k)[0], k % 2), net.cache); net.cache = lib.zeros(2)",
    ),
    "pytorch#120861 argument that is a global list": _program(
        """
        items = [1, 2, 3]
        @compiled
        def f(held, x):
            return x + 10 * items[-1] + held[-1]
        """,
        "yield look(f(items if k % 2 == 0 else [9, k], one(1))); items.append(k)",
    ),
    "pytorch#97083 view of what is assigned to later": _program(
        """
        @compiled
        def f(x):
            a = x[0:1]
            b = a.squeeze()
            a[0] = 0
            a[0] = 2
            return b * 1, x * 1
        """,
        "x = lib.ones(3) * k; yield look(f(x), x)",
    ),
    "pytorch#117496 float argument with a default": _program(
        """
        class Thing:
            def __init__(self): self.t = 16
            @compiled
            def method(self, a, t=1.0):
                return a + t + self.t
        thing = Thing()
        """,
        "thing.t = thing.t * 0.5; yield look(thing.method(one(1), t=thing.t), thing.method(one(1)))",
    ),
    "pytorch#152425 assignment to an expanded view": _program(
        """
        @compiled
        def f(x):
            a = x.clone()
            a[-1] = 3
            return a.expand(2, 3) * 1
        """,
        "yield look(f(lib.ones(3) * k))",
    ),
    "pytorch#171488 global table filled at the first call": _program(
        """
        table = {}
        @compiled
        def f(x, key):
            if key not in table:
                table[key] = len(table) + 1.0
            return x * table[key]
        """,
        "yield look(f(one(2), 'abc'[k % 3]), table)",
    ),
    "pytorch#174050 __class__ overridden": _program(
        """
        class Other: pass
        class Thing:
            k = 0
            @property
            def __class__(self): return Other if self.k % 2 else Thing
        thing = Thing()
        @compiled
        def f(x):
            return x * (2.0 if isinstance(thing, Other) else 3.0)
        """,
        "thing.k = k; yield look(f(one(1)))",
    ),
    "pytorch#100224 mask of a view in place": _program(
        """
        @compiled
        def f(x):
            out = x
            out[out > 0] *= 0.5
            return out
        """,
        "x = lib.arange(4.0) - k; yield look(f(x), x)",
    ),
    "pytorch#174166 except clause as a fallback": _program(
        """
        @compiled
        def f(x):
            try:
                return x.no_such_attribute
            except AttributeError:
                return x * scale
        scale = 2.0
        """,
        "globals().update(scale=2.0 + k); yield look(f(one(1)))",
    ),
    "pytorch#93722 lists that are one from the second call": _program(
        """
        @compiled
        def f(left, right, x):
            left.append(x + 1)
            right.append(x - 1)
            return x * (len(left) + 2 * len(right))
        """,
        "a, b = [], []; yield look(f(a, b if k % 2 else a, one(k)), a, b)",
    ),
    "pytorch#93722 deques that are one from the second call": _program(
        """
        @compiled
        def f(left, right, x):
            left.append(x + 1)
            right.appendleft(x - 1)
            return x * (len(left) + 2 * len(right))
        """,
        "a, b = deque([1.0]), deque([2.0]); yield look(f(a, b if k % 2 else a, one(k)), a, b)",
    ),
    "pytorch#124717 attribute changed by a context manager": _program(
        """
        class Model(lib.nn.Module):
            def __init__(self):
                super().__init__()
                self.disabled = False
            def forward(self, x):
                return x * x if self.disabled else x * x + 1
        net = Model()
        f = compiled(net)
        @contextlib.contextmanager
        def disabled():
            net.disabled = True
            try: yield
            finally: net.disabled = False
        def within(x):
            with disabled(): return f(x)
        """,
        "yield look(within(one(k)) if k % 2 else f(one(k)))",
    ),
    "pytorch#111785 attribute that is a view of a buffer": _program(
        """
        class Model(lib.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("table", lib.zeros(5, 2))
                self.row = self.table
            def forward(self, x):
                self.row.copy_(x)
        net = Model()
        f = compiled(net)
        """,
        "net.row = net.table[k : k + 1]; f(lib.ones(1, 2) * k); yield look(net.table)",
    ),
    "pytorch#128319 counter of a module": _program(
        """
        class Model(lib.nn.Module):
            def __init__(self):
                super().__init__()
                self.counter = 0
            def forward(self, x):
                self.counter += 1
                return x * 2
        net = Model()
        f = compiled(net)
        """,
        "yield look(f(one(k)), net.counter)",
    ),
    "pytorch#178365 functions that differ in their defaults": _program(
        """
        def make(k):
            def shift(x, by=k): return x + by
            return shift
        shifts = [make(float(k)) for k in range(3)]
        class Mask:
            def __init__(self, shift): self.shift = shift
        @compiled
        def f(mask, x):
            return mask.shift(x)
        mask = Mask(shifts[0])
        """,
        "mask.shift = shifts[k % 3]; yield look(f(mask, one(k)), f(Mask(shifts[k % 2]), one(k)))",
    ),
    "pytorch#103563 nested lists filled in the call": _program(
        """
        @compiled
        def f(x):
            data = [[1, 2, 3], [4, 5, 6]]
            for i in range(3):
                data[0][i] = x if i == 0 else data[0][i - 1] + 1
            return data[0][-1]
        """,
        "yield look(f(one(k)))",
    ),
    "pytorch#146819 subclasses of list and dict": _program(
        """
        class Items(list):
            def append(self, item):
                self.length = getattr(self, "length", 0) + 1
                super().append(item)
        class Table(dict):
            def __setitem__(self, key, item):
                super().__setitem__(key, item * 2)
        items, table = Items(), Table()
        @compiled
        def f(x):
            items.append(x)
            table[len(items)] = x
            return x * items.length
        """,
        "yield look(f(one(k)), list(items), items.length, dict(table))",
    ),
    "pytorch#161645 attribute of a named tuple's subclass": _program(
        """
        class Pair(NamedTuple):
            a: object
            b: object
        class Named(Pair): pass
        pair = Named(1.0, 2.0)
        pair.seen = 0
        @compiled
        def f(x):
            pair.seen = pair.seen + 1
            return x * pair.a + pair.seen
        """,
        "yield look(f(one(k)), pair.seen)",
    ),
    "pytorch#165385 assignment that Python refuses": _program(
        """
        class Thing: pass
        thing = Thing()
        @compiled
        def f(x):
            try: thing.__weakref__ = None
            except AttributeError: return x + 1
            return x
        """,
        "yield look(f(one(k)), vars(thing))",
    ),
    "pytorch#146628 generator that writes a tensor": _program(
        """
        def parts(x):
            yield x * 1
            x.add_(1)
            yield x * 1
        @compiled
        def f(x):
            made = parts(x)
            first = next(made)
            return first + 10 * next(made)
        """,
        "x = one(k); yield look(f(x), x)",
    ),
    "pytorch#196211 reversed iterator consumed in part": _program(
        """
        @compiled
        def f(x):
            iterator = reversed([x, x + 2, x + 5])
            last = next(iterator)
            return last - next(iter(iterator))
        """,
        "yield look(f(one(k)))",
    ),
}
