"""What happens in a training run, as detectors see it. See also `Detector`.

Two kinds. RARE events are always told. The others only while a run is watched in full: the first windows of the run
and after every change of structure (new optimizer, loader, mode), then a burst of a few updates now and then. A `Gap`
stands for what was not told in between. Within a burst nothing is missing.

"update" counts steps of any optimizer, "micro" counts outermost calls of backward. Fields marked LIVE are the
program's own objects, to be looked at during ``observe`` and not to be kept. A number that would have to be waited for
(on an accelerator) is None.
"""

from __future__ import annotations

from trueloop.tracing.events.data import (
    BatchDrawn,
    EpochDrawn,
    GeneratorCopied,
    LabelsInBlocks,
    LoaderExhausted,
    LoadersShare,
    LoaderStarted,
    OrderSeen,
    ScaledTogether,
    SeedRepeated,
    WorkersRepeat,
)
from trueloop.tracing.events.distributed import ModelReplicated, RanksCompared, ReplicaStepped
from trueloop.tracing.events.event import NONE, Event, Gap, Ref, Refs, WatchEnded
from trueloop.tracing.events.gradients import (
    BackwardEnded,
    BackwardStarted,
    GradientsCleared,
    GradientsClipped,
    GradientsUnscaled,
    LossesSeen,
    LossScaled,
    LossSeen,
    LossSwapped,
    ScalerCreated,
    WindowLeftOver,
)
from trueloop.tracing.events.module_call import (
    BatchNormOfOne,
    BatchNormTrained,
    DropoutUntold,
    EpsilonOutweighs,
    ForwardBypassed,
    FrozenInVain,
    Mark,
    ModelCalled,
    ModeSet,
    SequenceRun,
    StatisticsForgotten,
    StrangerCalled,
)
from trueloop.tracing.events.optimizer import (
    OptimizerCreated,
    ScheduleAdvanced,
    ScheduleIdle,
    SettingIgnored,
    StepAwaited,
    StepSkipped,
    StepTaken,
    UnitsCompared,
)
from trueloop.tracing.events.state import (
    CheckpointRead,
    CheckpointWritten,
    ErrorRaised,
    GraphsAlive,
    GraphsRetained,
    ModelExported,
    NamesMatched,
    NotFinite,
    StateCaptured,
    StateLoaded,
    StateUsed,
)

__all__ = [
    "NONE",
    "BackwardEnded",
    "BackwardStarted",
    "BatchDrawn",
    "BatchNormOfOne",
    "BatchNormTrained",
    "CheckpointRead",
    "CheckpointWritten",
    "DropoutUntold",
    "EpochDrawn",
    "EpsilonOutweighs",
    "ErrorRaised",
    "Event",
    "ForwardBypassed",
    "FrozenInVain",
    "Gap",
    "GeneratorCopied",
    "GradientsCleared",
    "GradientsClipped",
    "GradientsUnscaled",
    "GraphsAlive",
    "GraphsRetained",
    "LabelsInBlocks",
    "LoaderExhausted",
    "LoaderStarted",
    "LoadersShare",
    "LossScaled",
    "LossSeen",
    "LossSwapped",
    "LossesSeen",
    "Mark",
    "ModeSet",
    "ModelCalled",
    "ModelExported",
    "ModelReplicated",
    "NamesMatched",
    "NotFinite",
    "OptimizerCreated",
    "OrderSeen",
    "RanksCompared",
    "Ref",
    "Refs",
    "ReplicaStepped",
    "ScaledTogether",
    "ScalerCreated",
    "ScheduleAdvanced",
    "ScheduleIdle",
    "SeedRepeated",
    "SequenceRun",
    "SettingIgnored",
    "StateCaptured",
    "StateLoaded",
    "StateUsed",
    "StatisticsForgotten",
    "StepAwaited",
    "StepSkipped",
    "StepTaken",
    "StrangerCalled",
    "UnitsCompared",
    "WatchEnded",
    "WindowLeftOver",
    "WorkersRepeat",
]
