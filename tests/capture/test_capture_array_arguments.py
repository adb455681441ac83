"""Arrays among the arguments: inputs where Stratal takes them, objects where they hold other things."""

import numpy as np
import pytest
from capture_ways import GUARDS_NOTICE, WAYS

import stratal as st
from stratal import nn
from stratal.base.errors import CaptureError

pytestmark = GUARDS_NOTICE
compiled = WAYS["not audited"]


def one(k):
    return st.full((1,), float(k))


def test_an_array_of_another_shape_is_still_an_array():
    f = compiled(lambda x, a, b: st.cat([a.reshape(-1), b.ravel()]).sum() + (x * a.flatten()).sum())
    for k in range(3):
        a, b = np.ones((1, 2)) * k, np.ones((2, 1))
        assert f(one(2), a, b).item() == 2 * k + 2 + 4 * k
    with pytest.raises(CaptureError, match="array that is an argument"):
        compiled(lambda x, a: x * a.reshape(-1).std())(one(1), np.ones((1, 2)))


def test_an_array_that_is_an_argument_is_an_input_where_stratal_takes_it():
    f = compiled(lambda x, a: (x * a + st.tensor(a).std() + a.shape[0], a))
    for k in range(4):
        a = np.array([1.0, 2.0 + k])
        value, same = f(st.ones(2), a)
        assert same is a and np.allclose(value.numpy(), a + a.std(ddof=1) + 2)
    assert f.captures == 1


@pytest.mark.parametrize(
    ("make", "read", "write"),
    [
        (lambda k: np.array([[k]], object), lambda a: a[0, 0], lambda a, k: a.__setitem__((0, 0), k)),
        (lambda k: np.array([(k,)], "f8,"), lambda a: float(a["f0"][0]), lambda a, k: a["f0"].fill(k)),
        (lambda k: np.array([f"{k}"]), lambda a: float(str(a[0])), lambda a, k: a.__setitem__(0, f"{k}")),
    ],
    ids=["objects", "records", "text"],
)
def test_arrays_of_other_things_are_objects(make, read, write):
    f = compiled(lambda x, a: x * read(a))
    assert [f(one(1), make(float(k))).item() for k in range(3)] == [0, 1, 2]
    a = make(1.0)
    for k in (1.0, 2.0, 2.0, 3.0):
        write(a, k)
        assert f(one(1), a).item() == k


def test_new_arrays_are_new_in_each_call():
    held = np.zeros(2)
    f = compiled(lambda x: (x * 1, np.ones(2)))
    first, second = f(one(1))[1], f(one(1))[1]
    first[:] = 7
    assert second.tolist() == f(one(1))[1].tolist() == [1, 1]
    with pytest.raises(CaptureError, match="view of an array"):
        compiled(lambda x: (x * 1, held[1:]))(one(1))


@pytest.mark.parametrize("way", ["map", "zip", "loop", "unpacked", "star", "extended", "items"])
def test_arrays_are_handed_on_in_containers_to_functions_of_stratal(way):
    entropy = nn.functional.cross_entropy

    def function(x, a, b):
        if way == "map":
            return sum(map(entropy, (x, x * 2), (a, b)))
        if way == "zip":
            return sum(entropy(u, v) for u, v in zip((x, x * 2), [a, b], strict=True))
        if way == "loop":
            total = 0
            for v in [a, b]:
                total = total + entropy(x, v)
            return total
        if way == "unpacked":
            first, second = (a, b)
            return entropy(x, first) + entropy(x * 2, second)
        if way == "star":
            named = {"input": x * 2, "target": b}
            return entropy(*(x, a)) + entropy(**named)
        if way == "extended":
            return entropy(x, [*[a], b][0]) + entropy(x * 2, {"k": b}["k"])
        return sum(entropy(x * k, v) for k, v in {1: a, 2: b}.items())

    f = compiled(function)
    x = st.tensor([[1.0, 2.0, 0.5], [0.1, 0.2, 3.0]])
    for k in range(4):
        a, b = np.array([k % 3, 1]), np.array([2, k % 2])
        assert f(x, a, b).item() == pytest.approx(function(x, a, b).item())
