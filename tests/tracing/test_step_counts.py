from __future__ import annotations

import gc
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from trueloop.tracing.events import Ref
from trueloop.tracing.step_counts import StepCounts

PARAMETERS = tuple(Ref("Parameter", str(number)) for number in range(4))
SETS = tuple(frozenset(PARAMETERS[:number]) for number in range(5))


@given(st.lists(st.tuples(st.sampled_from(SETS), st.booleans())))
def test_each_parameter_is_counted_as_often_as_it_was_updated(updates: list[tuple[frozenset[Ref], bool]]):
    steps, expected = StepCounts(), Counter[Ref]()
    for parameters, is_read in updates:
        steps.add(parameters)
        expected.update(parameters)
        if is_read:
            assert dict(steps.counts()) == expected
    assert dict(steps.counts()) == expected


def test_freed_parameters_are_forgotten():
    steps = StepCounts()
    steps.add(frozenset([Ref("Parameter", "freed")]))
    steps.add(SETS[1])
    gc.collect()
    assert dict(steps.counts()) == {PARAMETERS[0]: 1}
