"""What a function can write beside its result, and what it can return: rows of lines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effect:
    """Something a function does: `body` lines with `out` and `x`, after `setup`; `seen` is observed after each call.

    results  what it returns beside `out`
    before   a statement ahead of call `{k}`
    given    an expression for an argument of the function, `{a}` in its body
    """

    name: str
    setup: str = ""
    body: str = ""
    seen: tuple[str, ...] = ()
    results: str = ""
    before: str = ""
    given: str = ""
    names: tuple[str, ...] = ()


_HELD = "held = []"
_THING = "thing = types.SimpleNamespace(k=0)"
_PARAMETER = "w = lib.nn.Parameter(lib.ones(3))\nopt = lib.optim.SGD([w], lr=0.5, momentum=0.9)"
_STEP = "opt.zero_grad()\n(x * w).sum().backward()\nopt.step()"


def _list(name: str, body: str, setup: str = "held = [3.0, 1.0, 2.0]") -> Effect:
    return Effect(f"list: {name}", setup, body, ("held",), names=("held",) if "=" in name else ())


def _dict(name: str, body: str, setup: str = "held = {'a': 1.0, 'b': 2.0}") -> Effect:
    return Effect(f"dict: {name}", setup, body, ("held",), names=("held",) if "=" in name else ())


WRITES = (
    _list("append", "held.append(1.0)"),
    _list("append a counter", "held.append(len(held))"),
    _list("append a tensor", "held.append(x * 2)"),
    _list("append the result", "held.append(out)"),
    _list("append a loss", "held.append((out * out).sum())"),
    _list("append item()", "held.append(out.sum().item())"),
    _list("append an argument", "held.append(x)"),
    _list("extend", "held.extend([1.0, 2.0])"),
    _list("insert", "held.insert(0, float(len(held)))"),
    _list("pop", "out = out + held.pop()", "held = [float(k) for k in range(20)]"),
    _list("remove", "held.remove(held[0])", "held = [float(k) for k in range(20)]"),
    _list("del", "del held[0]", "held = [float(k) for k in range(20)]"),
    _list("clear", "held.clear()"),
    _list("sort", "held.sort()\nheld.append(0.5)"),
    _list("reverse", "held.reverse()\nout = out + held[0]"),
    _list("assign an item", "held[0] = held[0] + 1\nout = out * held[0]"),
    _list("assign a tensor", "held[0] = x * 3\nout = out + held[0]"),
    _list("assign a slice", "held[:2] = [held[1], held[0]]\nout = out + held[0]"),
    _list("+=", "held += [1.0]"),
    _list("*=", "held *= 1\nheld[0] += 1"),
    _list("undone in the call", "held.append(1.0)\nout = out + len(held)\nheld.pop()"),
    _list("append in a helper", "note()", "held = []\ndef note(): held.append(1)"),
    _list("append in a method of a class made in the call", "class Note:\n    def touch(self): held.append(1)\nNote().touch()"),
    _list("append in a comprehension", "[held.append(k) for k in range(2)]"),
    _list("append in finally", "try:\n    out = out + 1\nfinally:\n    held.append(1)"),
    _list("append in an except clause", "try:\n    {}['a']\nexcept KeyError:\n    held.append(1)"),
    _list("append by a context manager", "with noted():\n    out = out + 1", "held = []\n@contextlib.contextmanager\ndef noted():\n    held.append('in')\n    yield\n    held.append('out')"),
    _list("append by a generator", "out = out + sum(noted())", "held = []\ndef noted():\n    held.append(1)\n    yield 1.0\n    held.append(2)"),
    _dict("assign", "held['a'] = held['a'] + 1\nout = out * held['a']"),
    _dict("assign a constant", "held['c'] = 3.0"),
    _dict("new key each call", "held[len(held)] = 1.0"),
    _dict("assign a tensor", "held['a'] = x * 2\nout = out + held['a']"),
    _dict("+=", "held['a'] += 1"),
    _dict("del", "held.pop('a', None)\nheld.setdefault('a', 9.0)"),
    _dict("update", "held.update(a=held['a'] * 2)"),
    _dict("|=", "held |= {'z': float(len(held))}"),
    _dict("setdefault", "out = out + held.setdefault('n', 5.0)"),
    _dict("lazily filled", "if 'n' not in held:\n    held['n'] = 4.0\nout = out * held['n']"),
    _dict("popitem", "held.popitem()\nheld['z'] = len(held)"),
    _dict("order", "held['a'] = held.pop('a')\nout = out + list(held.values())[0]\nheld['b'] = held.pop('b')"),
    Effect("OrderedDict: move_to_end", "held = OrderedDict(a=1.0, b=2.0)", "held.move_to_end(next(iter(held)))\nout = out + next(iter(held.values()))", ("held",)),
    Effect("defaultdict: touch", "held = defaultdict(int)", "held[len(held)] += 1", ("held",)),
    Effect("Counter: update", "held = Counter()", "held.update('ab')", ("held",)),
    Effect("set: add", "held = set()", "held.add(len(held))", ("held",)),
    Effect("set: discard", "held = set(range(20))", "held.discard(len(held) - 1)", ("held",)),
    Effect("deque: append", "held = deque(maxlen=3)", "held.append(len(held))", ("held",)),
    Effect("deque: append a tensor", "held = deque(maxlen=3)", "held.append(x * 2)\nout = out + sum(held)", ("held",)),
    Effect("deque: rotate", "held = deque([1.0, 2.0, 3.0])", "held.rotate()\nout = out + held[0]", ("held",)),
    Effect("UserDict: assign", "held = UserDict(a=1.0)", "held['a'] += 1", ("held",)),
    Effect("ChainMap: assign", "held = ChainMap({}, {'a': 1.0})", "held['a'] += 1", ("held",)),
    Effect("bytearray: append", "held = bytearray()", "held.append(1)", ("held",)),
    Effect("array: append", "held = array('d')", "held.append(1.0)", ("held",)),
    Effect("numpy array: +=", "held = np.zeros(2)", "held += 1", ("held",), names=("held",)),
    Effect("numpy array: item", "held = np.zeros(2)", "held[0] += 1\nout = out + held[0]", ("held",)),
    Effect("attribute: +=", _THING, "thing.k += 1\nout = out * thing.k", ("thing.k",)),
    Effect("attribute: += unread", _THING, "thing.k += 1", ("thing.k",)),
    Effect("attribute: constant", _THING, "thing.k = 7", ("thing.k",), before="thing.k = {k}"),
    Effect("attribute: toggled", "thing = types.SimpleNamespace(k=False)", "thing.k = not thing.k\nout = out * (2.0 if thing.k else 3.0)", ("thing.k",)),
    Effect("attribute: tensor", _THING, "thing.k = x * 2", ("thing.k",)),
    Effect("attribute: running tensor", "thing = types.SimpleNamespace(k=lib.zeros(3))", "thing.k = thing.k * 0.5 + x\nout = out + thing.k", ("thing.k",)),
    Effect("attribute: created", _THING, "if not hasattr(thing, 'j'):\n    thing.j = 5.0\nout = out * thing.j", ("vars(thing)",)),
    Effect("attribute: deleted", "thing = types.SimpleNamespace(k=1)", "vars(thing).pop('k', None)", ("vars(thing)",), before="thing.k = {k}"),
    Effect("attribute: setattr", _THING, "setattr(thing, 'k', thing.k + 1)", ("thing.k",)),
    Effect("attribute: of self in a method", "class Thing:\n    def __init__(self): self.k = 0\n    def step(self, a):\n        self.k += 1\n        return a * self.k\nthing = Thing()", "out = thing.step(out)", ("thing.k",)),
    Effect("attribute: property's setter", "class Thing:\n    _k = 0\n    @property\n    def k(self): return self._k\n    @k.setter\n    def k(self, new): self._k = new\nthing = Thing()", "thing.k += 1", ("thing.k",)),
    Effect("attribute: slot", "class Thing:\n    __slots__ = ('k',)\nthing = Thing()\nthing.k = 0", "thing.k += 1", ("thing.k",)),
    Effect("attribute: class", "class Thing:\n    k = 0", "Thing.k += 1", ("Thing.k",)),
    Effect("attribute: list of a class", "class Thing:\n    items = []", "Thing.items.append(1)", ("Thing.items",)),
    Effect("attribute: function", "def helper(): pass\nhelper.k = 0", "helper.k += 1\nout = out * helper.k", ("helper.k",)),
    Effect("attribute: module", "made = types.ModuleType('made')\nmade.k = 0", "made.k += 1", ("made.k",)),
    Effect("attribute: nn module's counter", "class Net(lib.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.k = 0\n    def forward(self, a):\n        self.k += 1\n        return a * self.k\nnet = Net()",
           "out = net(out)", ("net.k",)),
    Effect("attribute: nn module's toggle", "class Net(lib.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.odd = False\n    def forward(self, a):\n        self.odd = not self.odd\n        return a * 2 if self.odd else a\nnet = Net()",
           "out = net(out)", ("net.odd",)),
    Effect("attribute: nn module's last tensor", "class Net(lib.nn.Module):\n    def forward(self, a):\n        self.last = a * 2\n        return a\nnet = Net()", "out = net(out)", ("net.last",)),
    Effect("attribute: nn module's buffer", "class Net(lib.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.register_buffer('n', lib.zeros(()))\n    def forward(self, a):\n        self.n += 1\n        return a * self.n\nnet = Net()",
           "out = net(out)", ("net.n",)),
    Effect("attribute: nn module's mode", "net = lib.nn.Sequential(lib.nn.Tanh())", "net.train(not net.training)\nout = net(out)", ("net.training",)),
    Effect("attribute: of an argument", _THING, "{a}.k += 1\nout = out * {a}.k", ("thing.k",), given="thing"),
    Effect("item of an argument", _HELD, "{a}.append(len({a}))", ("held",), given="held"),
    Effect("tensor put into an argument", "batch = {}", "{a}['loss'] = out.sum()", ("batch",), given="batch"),
    Effect("variable: +=", "count = 0", "count += 1\nout = out * count", ("count",), names=("count",)),
    Effect("variable: += unread", "count = 0", "count += 1", ("count",), names=("count",)),
    Effect("variable: tensor", "last = None", "last = x * 2", ("last",), names=("last",)),
    Effect("variable: running tensor", "last = lib.zeros(3)", "last = last * 0.5 + x\nout = out + last", ("last",), names=("last",)),
    Effect("variable: in a helper", "box = [0]\ndef turn():\n    global count_of_helper\n    count_of_helper = globals().get('count_of_helper', 0) + 1", "turn()", ("globals().get('count_of_helper')",)),
    Effect("closure cell", "def make():\n    count = 0\n    def turn():\n        nonlocal count\n        count += 1\n        return count\n    return turn\nturn = make()", "out = out * turn()", ("turn()",)),
    Effect("context variable: set", "cell = contextvars.ContextVar('cell', default=0)", "cell.set(cell.get() + 1)", ("cell.get()",)),
    Effect("environment", "", "os.environ['FUZZED'] = os.environ.get('FUZZED', '') + 'a'", ("os.environ.get('FUZZED')",)),
    Effect("print", "", "print('called')"),
    Effect("print a value", "count = 0", "count += 1\nprint(count)", names=("count",)),
    Effect("print a shape", "", "print(x.shape)"),
    Effect("logging", "class Lines(logging.Handler):\n    def __init__(self):\n        super().__init__()\n        self.lines = []\n    def emit(self, record): self.lines.append(record.getMessage())\nlines = Lines()\nlog = logging.Logger('fuzzed')\nlog.addHandler(lines)", "log.warning('called')", ("lines.lines",)),
    Effect("warning", "caught = []\nwarnings.showwarning = lambda *a, **k: caught.append(1)\nwarnings.simplefilter('always')", "warnings.warn('called')", ("len(caught)",)),
    Effect("write a file", "path = tempfile.mkstemp()[1]", "with open(path, 'a') as f: f.write('a')", ("Path(path).read_text()",)),
    Effect("write a buffer", "file = io.StringIO()", "file.write('a')", ("file.getvalue()",)),
    Effect("cache of a function", "asked = []\n@functools.lru_cache\ndef slow(k):\n    asked.append(k)\n    return k * 2.0", "out = out * slow(1)", ("asked",)),
    Effect("weak set: add", "class Thing: pass\nheld, weak = [], weakref.WeakSet()", "held.append(Thing())\nweak.add(held[-1])", ("len(weak)",)),
    Effect("register a hook", "net = lib.nn.Tanh()", "net.register_forward_hook(lambda m, a, r: r * 2)\nout = net(out)"),
    Effect("heap", "held = [3, 5, 9]", "heapq.heappush(held, len(held))\nout = out + heapq.heappop(held)", ("held",)),
    Effect("operator.iadd", "held = []", "operator.iadd(held, [1])", ("held",)),
    Effect("object method by getattr", _HELD, "getattr(held, 'append')(1)", ("held",)),
    Effect("two writers", _HELD, "held.append(1)\nheld[0] = len(held)\nheld.append(held[0])", ("held",)),
    Effect("two names of one list", "held = []\nalso = held", "held.append(1)\nalso.append(2)", ("held",)),
)  # fmt: skip

LIBRARY = (
    Effect("argument in place", "", "x.add_(1)\nout = out + x", ("x",)),
    Effect("argument's item", "", "x[0] = 5.0", ("x",)),
    Effect("argument's view in place", "", "x[1:].mul_(2)", ("x",)),
    Effect("argument +=", "y = None", "{a} += 1\nout = out + {a}", ("y",), given="y", before="y = lib.ones(3)", names=("y",)),
    Effect("tensor in place", "h = lib.zeros(3)", "h.add_(x)\nout = out + h", ("h",)),
    Effect("tensor's item", "h = lib.zeros(3)", "h[0] = x[0]", ("h",)),
    Effect("tensor's view in place", "h = lib.zeros(3)\nv = h[1:]", "v.add_(1)\nout = out + h", ("h", "v")),
    Effect("copy_", "h = lib.zeros(3)", "h.copy_(x)", ("h",)),
    Effect("tensor.data", "h = lib.zeros(3)", "h.data = x * 2", ("h",)),
    Effect("requires_grad_", "h = lib.zeros(3)", "h.requires_grad_(not h.requires_grad)", ("h.requires_grad",)),
    Effect("grad of a parameter", "w = lib.nn.Parameter(lib.ones(3))", "(x * w).sum().backward()", ("w.grad",)),
    Effect("grad set to None", "w = lib.nn.Parameter(lib.ones(3))", "w.grad = None\n(x * w).sum().backward()", ("w.grad",)),
    Effect("grad assigned", "w = lib.nn.Parameter(lib.ones(3))", "w.grad = x * 2", ("w.grad",)),
    Effect("gradient of an argument", "y = None", "{a}.grad = None\n({a} * x).sum().backward()", ("y.grad",), given="y", before="y = lib.ones(3).requires_grad_(True)", names=("y",)),
    Effect("optimiser step", _PARAMETER, _STEP, ("w",)),
    Effect("optimiser's group changed inside", _PARAMETER, _STEP + "\nopt.param_groups[0]['lr'] *= 0.5", ("w", "opt.param_groups[0]['lr']")),
    Effect("optimiser's group changed outside", _PARAMETER, _STEP, ("w",), before="opt.param_groups[0]['lr'] = 0.1 * {k}"),
    Effect("parameter added to a group", _PARAMETER + "\nv = lib.nn.Parameter(lib.ones(3))", "opt.zero_grad()\n(x * w * v).sum().backward()\nopt.step()", ("w", "v"), before="opt.add_param_group({'params': [v]}) if {k} == 3 else None"),
    *(Effect(f"{name} inside", _PARAMETER + f"\nschedule = lib.optim.lr_scheduler.{text}", _STEP + "\nschedule.step()", ("w", "opt.param_groups[0]['lr']"))
      for name, text in (("StepLR", "StepLR(opt, 2)"), ("MultiStepLR", "MultiStepLR(opt, [2, 4])"), ("ExponentialLR", "ExponentialLR(opt, 0.5)"),
                         ("LambdaLR", "LambdaLR(opt, lambda k: 1 / (1 + k))"), ("CosineAnnealingLR", "CosineAnnealingLR(opt, 4)"), ("LinearLR", "LinearLR(opt)"),
                         ("ConstantLR", "ConstantLR(opt, total_iters=3)"), ("PolynomialLR", "PolynomialLR(opt, 4)"), ("OneCycleLR", "OneCycleLR(opt, 1.0, total_steps=20)"),
                         ("CyclicLR", "CyclicLR(opt, 0.1, 1.0, 3)"), ("CosineAnnealingWarmRestarts", "CosineAnnealingWarmRestarts(opt, 2)"), ("MultiplicativeLR", "MultiplicativeLR(opt, lambda k: 0.9)"),
                         ("SequentialLR", "SequentialLR(opt, [lib.optim.lr_scheduler.ConstantLR(opt), lib.optim.lr_scheduler.ExponentialLR(opt, 0.5)], [3])"),
                         ("ChainedScheduler", "ChainedScheduler([lib.optim.lr_scheduler.ConstantLR(opt), lib.optim.lr_scheduler.ExponentialLR(opt, 0.5)])"))),
    Effect("scheduler outside", _PARAMETER + "\nschedule = lib.optim.lr_scheduler.ExponentialLR(opt, 0.5)", _STEP, ("w",), before="schedule.step()"),
    Effect("metric.update", "metric = lib.metrics.MeanMetric()", "metric.update(x)", ("metric.compute()",)),
    Effect("averaged model", "net = lib.nn.Linear(3, 2)\nmean = lib.optim.swa_utils.AveragedModel(net)", "mean.update_parameters(net)", ("mean",), before="with lib.no_grad(): net.weight.add_({k})"),
    Effect("GradScaler", _PARAMETER + "\nscaler = lib.amp.GradScaler(init_scale=8.0, growth_interval=2)", "opt.zero_grad()\nscaler.scale((x * w).sum()).backward()\nscaler.step(opt)\nscaler.update()", ("w", "float(scaler.get_scale())")),
    Effect("batch norm's statistics", "net = lib.nn.BatchNorm1d(3)", "out = net(out[None] * lib.arange(2.0)[:, None]).sum(0)", ("net",)),
    Effect("dropout's generator", "net = lib.nn.Dropout(0.5)", "out = net(out)"),
    Effect("lib.rand", "", "out = out + lib.rand(3)"),
    Effect("lib.manual_seed inside", "", "lib.manual_seed(3)\nout = out + lib.rand(3)"),
    Effect("load_state_dict inside", "net = lib.nn.Linear(3, 2)\nother = lib.nn.Linear(3, 2)", "net.load_state_dict(other.state_dict())", ("net",), before="with lib.no_grad(): other.weight.add_({k})"),
    Effect("load_state_dict outside", "net = lib.nn.Linear(3, 3)\nother = lib.nn.Linear(3, 3)", "out = net(out)", before="with lib.no_grad(): other.weight.add_({k})\nnet.load_state_dict(other.state_dict())"),
    Effect("parameter created inside", "net = lib.nn.Module()", "if not hasattr(net, 'w'):\n    net.w = lib.nn.Parameter(lib.ones(3))\nout = out * net.w", ("net",)),
    Effect("parameter frozen outside", "w = lib.nn.Parameter(lib.ones(3))\nopt = lib.optim.SGD([w], lr=0.5)\nv = lib.nn.Parameter(lib.ones(3))", "opt.zero_grad()\n(x * w * v).sum().backward()\nopt.step()", ("w",), before="w.requires_grad_({k} % 3 != 0)"),
    Effect("queue of tensors", "queue = lib.zeros(4, 3)\nat = [0]", "queue[at[0] % 4] = x\nat[0] += 1\nout = out + queue.sum(0)", ("queue", "at")),
    Effect("item()", "", "out = out * x.sum().item()"),
    Effect("branch on a value", "", "out = out * 2 if bool(x.sum() > 3) else out"),
    Effect("float of a tensor", "", "out = out + float(x[0])"),
    Effect("numpy() of a tensor", "", "out = out + float(x.numpy().sum())"),
    Effect("loop over a tensor", "", "out = out + sum(float(a) for a in x)"),
)  # fmt: skip

RETURNS = tuple(
    Effect(name, setup, "", (), results, before, given)
    for name, results, setup, given, before in (
        ("argument", "x", "", "", ""),
        ("argument twice", "(x, x)", "", "", ""),
        ("result twice", "(out, out)", "", "", ""),
        ("result and its view", "(out, out[1:])", "", "", ""),
        ("view", "x[1:]", "", "", ""),
        ("whole view", "x[:]", "", "", ""),
        ("transposed", "x.T", "", "", ""),
        ("reshaped", "x.reshape(3)", "", "", ""),
        ("view_as", "x.view_as(x)", "", "", ""),
        ("detach", "x.detach()", "", "", ""),
        ("float", "x.float()", "", "", ""),
        ("to", "x.to(lib.float32)", "", "", ""),
        ("contiguous", "x.contiguous()", "", "", ""),
        ("clone", "x.clone()", "", "", ""),
        ("expand", "x.expand(3)", "", "", ""),
        ("squeeze", "x.squeeze()", "", "", ""),
        ("requires_grad_", "x.requires_grad_(False)", "", "", ""),
        ("Identity", "net(x)", "net = lib.nn.Identity()", "", ""),
        ("Dropout in eval", "net(x)", "net = lib.nn.Dropout(0.5).eval()", "", ""),
        ("functional dropout not training", "lib.nn.functional.dropout(x, 0.5, False)", "", "", ""),
        ("empty Sequential", "net(x)", "net = lib.nn.Sequential()", "", ""),
        ("in place", "x.add_(1)", "", "", ""),
        ("relu in place", "x.mul_(-1).relu_()", "", "", ""),
        ("closure tensor", "h", "h = lib.ones(3)", "", "h.add_(1)"),
        ("closure tensor in place", "h.add_(x)", "h = lib.ones(3)", "", ""),
        ("view of a closure tensor", "h[1:]", "h = lib.ones(3)", "", "h.add_(1)"),
        ("parameter", "w", "w = lib.nn.Parameter(lib.ones(3))", "", ""),
        ("parameter's data", "w.data", "w = lib.nn.Parameter(lib.ones(3))", "", ""),
        ("module's parameter", "net.weight", "net = lib.nn.Linear(3, 1)", "", ""),
        ("list of parameters", "list(net.parameters())", "net = lib.nn.Linear(3, 1)", "", ""),
        ("state dict", "dict(net.state_dict())", "net = lib.nn.Linear(3, 1)", "", ""),
        ("module", "net", "net = lib.nn.Linear(3, 1)", "", ""),
        ("None", "None", "", "", ""),
        ("numbers", "(1, 2.5, 'a', True)", "", "", ""),
        ("shape", "x.shape", "", "", ""),
        ("dtype", "str(x.dtype)", "", "", ""),
        ("nested", "{'a': [out, (x, {'b': out + 1})], 'c': None}", "", "", ""),
        ("list argument", "{a}", "", "[x, 1]", ""),
        ("dict argument", "{a}", "", "{'x': x, 'n': 1}", ""),
        ("same list", "{a}", "held = [1.0]", "held", "held[0] = {k}.0"),
        ("same list, changed", "({a}.append(1), {a})[1]", "held = []", "held", ""),
        ("batch with a loss", "({a}.update(loss=out.sum()), {a})[1]", "", "{'x': x}", ""),
        ("object argument", "{a}", "", "types.SimpleNamespace(k={k})", ""),
        ("same object", "thing", "thing = types.SimpleNamespace(k=1)", "", "thing.k = {k}"),
        ("new object", "types.SimpleNamespace(k=out)", "", "", ""),
        ("new list each call", "[]", "", "", ""),
        ("global list", "held", "held = []", "", "held.append({k})"),
        ("named tuple", "Pair(out, x)", "class Pair(NamedTuple):\n    a: object\n    b: object", "", ""),
        ("dataclass", "Pair(out, x)", "@dataclass\nclass Pair:\n    a: object\n    b: object", "", ""),
        ("set", "{1, 2}", "", "", ""),
        ("list of a generator", "list(out * k for k in range(3))", "", "", ""),
        ("zip", "list(zip([out, x], [1, 2]))", "", "", ""),
        ("numpy array", "held", "held = np.zeros(2)", "", "held[:] = {k}"),
        ("new numpy array", "np.ones(2)", "", "", ""),
        ("array argument", "{a}", "", "np.ones(2) * {k}", ""),
        ("function", "helper", "def helper(): pass", "", ""),
        ("closure over a tensor", "(lambda: out)()", "", "", ""),
        ("string with a value", "f'{n}'", "n = 1", "", ""),
        ("constant tensor", "lib.ones(2)", "", "", ""),
        ("float argument", "{a}", "", "{k} + 0.5", ""),
        ("int argument", "{a} * 2", "", "{k}", ""),
        ("str argument", "{a} + 'b'", "", "'a' * {k}", ""),
    )
)  # fmt: skip
