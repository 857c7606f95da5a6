"""Events of models that DistributedDataParallel replicates."""

from dataclasses import dataclass

from trueloop.tracing.events.event import Event, Ref, Refs


@dataclass(slots=True, kw_only=True, eq=False)
class ModelReplicated(Event):
    """RARE. A model was wrapped in DistributedDataParallel, or an existing wrapper was called for the first time."""

    wrapper: Ref
    module: Ref
    """The wrapped model."""
    parameters: Refs
    """Parameters that the wrapper synchronises."""
    group_size: int
    """Number of processes in its group."""


@dataclass(slots=True, kw_only=True, eq=False)
class ReplicaStepped(Event):
    """An optimizer stepped parameters of a DistributedDataParallel model."""

    wrapper: Ref
    parameters: Refs
    """Synchronised parameters that the optimizer holds and that had a gradient."""
    forwards: int
    """Number of calls of the wrapper with gradients enabled since the previous step."""
    collectives: int | None
    """Number of collectives that its group started since the first backward after that step; None = the group does not
    count them, or no backward was traced."""


@dataclass(slots=True, kw_only=True, eq=False)
class RanksCompared(Event):
    """RARE. The parameters of one model on two ranks were compared after the same reduction and step."""

    wrapper: Ref
    compared_update: int
    """The update after which they were compared, in this process's count."""
    ranks: tuple[int, int]
    """Global ranks of this process and the other one."""
    parameters: int
    """Number of compared parameters."""
    differing: tuple[tuple[str, float], ...]
    """Names of parameters that differ by more than rounding, with the relative difference; largest first."""
    last_equal_update: int | None
    """The latest update after which the two ranks were equal."""
    input_digest: tuple[float, ...] | None
    """A few numbers that identify this process's inputs in that round; None = the inputs of one of the ranks are
    unknown."""
    same_inputs_and_gradients: bool
    """Both ranks had equal inputs, and equal gradients before averaging; False if ``input_digest`` is None."""
    loader: Ref | None
    """The loader of this process's latest batch; None = none since the previous comparison."""
