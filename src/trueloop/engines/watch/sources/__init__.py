"""Where events come from: each module replaces or hooks one part of torch."""

from __future__ import annotations

from collections.abc import Sequence

from trueloop.engines.watch.attach import Source
from trueloop.engines.watch.program import Program
from trueloop.engines.watch.sources.anomalies import Anomalies
from trueloop.engines.watch.sources.awaiting import Awaiting
from trueloop.engines.watch.sources.backward import Backward
from trueloop.engines.watch.sources.clearing import Clearing
from trueloop.engines.watch.sources.clipping import Clipping
from trueloop.engines.watch.sources.dropouts import Dropouts
from trueloop.engines.watch.sources.exports import Exports
from trueloop.engines.watch.sources.forwards import Forwards
from trueloop.engines.watch.sources.graphs import Graphs
from trueloop.engines.watch.sources.loaders import Loaders
from trueloop.engines.watch.sources.loss_places import LossPlaces
from trueloop.engines.watch.sources.modes import Modes
from trueloop.engines.watch.sources.replicas import Replicas
from trueloop.engines.watch.sources.retained import Retained
from trueloop.engines.watch.sources.scaling import Scaling
from trueloop.engines.watch.sources.schedules import Schedules
from trueloop.engines.watch.sources.seeds import Seeds
from trueloop.engines.watch.sources.settings import Settings
from trueloop.engines.watch.sources.states import States
from trueloop.engines.watch.sources.steps import Steps
from trueloop.engines.watch.sources.units import Units
from trueloop.engines.watch.stream import Stream
from trueloop.engines.watch.window import Windows


def all_sources(stream: Stream, program: Program) -> Sequence[Source]:
    """Make every source there is."""
    windows, dropouts = Windows(stream, program), Dropouts(stream, program)
    return [
        Anomalies(stream, program),
        Awaiting(stream, program, windows),
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
        Settings(stream, program),
        LossPlaces(stream, program),
        Forwards(stream, program, dropouts.met),
        dropouts,
        Modes(stream, program),
        Exports(stream),
        Graphs(stream),
        Retained(stream, program),
        Units(stream, program),
    ]
