"""The walk over a graph and its drawing, on graphs made by hand of plain objects."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from trueloop.autograd.backward_graph import depths, places, saved, walk


class Made:
    """A node as torch's are: children, and what it has saved, raw and unpacked."""

    def __init__(self, *children: Made | None, **kept: object) -> None:
        self.next_functions = tuple((child, 0) for child in children)
        for name, value in kept.items():
            setattr(self, f"_raw_saved_{name}", SimpleNamespace(unpack_hook=None))
            setattr(self, f"_saved_{name}", value)


def test_nodes_are_breadth_first_and_each_comes_once():
    leaf = Made()
    left, right = Made(leaf), Made(None, leaf)
    found = walk(Made(left, right), 100)
    assert found.nodes[1:] == [left, right, leaf]
    assert found.edges == [(0, 1), (0, 2), (1, 3), (2, 3)]
    assert found.offsets == [0.0, -0.5, 0.5, 0.0]
    assert not found.cut


def test_a_walk_that_is_cut_says_so_and_keeps_edges_within():
    leaf = Made()
    found = walk(Made(Made(leaf), Made(leaf)), 3)
    assert (len(found.nodes), found.edges, found.cut) == (3, [(0, 1), (0, 2)], True)


def test_the_longest_way_counts():
    #  0 -> 1 -> 2 -> 3 and 0 -> 3
    edges = [(0, 1), (0, 3), (1, 2), (2, 3)]
    assert depths(4, edges) == [0, 1, 2, 3]
    assert places(edges, [0.0, -0.5, 0.0, 0.5]) == [(3, 0.5), (2, 0.0), (1, 0.0), (0, 1.0)]


def test_what_is_saved_without_running_a_hook():
    node = Made(weight="tensor", nothing=None)
    assert list(saved(node)) == [("weight", "tensor", "kept")]

    class Hooked(Made):
        @property
        def _saved_input(self) -> None:
            pytest.fail("the hook was run")

    hooked = Hooked()
    hooked._raw_saved_input = SimpleNamespace(unpack_hook=lambda packed: packed)
    assert list(saved(hooked)) == [("input", None, "hooked")]


def test_what_is_freed_is_told():
    class Freed(Made):
        _raw_saved_result = SimpleNamespace(unpack_hook=None)

        @property
        def _saved_result(self) -> None:
            raise RuntimeError("Trying to backward through the graph a second time")

    assert list(saved(Freed())) == [("result", None, "freed")]
