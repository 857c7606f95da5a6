"""What several processes do together: models that DistributedDataParallel keeps equal."""

from __future__ import annotations

from dataclasses import dataclass

from trueloop.tracing.events.event import Event, Ref, Refs


@dataclass(slots=True, kw_only=True, eq=False)
class ModelReplicated(Event):
    """RARE. A model was wrapped in DistributedDataParallel, or such a wrapper was called for the first time."""

    wrapper: Ref
    module: Ref
    """The model in it."""
    parameters: Refs
    """Those that the wrapper keeps equal."""
    group_size: int
    """Processes in its group."""


@dataclass(slots=True, kw_only=True, eq=False)
class ReplicaStepped(Event):
    """An optimizer stepped parameters that a DistributedDataParallel keeps equal."""

    wrapper: Ref
    parameters: Refs
    """Of those it keeps equal, the ones that the optimizer holds and that had a gradient."""
    forwards: int
    """Calls of the wrapper with gradients on, since the step before."""
    collectives: int | None
    """That its group began since the first backward after that step; None = the group does not count them, or no
    backward was seen."""


@dataclass(slots=True, kw_only=True, eq=False)
class RanksCompared(Event):
    """RARE. What two ranks held of one model right after the same reduction and step was compared."""

    wrapper: Ref
    compared_update: int
    """The update it was after, as this process counts them."""
    ranks: tuple[int, int]
    """This process and the other one, as numbered among all."""
    parameters: int
    """Compared."""
    differing: tuple[tuple[str, float], ...]
    """Names of those that differ by more than rounding, and by which share of their size; the most different first."""
    last_equal_update: int | None
    """The latest update after which the two were found equal."""
    input_digest: tuple[float, ...] | None
    """What this process gave the model in that round, as a few numbers that are equal only for equal inputs; None = it
    is not known of both what they did in it."""
    same_inputs_and_gradients: bool
    """They gave it the same, and found the same gradient before it was averaged; not where ``input_digest`` is None."""
    loader: Ref | None
    """That gave this process its latest batch; None = none did since the comparison before."""
