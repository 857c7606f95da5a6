"""Loops over a loader that train, epoch after epoch."""

from __future__ import annotations

from collections.abc import Iterator

from trueloop.analysis.abstract_value import MANAGED, Kind, Thing
from trueloop.analysis.loop_invariance import over_loader
from trueloop.analysis.operations import Act, Loop, Operation
from trueloop.analysis.source_file import Source


def epochs(source: Source) -> Iterator[tuple[Operation, Thing]]:
    """Yield each start of a loop over a loader in which an optimizer steps, with the loader.

    Around it stands another loop, which may take more than one turn and in which the training goes on: no turn builds
    the model or the optimizer anew, or loads their states.
    """
    for start in source.acts(Act.ITERATED):
        loader = over_loader(Loop(start.node, start.subject))
        if loader is None or not start.loops or MANAGED in loader.facts or start.loops[-1].once():
            continue
        inside = source.within(start.loops[-1], root=start.root)
        begun = (Act.MADE, Act.STATE_LOADED)
        anew = [each.subject for each in inside if each.act in begun and each.subject.kind is not Kind.LOADER]
        batches = Loop(start.node, None)
        steps = [each.subject for each in inside if each.act is Act.STEPPED and each.within(batches)]
        if steps and not any(one.may_be(each) or one.covers(each) for one in anew for each in steps):
            yield start, loader
