"""The hooks that emit events; each module replaces or hooks one part of PyTorch."""

from collections.abc import Sequence

from trueloop.tracing.accumulation_window import AccumulationWindows
from trueloop.tracing.attach import Hook
from trueloop.tracing.hooks.anomalies import Anomalies
from trueloop.tracing.hooks.backward import Backward
from trueloop.tracing.hooks.clearing import Clearing
from trueloop.tracing.hooks.clipping import Clipping
from trueloop.tracing.hooks.dropouts import Dropouts
from trueloop.tracing.hooks.exports import Exports
from trueloop.tracing.hooks.graphs import Graphs
from trueloop.tracing.hooks.loaders import Loaders
from trueloop.tracing.hooks.loss_lines import LossLines
from trueloop.tracing.hooks.modes import Modes
from trueloop.tracing.hooks.module_calls import ModuleCalls
from trueloop.tracing.hooks.never_stepped import NeverStepped
from trueloop.tracing.hooks.optimizer_attributes import OptimizerAttributes
from trueloop.tracing.hooks.replicas import Replicas
from trueloop.tracing.hooks.retained_graphs import RetainedGraphs
from trueloop.tracing.hooks.scaling import Scaling
from trueloop.tracing.hooks.schedules import Schedules
from trueloop.tracing.hooks.seeds import Seeds
from trueloop.tracing.hooks.states import States
from trueloop.tracing.hooks.steps import Steps
from trueloop.tracing.hooks.symmetric_units import UnitSymmetry
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream


def all_hooks(stream: EventStream, program: ProgramState) -> Sequence[Hook]:
    """Return one instance of every hook."""
    windows, dropouts = AccumulationWindows(stream, program), Dropouts(stream, program)
    return [
        Anomalies(stream, program),
        NeverStepped(stream, program, windows),
        Backward(stream, program, windows),
        Clearing(stream, windows),
        Clipping(stream, windows),
        Scaling(stream, program, windows),
        Steps(stream, program, windows),
        Replicas(stream, program),
        Seeds(stream, program),
        Loaders(stream, program),
        States(stream, program),
        Schedules(stream, program),
        OptimizerAttributes(stream, program),
        LossLines(stream, program),
        ModuleCalls(stream, program, dropouts.on_new_model),
        dropouts,
        Modes(stream, program),
        Exports(stream),
        Graphs(stream),
        RetainedGraphs(stream, program),
        UnitSymmetry(stream, program),
    ]
