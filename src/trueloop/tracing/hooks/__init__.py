"""The hooks that emit events; each module replaces or hooks one part of PyTorch."""

from collections.abc import Sequence

from trueloop.tracing.attach import Hook
from trueloop.tracing.hooks.backward import Backward
from trueloop.tracing.hooks.clipping import Clipping
from trueloop.tracing.hooks.divergences import Divergences
from trueloop.tracing.hooks.dropouts import Dropouts
from trueloop.tracing.hooks.grad_modes import GradModes
from trueloop.tracing.hooks.gradient_calls import GradientCalls
from trueloop.tracing.hooks.graph_cuts import GraphCuts
from trueloop.tracing.hooks.hand_written_updates import HandWrittenUpdates
from trueloop.tracing.hooks.information_flow import InformationFlow
from trueloop.tracing.hooks.loaders import Loaders
from trueloop.tracing.hooks.loss_graphs import LossGraphs
from trueloop.tracing.hooks.loss_lines import LossLines
from trueloop.tracing.hooks.modes import Modes
from trueloop.tracing.hooks.module_calls import ModuleCalls
from trueloop.tracing.hooks.optimizers import Clearing, Steps
from trueloop.tracing.hooks.readings import Readings
from trueloop.tracing.hooks.registrations import Registrations
from trueloop.tracing.hooks.replicas import Replicas
from trueloop.tracing.hooks.scaling import Scaling
from trueloop.tracing.hooks.schedules import Schedules
from trueloop.tracing.hooks.seeds import Seeds
from trueloop.tracing.hooks.states import States
from trueloop.tracing.hooks.weight_averages import WeightAverages
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream


def loss_hooks(stream: EventStream, program: ProgramState) -> Sequence[Hook]:
    """Return the hooks that suffice to follow losses and updates."""
    steps = Steps(stream, program)
    updates = HandWrittenUpdates(stream, program, steps)
    return [
        GradientCalls(stream, program, updates),
        Backward(stream, program),
        steps,
        updates,
        LossGraphs(stream, program),
        ModuleCalls(stream, program),
    ]


def all_hooks(stream: EventStream, program: ProgramState) -> Sequence[Hook]:
    """Return one instance of every hook that several failures need."""
    steps = Steps(stream, program)
    updates = HandWrittenUpdates(stream, program, steps)
    return [
        GradientCalls(stream, program, updates),
        Backward(stream, program),
        Clearing(stream, program),
        Clipping(stream, program),
        Scaling(stream, program),
        steps,
        updates,
        Replicas(stream, program),
        Registrations(stream, program),
        Seeds(stream, program),
        Loaders(stream, program),
        States(stream, program),
        Schedules(stream, program),
        LossLines(stream, program),
        LossGraphs(stream, program),
        ModuleCalls(stream, program),
        Divergences(stream, program),
        Dropouts(stream, program),
        Modes(stream, program),
        GradModes(stream, program),
        GraphCuts(stream, program),
        InformationFlow(stream, program),
        WeightAverages(stream, program),
        Readings(stream, program),
    ]
