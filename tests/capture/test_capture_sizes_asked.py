"""What a function asks of sizes is answered as by numbers; what only shapes tensors costs no capture."""

import pytest
from capture_cases import Case, check
from capture_ways import SIZED_WAYS, WAYS

pytestmark = pytest.mark.filterwarnings("error")  # a guard notices, not an audit
SETUP = """
import ast, bisect
TABLE = {(4, 2): 2.0, 4: 3.0, ((4,),): 4.0, "(4, 2)": 5.0, frozenset([4]): 6.0, "4": 7.0}
def matched(x):
    match x.shape:
        case (4, _): return 2.0
        case (3 as n, int()): return n / 2
    return 3.0
def in_a_class(x):
    class Held: n = x.shape
    return 2.0 if Held.n == (4, 2) else 3.0
@functools.lru_cache
def remembered(shape): return 2.0 if shape == (4, 2) else 3.0
class Equal:
    def __eq__(self, other): return repr(other) == "4"
    __hash__ = None
def filled(box, x):
    box.n, box.shape = x.shape[0], x.shape
    return box
def closure(x):
    n, shape = x.shape[0], (x.shape,)
    return lambda: (n, shape)
"""
ASKED = {
    "get": "TABLE.get(x.shape, 1.0)", "get a size": "TABLE.get(x.shape[0], 1.0)",
    "nested": "TABLE.get((x.shape[:1],), 1.0)", "frozenset": "TABLE.get(frozenset(x.shape[:1]), 1.0)",
    "in keys": "(x.shape in TABLE) + 1.0", "in a list": "((4, 2) in [x.shape]) + 1.0",
    "in a view": "(x.shape in TABLE.keys()) + 1.0", "contains": "TABLE.__contains__(x.shape) + 1.0",
    "text": "TABLE.get(str(x.shape), 1.0)", "text of a size": "TABLE.get(f'{x.shape[0]}', 1.0)",
    "mapped text": "TABLE.get(''.join(map(str, x.shape[:1])), 1.0)",
    "text of a type": "len(f'{x.type}') + 0.0", "text of types": "hash(str(x.type)) % 7 + 1.0",
    "a type in a set": "(x.type in {st.ones(4, 2).type}) + 1.0",
    "a type that is equal": "(x.type == st.ones(4, 2).type) + 1.0", "equal": "(x.shape == (4, 2)) + 1.0",
    "unequal": "(x.shape != (4, 2)) + 1.0", "NumPy's 4": "(x.shape[0] == np.int64(4)) + 1.0",
    "4j": "(x.shape[0] == 4 + 0j) + 1.0", "from the right": "(np.int64(4) == x.shape[0]) + 1.0",
    "NaN": "(x.shape[0] == math.nan) + 1.0", "of fractions": "(x.shape[0] == fractions.Fraction(4)) + 1.0",
    "of decimals": "(x.shape[0] == decimal.Decimal(4)) + 1.0",
    "less than NumPy's": "(x.shape[0] < np.int64(4)) + (x.shape[0] >= np.float32(3.5)) + 1.0",
    "less than a fraction": "(x.shape[0] < fractions.Fraction(7, 2)) + 1.0",
    "plus NumPy's": "float(x.shape[0] + np.int64(4)) + float(np.float32(1.5) * x.shape[0])",
    "as a dict": "float({**dict(zip(x.shape, 'ab', strict=True))}.get(4) == 'a') + 1.0",
    "in a set of an iterator": "(4 in {*iter(x.shape)}) + 1.0", "a set": "(4 in set(iter(x.shape))) + 1.0",
    "a frozenset": "(4 in frozenset(iter(x.shape))) + 1.0", "united": "(4 in {1} | {*x.shape}) + 1.0",
    "a set that is updated": "(s := {1}, s.update(iter(x.shape)), (4 in s) + 1.0)[2]",
    "compared sets": "({*x.shape} == {4, 2}) + 1.0", "subset": "({4} <= {*x.shape}) + 1.0",
    "less": "(x.shape < (4, 2)) + 1.0", "operator": "operator.eq(x.shape[0], 4) + 1.0",
    "method": "x.shape[0].__eq__(4) + 1.0", "of a class": "(x.shape[0] == Equal()) + 1.0",
    "hash": "hash(x.shape) % 7 + 1.0", "index": "x.shape.index(2) + 1.0", "count": "x.shape.count(4) + 1.0",
    "any": "any(n == 4 for n in x.shape) + 1.0", "matched": "matched(x)", "class": "in_a_class(x)",
    "remembered": "remembered(x.shape)", "isinstance": "isinstance(x.shape[0], int) + 1.0",
    "type": "(type(x.shape[0]) is int) + 1.0", "__class__": "(x.shape[0].__class__ is int) + 1.0",
    "hasattr": "hasattr(x.shape[0], 'bit_length') + 1.0", "getattr": "getattr(x.shape[0], 'real', 1) + 1.0",
    "attribute": "x.shape[0].numerator + 1.0", "callable": "callable(x.shape[0]) + 1.0",
    "dir": "('bit_count' in dir(x.shape[0])) + 1.0", "min": "min(x.shape[0], 4) + 1.0",
    "sorted": "sorted([4, *x.shape])[1] + 1.0", "divmod": "divmod(x.shape[0], 3)[1] + 1.0",
    "round": "round(x.shape[0]) + 1.0", "abs": "abs(x.shape[0] - 5) + 1.0",
    "not": "(not x.shape[0] - 4) + 1.0", "or": "(x.shape[0] - 4 or 9) + 1.0", "plus": "+x.shape[0] + 1.0",
    "bits": "(x.shape[0] | 8) + 1.0", "power": "2 ** x.shape[0] + 1.0",
    "complex": "complex(x.shape[0]).real + 1.0", "int": "int(x.shape[0]) + 1.0",
    "float": "float(x.shape[0]) + 1.0", "bool": "bool(x.shape[0] - 4) + 1.0",
    "math": "math.gcd(x.shape[0], 4) + math.sqrt(x.shape[0]) + math.prod(x.shape) + 1.0",
    "NumPy": "float(np.sum(x.shape)) + float(np.prod(x.shape)) + 1.0",
    "an array": "float(np.array(x.shape).max() + np.zeros(x.shape).size)",
    "isin": "float(np.isin(4, x.shape)) + 1.0", "scalars": "float(np.float32(x.shape[0]))",
    "nbytes": "x.nbytes + 1.0", "size": "x.size + 1.0", "numel": "x.numel() + 1.0",
    "json": "len(json.dumps(x.shape)) + 0.0", "dumped": "json.loads(json.dumps(x.shape))[0] + 1.0",
    "format": "float(f'{x.shape[0]:03d}')", "%": "float('%d' % x.shape[0])",
    "parsed": "float(ast.literal_eval(repr(x.shape))[0])", "copied": "copy.deepcopy(x.shape)[0] + 1.0",
    "bisect": "bisect.bisect([1, 4, 9], x.shape[0]) + 1.0",
    "fraction": "float(fractions.Fraction(x.shape[0], 2))", "decimal": "float(decimal.Decimal(x.shape[0]))",
    "reduce": "functools.reduce(operator.mul, x.shape) + 1.0",
    "itertools": "len([*itertools.product(*map(range, x.shape))]) + 1.0",
    "groupby": "len([*itertools.groupby([*x.shape, 4])]) + 1.0",
    "chained": "dict(itertools.zip_longest(x.shape, x.shape)).get(4, 9) + 1.0",
    "Counter": "collections.Counter([*x.shape, 4])[4] + 1.0",
    "attrgetter": "operator.itemgetter(0)(x.shape) + 1.0", "index()": "operator.index(x.shape[0]) + 1.0",
    "string times": "len('a' * x.shape[0]) + 1.0", "list times": "len([1] * x.shape[0]) + 1.0",
    "frozen": "st.frozen(float, x.shape[0])", "frozen list": "st.frozen(max, [*x.shape, 4]) + 0.0",
    "slices": "sum([1.0, 2.0, 3.0, 4.0, 5.0][: x.shape[0]])",
    "dict of sizes": "len(dict.fromkeys((*x.shape, 4), 1)) + 0.0",
    "set of sizes": "len({*x.shape, 4}) + 0.0", "as arguments": "len(set(range(*x.shape[:1]))) + 1.0",
}  # fmt: skip


