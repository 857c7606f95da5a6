"""Defines trackers, and finds them by name."""

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import ClassVar

import trueloop.tracing.trackers
from trueloop.tracing.events import Event


class Tracker:
    """Derives facts from the events of one run, in a form that several detectors share.

    A method ``on_<event>`` receives every event of that type, before the detectors do; it may return a derived event,
    which the detectors receive after the original one. Where updates were not fully traced, ``on_tracing_gap`` discards
    incomplete observations, so that no detector has to. A tracker is created only if a detector asks for it, by an
    annotation of its class with the tracker's type, or by a method for an event that the tracker emits.
    """

    emits: ClassVar[tuple[type[Event], ...]] = ()
    """Types of the derived events."""


@cache
def trackers() -> Mapping[str, type[Tracker]]:
    """Return all trackers: class name -> class."""
    package = trueloop.tracing.trackers
    modules = [
        importlib.import_module(f"{package.__name__}.{each.name}") for each in pkgutil.iter_modules(package.__path__)
    ]
    return {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Tracker) and value.__module__ == module.__name__
    }
