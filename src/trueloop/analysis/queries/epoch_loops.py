"""Finds training loops over a loader inside an epoch loop."""

from collections.abc import Iterator

from trueloop.analysis.abstract_value import MANAGED, AbstractValue, ValueKind
from trueloop.analysis.loop_invariance import iterated_loader
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.source_file import SourceFile


def epoch_loops(source: SourceFile) -> Iterator[tuple[Op, AbstractValue]]:
    """Yield the start of each loop over a loader in which an optimizer steps within an epoch loop, with the loader.

    An epoch loop is an outer loop that may have several iterations and does not restart the training: it neither
    creates the model or the optimizer nor loads their states.
    """
    for start in source.ops(OpKind.ITERATE):
        batch_loop = Loop(start.node, start.subject)
        loader = iterated_loader(batch_loop)
        if loader is None or not start.loops or MANAGED in loader.facts or start.loops[-1].runs_at_most_once():
            continue
        inside = source.ops_in_loop(start.loops[-1], root=start.entry_point)
        restarting = (OpKind.CREATE, OpKind.LOAD_STATE_DICT)
        restarted = [
            each.subject for each in inside if each.kind in restarting and each.subject.kind is not ValueKind.LOADER
        ]
        optimizers = [each.subject for each in inside if each.kind is OpKind.STEP and each.is_inside(batch_loop)]
        if optimizers and not any(new.may_alias(each) or new.covers(each) for new in restarted for each in optimizers):
            yield start, loader
