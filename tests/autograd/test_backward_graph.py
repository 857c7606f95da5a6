"""Walks over graphs of plain objects, and positions for drawing them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from trueloop.autograd.backward_graph import node_depths, node_positions, saved_values, walk


class FakeNode:
    """A node like those of torch: it has children and saved values, raw and unpacked."""

    def __init__(self, *children: FakeNode | None, **kept: object) -> None:
        self.next_functions = tuple((child, 0) for child in children)
        for name, value in kept.items():
            setattr(self, f"_raw_saved_{name}", SimpleNamespace(unpack_hook=None))
            setattr(self, f"_saved_{name}", value)


def test_nodes_are_listed_once_in_breadth_first_order():
    leaf = FakeNode()
    left, right = FakeNode(leaf), FakeNode(None, leaf)
    result = walk(FakeNode(left, right), 100)
    assert result.nodes[1:] == [left, right, leaf]
    assert result.edges == [(0, 1), (0, 2), (1, 3), (2, 3)]
    assert result.row_offsets == [0.0, -0.5, 0.5, 0.0]
    assert not result.cut


def test_a_truncated_walk_has_no_edges_to_missing_nodes():
    leaf = FakeNode()
    result = walk(FakeNode(FakeNode(leaf), FakeNode(leaf)), 3)
    assert (len(result.nodes), result.edges, result.cut) == (3, [(0, 1), (0, 2)], True)


def test_the_depth_is_the_length_of_the_longest_path():
    #  0 -> 1 -> 2 -> 3 and 0 -> 3
    edges = [(0, 1), (0, 3), (1, 2), (2, 3)]
    assert node_depths(4, edges) == [0, 1, 2, 3]
    assert node_positions(edges, [0.0, -0.5, 0.0, 0.5]) == [(3, 0.5), (2, 0.0), (1, 0.0), (0, 1.0)]


def test_saved_values_are_read_without_running_hooks():
    node = FakeNode(weight="tensor", nothing=None)
    assert list(saved_values(node)) == [("weight", "tensor", "kept")]

    class Hooked(FakeNode):
        @property
        def _saved_input(self) -> None:
            pytest.fail("the hook was run")

    hooked = Hooked()
    hooked._raw_saved_input = SimpleNamespace(unpack_hook=lambda packed: packed)
    assert list(saved_values(hooked)) == [("input", None, "hooked")]


def test_freed_values_are_reported():
    class Freed(FakeNode):
        _raw_saved_result = SimpleNamespace(unpack_hook=None)

        @property
        def _saved_result(self) -> None:
            raise RuntimeError("Trying to backward through the graph a second time")

    assert list(saved_values(Freed())) == [("result", None, "freed")]
