"""The leaves of a graph, and the parts of it that an earlier backward pass freed."""

from __future__ import annotations

import torch

from trueloop.tracing.graph_leaves import find_freed_part, graph_leaves, sequence_number


def test_freed_parts_of_a_graph():
    weight = torch.ones(2, requires_grad=True)
    hidden = (weight * 2).tanh()
    first, second = hidden.exp().sum(), hidden.sin().sum()
    order = sequence_number(second.grad_fn)
    later = (hidden * weight).cos().sum()
    assert find_freed_part([second], order) == ("same", "")
    assert find_freed_part([first], order) == ("all", "")
    assert find_freed_part([later], order) == ("part", "TanhBackward0")
    assert find_freed_part([weight.exp().sum()], order) == ("", "")
    assert find_freed_part([first], None) == ("", "")
    assert find_freed_part([weight], order) == ("", "")


def test_leaves():
    a, b, c = (torch.ones(2, requires_grad=True) for _ in range(3))
    found = graph_leaves([(a * b).sum(), c])
    assert {id(leaf) for leaf in found} == {id(a), id(b)}
