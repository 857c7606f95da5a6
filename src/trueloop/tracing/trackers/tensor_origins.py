"""Derives where values of trainable parameters lose their graph on the way to the loss."""

from collections.abc import Sequence

from trueloop.core.findings import CodePosition
from trueloop.tracing.events import DetachedTerm, GraphCut, LossTraced, Ref
from trueloop.tracing.tracker import Tracker


class TensorOrigins(Tracker):
    """Collects the cuts and the terms without a graph in the updates whose operations were recorded."""

    def __init__(self) -> None:
        self._cuts: dict[Ref, GraphCut] = {}
        """Parameter -> its first cut in the latest recorded loss that it reached through a cut."""
        self._traces: dict[Ref, int] = {}
        """Parameter -> number of recorded losses that its values reached through a cut."""
        self._terms: dict[CodePosition | None, tuple[int, Sequence[DetachedTerm]]] = {}
        """Line of a backward pass -> number of recorded losses with terms without a graph, and those of the latest."""

    def on_loss_traced(self, event: LossTraced) -> None:
        """Record the cuts and terms of a loss."""
        parameters: set[Ref] = set()
        for cut in event.cuts:
            for parameter in cut.parameters:
                if parameter not in parameters:
                    parameters.add(parameter)
                    self._cuts[parameter] = cut
        for parameter in parameters:
            self._traces[parameter] = self._traces.get(parameter, 0) + 1
        count, _ = self._terms.get(event.location, (0, ()))
        if event.detached_terms or count:
            self._terms[event.location] = count + bool(event.detached_terms), event.detached_terms

    def cut_before(self, parameter: Ref, min_losses: int) -> GraphCut | None:
        """Return the cut between a parameter and the loss; None if fewer than ``min_losses`` losses had one."""
        return self._cuts[parameter] if self._traces.get(parameter, 0) >= min_losses else None

    def detached_terms(self, min_losses: int) -> Sequence[DetachedTerm]:
        """Return the latest detached terms of each line on which at least ``min_losses`` losses had some."""
        return [term for count, terms in self._terms.values() if count >= min_losses for term in terms]