@pytest.mark.sampled(16)
@pytest.mark.parametrize("ask", ASKED)
def test_sizes_are_numbers_to_whoever_asks(ask):
    given = "st.ones((5, 3, 4, 7, 4, 2, 4)[i], 2)"
    case = Case(SETUP, f"x.sum() * ({ASKED[ask]})", given=given, calls=7, rtol=1e-6)
    for compiled in SIZED_WAYS.values():
        check(case, compiled)


FREE = {
    "zeros": "st.zeros(x.shape) + x", "zeros of sizes": "st.zeros(*x.shape) + x",
    "view": "x.view(x.shape) * 2", "reshape": "x.reshape(len(x.shape), -1).sum() * 1",
    "math.prod": "x.sum() / math.prod(x.shape)", "max": "x * (x.shape[0] + x.shape[1])",
    "tuple": "st.ones(tuple(x.shape)) + x", "list": "st.ones([*x.shape]) + x",
    "unpacked": "(lambda a, b: st.ones(a, b) + x)(*x.shape)", "starred": "st.ones((1, *x.shape)) + x",
    "zip": "st.ones([n for n, _ in zip(x.shape, 'ab', strict=True)]) + x",
    "isinstance": "x * isinstance(x.shape, tuple)", "len": "x * len(x.shape)",
    "kept inside": "st.ones({'shape': [x.shape]}['shape'][0]) + x",
    "an attribute": "st.ones(filled(Plain(), x).shape) + x", "in a closure": "st.ones(closure(x)()[0])",
    "partial": "functools.partial(st.ones, x.shape)() + x", "expand": "x[:1].expand(x.shape) + x",
    "interpolated": "x[: x.shape[0] - 1] * 2", "shape of a type": "st.ones(x.type.shape) + x",
    "numel": "x.reshape(x.numel())", "nbytes": "x.sum() * (x.nbytes // 4)",
}  # fmt: skip


@pytest.mark.parametrize("use", FREE)
def test_sizes_that_stay_inside_cost_no_capture(use):
    check(
        Case(SETUP, FREE[use], given="st.ones((4, 6, 3, 7, 9, 5)[i], 2)", calls=6, captures=(2,)),
        WAYS["audited"],
    )
