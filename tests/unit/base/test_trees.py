"""Trees: what is taken apart goes together again, and equal trees have equal, hashable structures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratal.base import tree

pytestmark = pytest.mark.quick


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class State:
    weight: Any
    bias: Any = None


tree.register(State, lambda s: ([s.weight, s.bias], ("weight", "bias")), lambda _, parts: State(*parts))


TREES = st.recursive(
    st.integers() | st.none() | st.text(max_size=3),
    lambda children: (
        st.lists(children, max_size=3)
        | st.lists(children, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2), children, max_size=3)
        | st.builds(Pair, children, children)
        | st.builds(State, children, children)
    ),
    max_leaves=12,
)


@pytest.mark.sampled(4)
@given(TREES)
def test_unflatten_undoes_flatten(value: Any) -> None:
    leaves, structure = tree.flatten(value)
    again = tree.unflatten(structure, leaves)
    assert again == value
    assert tree.flatten(again)[1] == structure
    assert hash(tree.flatten(again)[1]) == hash(structure)
    assert [leaf for _, leaf in tree.paths(value)] == leaves


def test_dicts_that_differ_in_insertion_order_only_have_one_structure_and_one_leaf_order() -> None:
    a, b = {"x": 1, "y": 2}, {"y": 2, "x": 1}
    (leaves_a, of_a), (leaves_b, of_b) = tree.flatten(a), tree.flatten(b)
    assert (leaves_a, of_a, hash(of_a)) == (leaves_b, of_b, hash(of_b))
    assert list(tree.unflatten(of_b, leaves_a)) == ["y", "x"]


def test_containers_of_different_kinds_have_different_structures() -> None:
    values = [(1, 2), [1, 2], {"a": 1, "b": 2}, Pair(1, 2), State(1, 2), 1, None, (1, (2,)), {"a": 1, "c": 2}]
    assert len({tree.flatten(v)[1] for v in values}) == len(values)


def test_none_has_no_leaves() -> None:
    assert tree.leaves((None, [None, 3])) == [3]


def test_map_refuses_trees_that_do_not_match() -> None:
    assert tree.map(lambda x, y: x + y, {"a": (1, 2)}, {"a": (10, 20)}) == {"a": (11, 22)}
    with pytest.raises(tree.TreeError, match="one structure"):
        tree.map(lambda x, y: x, (1, 2), [1, 2])
    with pytest.raises(tree.TreeError, match="2 leaves"):
        tree.unflatten(tree.flatten((1, 2))[1], [1])


def test_paths_name_the_leaves() -> None:
    found = tree.paths({"layers": [State(1, None), Pair(2, 3)]})
    assert [tree.path_name(path) for path, _ in found] == [
        "layers.0.weight",
        "layers.1.left",
        "layers.1.right",
    ]


def test_is_leaf_keeps_a_container_whole() -> None:
    assert tree.flatten([(1, 2), 3], is_leaf=lambda x: isinstance(x, tuple))[0] == [(1, 2), 3]


def test_trees_of_tuples_are_mapped_as_other_trees_are() -> None:
    def join(*leaves: Any) -> list[Any]:
        return list(leaves)

    rows = [(1, "a"), (2, "b"), (3.0, None)]
    with pytest.raises(tree.TreeError):  # None is no leaf
        tree.map(join, *rows)
    assert tree.map(join, *rows[:2], (3.0, "c")) == ([1, 2, 3.0], ["a", "b", "c"])
    assert tree.map(join, (1, [2]), (3, [4]), (5, [6])) == ([1, 3, 5], [[2, 4, 6]])
    for wrong in ((1,), (1, [2]), [1, "a"], (1, {})):
        with pytest.raises(tree.TreeError):
            tree.map(join, *rows[:2], wrong)
