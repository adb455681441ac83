"""Where a value can stand: how a program puts it there, reads it and writes another one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Carrier:
    """A place for a value, of the program's piece number `{n}`.

    setup  lines that put `{value}` there
    read   an expression
    write  a statement that puts `{value}` there
    names  variables that `write` binds
    takes  kinds it is limited to, by prefix of their names; all without
    """

    name: str
    setup: str
    read: str
    write: str
    names: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()


def _box(name: str, definition: str, write: str = "box{n}.k = {value}", read: str = "box{n}.k") -> Carrier:
    return Carrier(name, f"{definition}\nbox{{n}} = Box{{n}}({{value}})", read, write)


def _fixed(name: str, setup: str, read: str, write: str, *names: str) -> Carrier:
    return Carrier(name, setup, read, write, names)


_VARIABLE = "v{n} = {value}"
_CLASS = "class Box{n}:\n    def __init__(self, k): self.k = k"
_OF_CLASS = "class Box{n}: pass\nBox{n}.k = {value}"
_GET = "def get{n}(): return v{n}"

VARIABLES = (
    _fixed("variable", _VARIABLE, "v{n}", _VARIABLE, "v{n}"),
    _fixed("variable of a helper", f"{_VARIABLE}\n{_GET}", "get{n}()", _VARIABLE, "v{n}"),
    _fixed("variable of a helper's helper", f"{_VARIABLE}\n{_GET}\ndef over{{n}}(): return get{{n}}()", "over{n}()", _VARIABLE, "v{n}"),
    _fixed("variable of a lambda", f"{_VARIABLE}\nget{{n}} = lambda: v{{n}}", "get{n}()", _VARIABLE, "v{n}"),
    _fixed("variable of a comprehension", _VARIABLE, "[v{n} for _ in range(1)][0]", _VARIABLE, "v{n}"),
    _fixed("variable of a generator", f"{_VARIABLE}\ndef get{{n}}():\n    yield v{{n}}", "next(get{n}())", _VARIABLE, "v{n}"),
    _fixed("variable of a method", f"{_VARIABLE}\nclass Box{{n}}:\n    def get(self): return v{{n}}\nbox{{n}} = Box{{n}}()",
           "box{n}.get()", _VARIABLE, "v{n}"),
    _fixed("variable of a static method", f"{_VARIABLE}\nclass Box{{n}}:\n    @staticmethod\n    def get(): return v{{n}}",
           "Box{n}.get()", _VARIABLE, "v{n}"),
    _fixed("variable of a class method", f"{_VARIABLE}\nclass Box{{n}}:\n    @classmethod\n    def get(cls): return v{{n}}",
           "Box{n}.get()", _VARIABLE, "v{n}"),
    _fixed("variable of a property", f"{_VARIABLE}\nclass Box{{n}}:\n    @property\n    def k(self): return v{{n}}\nbox{{n}} = Box{{n}}()",
           "box{n}.k", _VARIABLE, "v{n}"),
    _fixed("variable of a forward", f"{_VARIABLE}\nclass Net{{n}}(lib.nn.Module):\n    def forward(self): return v{{n}}\nnet{{n}} = Net{{n}}()",
           "net{n}()", _VARIABLE, "v{n}"),
    _fixed("variable of a callable", f"{_VARIABLE}\nclass Box{{n}}:\n    def __call__(self): return v{{n}}\nbox{{n}} = Box{{n}}()",
           "box{n}()", _VARIABLE, "v{n}"),
    _fixed("variable of an operator", f"{_VARIABLE}\nclass Box{{n}}:\n    def __getitem__(self, at): return v{{n}}\nbox{{n}} = Box{{n}}()",
           "box{n}[0]", _VARIABLE, "v{n}"),
    _fixed("variable of a decorated helper",
           f"{_VARIABLE}\ndef twice{{n}}(f):\n    @functools.wraps(f)\n    def outer(): return f()\n    return outer\n@twice{{n}}\n{_GET}",
           "get{n}()", _VARIABLE, "v{n}"),
    _fixed("variable of a helper called by map", f"{_VARIABLE}\ndef get{{n}}(_): return v{{n}}", "list(map(get{n}, [0]))[0]", _VARIABLE, "v{n}"),
    _fixed("variable of a sort key", f"{_VARIABLE}\ndef get{{n}}(a):\n    seen{{n}}.append(v{{n}})\n    return a\nseen{{n}} = []",
           "(sorted([1, 2], key=get{n}), seen{n}.pop(), seen{n}.clear())[1]", _VARIABLE, "v{n}"),
    _fixed("closure cell", "def make{n}():\n    v = {value}\n    def get(): return v\n    def put(new):\n        nonlocal v\n        v = new\n    return get, put\nget{n}, put{n} = make{n}()",
           "get{n}()", "put{n}({value})"),
    _fixed("closure of a closure", "def make{n}():\n    v = {value}\n    def get():\n        def inner(): return v\n        return inner()\n    def put(new):\n        nonlocal v\n        v = new\n    return get, put\nget{n}, put{n} = make{n}()",
           "get{n}()", "put{n}({value})"),
    _fixed("default argument", "def get{n}(v={value}): return v", "get{n}()", "get{n}.__defaults__ = ({value},)"),
    _fixed("keyword default", "def get{n}(*, v={value}): return v", "get{n}()", "get{n}.__kwdefaults__ = {'v': {value}}"),
    _fixed("function attribute", "def get{n}(): return get{n}.k\nget{n}.k = {value}", "get{n}()", "get{n}.k = {value}"),
    _fixed("helper put in its place", "v{n} = {value}\ndef get{n}(v=v{n}): return v", "get{n}()", "get{n} = lambda v={value}: v", "get{n}"),
    _fixed("partial's keyword", "get{n} = functools.partial(lambda v: v, v={value})", "get{n}()", "get{n}.keywords['v'] = {value}"),
    _fixed("cached function", f"{_VARIABLE}\n@functools.lru_cache\n{_GET}", "get{n}()", _VARIABLE + "; get{n}.cache_clear()", "v{n}"),
    _fixed("globals()", "globals()['v{n}'] = {value}", "globals()['v{n}']", "globals()['v{n}'] = {value}"),
    _fixed("eval", "globals()['v{n}'] = {value}", "eval('v{n}')", "globals()['v{n}'] = {value}"),
    _fixed("built-in name", "builtins.v{n} = {value}", "builtins.v{n}", "builtins.v{n} = {value}"),
    _fixed("module attribute", "sys.modules['made{n}'] = made{n} = types.ModuleType('made{n}')\nmade{n}.k = {value}", "made{n}.k", "made{n}.k = {value}"),
    _fixed("imported module", "sys.modules['made{n}'] = types.ModuleType('made{n}')\nsys.modules['made{n}'].k = {value}",
           "importlib.import_module('made{n}').k", "sys.modules['made{n}'].k = {value}"),
    _fixed("context variable", "cell{n} = contextvars.ContextVar('cell{n}')\ncell{n}.set({value})", "cell{n}.get()", "cell{n}.set({value})"),
    _fixed("thread's variable", "box{n} = threading.local()\nbox{n}.k = {value}", "box{n}.k", "box{n}.k = {value}"),
    Carrier("environment", "os.environ['V{n}'] = {value}", "os.environ['V{n}']", "os.environ['V{n}'] = {value}", takes=("str",)),
)  # fmt: skip

ATTRIBUTES = (
    _box("attribute", _CLASS),
    _box("attribute by getattr", _CLASS, read="getattr(box{n}, 'k')"),
    _box("attribute by getattr with a default", _CLASS, read="getattr(box{n}, 'k', None)"),
    _box("attribute by vars", _CLASS, read="vars(box{n})['k']"),
    _box("attribute by attrgetter", _CLASS, read="operator.attrgetter('k')(box{n})"),
    _box("attribute of an attribute", "class Box{n}:\n    def __init__(self, k): self.inner = types.SimpleNamespace(k=k)", "box{n}.inner.k = {value}", "box{n}.inner.k"),
    _box("attribute in a method", _CLASS + "\n    def get(self): return self.k", read="box{n}.get()"),
    _box("attribute in an inherited method", "class Base{n}:\n    def get(self): return self.k\n"
         "class Box{n}(Base{n}):\n    def __init__(self, k): self.k = k\n    def get(self): return super().get()", read="box{n}.get()"),
    _box("attribute of equal objects", _CLASS + "\n    def __eq__(self, other): return True\n    def __hash__(self): return 1"),
    _box("attribute of an unhashable object", _CLASS + "\n    def __eq__(self, other): return self is other"),
    _box("slot", "class Box{n}:\n    __slots__ = ('k',)\n    def __init__(self, k): self.k = k"),
    _box("SimpleNamespace", "def Box{n}(k): return types.SimpleNamespace(k=k)"),
    _box("argparse Namespace", "def Box{n}(k): return Namespace(k=k)"),
    _box("dataclass", "@dataclass\nclass Box{n}:\n    k: object"),
    _box("slotted dataclass", "@dataclass(slots=True)\nclass Box{n}:\n    k: object"),
    _box("frozen dataclass", "@dataclass(frozen=True)\nclass Box{n}:\n    k: object", "object.__setattr__(box{n}, 'k', {value})"),
    _fixed("named tuple put in its place", "class Box{n}(NamedTuple):\n    k: object\nbox{n} = Box{n}({value})", "box{n}.k", "box{n} = Box{n}({value})", "box{n}"),
    _fixed("object put in its place", _CLASS + "\nbox{n} = Box{n}({value})", "box{n}.k", "box{n} = Box{n}({value})", "box{n}"),
    _box("property", "class Box{n}:\n    def __init__(self, k): self._k = k\n    @property\n    def k(self): return self._k\n    @k.setter\n    def k(self, new): self._k = new"),
    _box("cached property", "class Box{n}:\n    def __init__(self, k): self._k = k\n    @functools.cached_property\n    def k(self): return self._k",
         "box{n}._k = {value}; vars(box{n}).pop('k', None)"),
    _box("descriptor", "class Cell{n}:\n    def __get__(self, box, kind): return box._k\n    def __set__(self, box, new): box._k = new\n"
         "class Box{n}:\n    k = Cell{n}()\n    def __init__(self, k): self.k = k"),
    _box("descriptor's own table", "class Cell{n}:\n    def __init__(self): self.held = weakref.WeakKeyDictionary()\n    def __get__(self, box, kind): return self.held[box]\n"
         "    def __set__(self, box, new): self.held[box] = new\nclass Box{n}:\n    k = Cell{n}()\n    def __init__(self, k): self.k = k"),
    _box("__getattr__", "class Box{n}:\n    def __init__(self, k): self._held = {'k': k}\n    def __getattr__(self, name): return self._held[name]", "box{n}._held['k'] = {value}"),
    _box("__getattribute__", "class Box{n}:\n    def __init__(self, k): self._k = k\n    def __getattribute__(self, name): return object.__getattribute__(self, '_k')",
         "object.__setattr__(box{n}, '_k', {value})"),
    _fixed("class attribute", _OF_CLASS, "Box{n}.k", "Box{n}.k = {value}"),
    _fixed("class attribute of an instance", _OF_CLASS + "\nbox{n} = Box{n}()", "box{n}.k", "Box{n}.k = {value}"),
    _fixed("class attribute of a base", "class Base{n}: pass\nBase{n}.k = {value}\nclass Box{n}(Base{n}): pass\nbox{n} = Box{n}()", "box{n}.k", "Base{n}.k = {value}"),
    _fixed("class attribute by type()", _OF_CLASS + "\nbox{n} = Box{n}()", "type(box{n}).k", "Box{n}.k = {value}"),
    _fixed("attribute that hides a class attribute", _OF_CLASS + "\nbox{n} = Box{n}()", "box{n}.k", "box{n}.k = {value}"),
    _fixed("attribute of a metaclass", "class Meta{n}(type): pass\nMeta{n}.k = staticmethod({value})\nclass Box{n}(metaclass=Meta{n}): pass", "Box{n}.k", "Meta{n}.k = staticmethod({value})"),
    _fixed("method put in its place", "class Box{n}: pass\nbox{n} = Box{n}()\nbox{n}.get = lambda v={value}: v", "box{n}.get()", "box{n}.get = lambda v={value}: v"),
    _fixed("method of a class put in its place", "class Box{n}: pass\nBox{n}.get = lambda self, v={value}: v\nbox{n} = Box{n}()", "box{n}.get()",
           "Box{n}.get = lambda self, v={value}: v"),
    _box("nn module's attribute", "class Box{n}(lib.nn.Module):\n    def __init__(self, k):\n        super().__init__()\n        self.k = k\n    def forward(self): return self.k", read="box{n}()"),
    _box("nn module's private list", "class Box{n}(lib.nn.Module):\n    def __init__(self, k):\n        super().__init__()\n        self._held = [k]\n    def forward(self): return self._held[0]",
         "box{n}._held[0] = {value}", "box{n}()"),
    _fixed("nn module's class attribute", "class Box{n}(lib.nn.Module):\n    def forward(self): return self.k\nBox{n}.k = {value}\nbox{n} = Box{n}()", "box{n}()", "Box{n}.k = {value}"),
    _box("attribute of a submodule", "class Box{n}(lib.nn.Module):\n    def __init__(self, k):\n        super().__init__()\n        self.inner = lib.nn.Identity()\n        self.inner.k = k\n    def forward(self): return self.inner.k",
         "box{n}.inner.k = {value}", "box{n}()"),
    _fixed("weakly held object", _CLASS + "\nbox{n} = Box{n}({value})\nweak{n} = weakref.ref(box{n})", "weak{n}().k", "box{n}.k = {value}"),
)  # fmt: skip

ITEMS = (
    _fixed("list item", "box{n} = [{value}]", "box{n}[0]", "box{n}[0] = {value}"),
    _fixed("last list item", "box{n} = [{value}]", "box{n}[-1]", "box{n}.append({value})"),
    _fixed("list item by unpacking", "box{n} = [{value}, 0]", "(lambda a, *rest: a)(*box{n})", "box{n}[0] = {value}"),
    _fixed("list item by iteration", "box{n} = [{value}]", "[a for a in box{n}][0]", "box{n}[0] = {value}"),
    _fixed("list item by itemgetter", "box{n} = [{value}]", "operator.itemgetter(0)(box{n})", "box{n}[0] = {value}"),
    _fixed("list in a tuple", "box{n} = ([{value}],)", "box{n}[0][0]", "box{n}[0][0] = {value}"),
    _fixed("dict item", "box{n} = {'k': {value}}", "box{n}['k']", "box{n}['k'] = {value}"),
    _fixed("dict item by get", "box{n} = {'k': {value}}", "box{n}.get('k')", "box{n}['k'] = {value}"),
    _fixed("dict item by **", "box{n} = {'k': {value}}", "(lambda k: k)(**box{n})", "box{n}['k'] = {value}"),
    _fixed("dict item by values", "box{n} = {'k': {value}}", "next(iter(box{n}.values()))", "box{n}['k'] = {value}"),
    _fixed("dict item by match", "box{n} = {'k': {value}}\ndef get{n}():\n    match box{n}:\n        case {'k': found}: return found", "get{n}()", "box{n}['k'] = {value}"),
    _fixed("dict of lists of dicts", "box{n} = {'a': [{'k': {value}}]}", "box{n}['a'][0]['k']", "box{n}['a'][0]['k'] = {value}"),
    _fixed("dict put in its place", "box{n} = {'k': {value}}", "box{n}['k']", "box{n} = {'k': {value}}", "box{n}"),
    _fixed("deque item", "box{n} = deque([{value}])", "box{n}[0]", "box{n}[0] = {value}"),
    _fixed("deque that turns", "box{n} = deque([{value}], maxlen=1)", "box{n}[0]", "box{n}.append({value})"),
    _fixed("OrderedDict item", "box{n} = OrderedDict(k={value})", "box{n}['k']", "box{n}['k'] = {value}"),
    _fixed("defaultdict item", "box{n} = defaultdict(list, k={value})", "box{n}['k']", "box{n}['k'] = {value}"),
    _fixed("ChainMap item", "box{n} = ChainMap({}, {'k': {value}})", "box{n}['k']", "box{n}.maps[1]['k'] = {value}"),
    _fixed("UserDict item", "box{n} = UserDict(k={value})", "box{n}['k']", "box{n}['k'] = {value}"),
    _fixed("UserList item", "box{n} = UserList([{value}])", "box{n}[0]", "box{n}[0] = {value}"),
    _fixed("mapping proxy's item", "under{n} = {'k': {value}}\nbox{n} = types.MappingProxyType(under{n})", "box{n}['k']", "under{n}['k'] = {value}"),
    _fixed("item of an array of objects", "box{n} = np.empty(1, object)\nbox{n}[0] = {value}", "box{n}[0]", "box{n}[0] = {value}"),
    _fixed("item of a list's subclass", "class Box{n}(list): pass\nbox{n} = Box{n}([{value}])", "box{n}[0]", "box{n}[0] = {value}"),
    _fixed("item of an attribute", "box{n} = types.SimpleNamespace(items=[{value}])", "box{n}.items[0]", "box{n}.items[0] = {value}"),
    _fixed("item of a class attribute", "class Box{n}:\n    items = []\nBox{n}.items.append({value})", "Box{n}.items[0]", "Box{n}.items[0] = {value}"),
    _fixed("item of a default", "def get{n}(held=[{value}]): return held[0]", "get{n}()", "get{n}.__defaults__[0][0] = {value}"),
    _fixed("item by an alias", "box{n} = [{value}]\nalso{n} = box{n}", "box{n}[0]", "also{n}[0] = {value}"),
)  # fmt: skip

CARRIERS = {carrier.name: carrier for carrier in (*VARIABLES, *ATTRIBUTES, *ITEMS)}
