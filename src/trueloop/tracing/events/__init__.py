"""The events of a training run, as detectors receive them. See also `Detector`.

RARE events are always emitted. The others are emitted during full tracing only: the first windows of the run, a few
updates after every change of structure (new optimizer, loader, mode), and a short burst now and then. A `TracingGap`
marks what was not traced in between. Within a burst nothing is missing.

``update`` counts steps of any optimizer, ``backward_count`` counts outermost calls of backward. Fields marked LIVE hold
the program's own objects, which must not be kept after ``observe``. A number that would need a device synchronisation
is None.
"""

from __future__ import annotations

from trueloop.tracing.events.data import (
    BatchLoaded,
    DistributedEpochStarted,
    GeneratorCopied,
    JointlyStandardised,
    LoaderExhausted,
    LoadersOverlap,
    LoaderStarted,
    SampleOrderRecorded,
    SeedRepeated,
    SortedLabels,
    WorkersRepeatFirstBatch,
)
from trueloop.tracing.events.distributed import ModelReplicated, RanksCompared, ReplicaStepped
from trueloop.tracing.events.event import NO_REFS, Event, Ref, Refs, TracingGap, WatchEnded
from trueloop.tracing.events.gradients import (
    BackwardEnded,
    BackwardLosses,
    BackwardStarted,
    GradientsCleared,
    GradientsClipped,
    GradientsUnscaled,
    IncompleteWindow,
    LossArgumentsSwapped,
    LossRecord,
    LossScaled,
    ScalerCreated,
)
from trueloop.tracing.events.module_call import (
    BatchNormSingleSample,
    BatchNormTrained,
    DominatingEpsilon,
    DropoutWithoutTrainingFlag,
    ForwardBypassed,
    FreezeAttribute,
    HighBatchNormMomentum,
    IneffectiveFreeze,
    ModelCalled,
    ModeSet,
    RecurrentLayerCalled,
    UnregisteredModuleCalled,
)
from trueloop.tracing.events.optimizer import (
    IneffectiveOptimizerAttribute,
    OptimizerCreated,
    SchedulerNeverStepped,
    SchedulerStepped,
    StepMissing,
    StepSkipped,
    StepTaken,
    SymmetricUnits,
)
from trueloop.tracing.events.state import (
    CheckpointRead,
    CheckpointWritten,
    ErrorRaised,
    GraphsAlive,
    GraphsRetained,
    ModelExported,
    NonFiniteValue,
    StateDictCreated,
    StateDictMatch,
    StateDictUsed,
    StateLoaded,
)

__all__ = [
    "NO_REFS",
    "BackwardEnded",
    "BackwardLosses",
    "BackwardStarted",
    "BatchLoaded",
    "BatchNormSingleSample",
    "BatchNormTrained",
    "CheckpointRead",
    "CheckpointWritten",
    "DistributedEpochStarted",
    "DominatingEpsilon",
    "DropoutWithoutTrainingFlag",
    "ErrorRaised",
    "Event",
    "ForwardBypassed",
    "FreezeAttribute",
    "GeneratorCopied",
    "GradientsCleared",
    "GradientsClipped",
    "GradientsUnscaled",
    "GraphsAlive",
    "GraphsRetained",
    "HighBatchNormMomentum",
    "IncompleteWindow",
    "IneffectiveFreeze",
    "IneffectiveOptimizerAttribute",
    "JointlyStandardised",
    "LoaderExhausted",
    "LoaderStarted",
    "LoadersOverlap",
    "LossArgumentsSwapped",
    "LossRecord",
    "LossScaled",
    "ModeSet",
    "ModelCalled",
    "ModelExported",
    "ModelReplicated",
    "NonFiniteValue",
    "OptimizerCreated",
    "RanksCompared",
    "RecurrentLayerCalled",
    "Ref",
    "Refs",
    "ReplicaStepped",
    "SampleOrderRecorded",
    "ScalerCreated",
    "SchedulerNeverStepped",
    "SchedulerStepped",
    "SeedRepeated",
    "SortedLabels",
    "StateDictCreated",
    "StateDictMatch",
    "StateDictUsed",
    "StateLoaded",
    "StepMissing",
    "StepSkipped",
    "StepTaken",
    "SymmetricUnits",
    "TracingGap",
    "UnregisteredModuleCalled",
    "WatchEnded",
    "WorkersRepeatFirstBatch",
]
