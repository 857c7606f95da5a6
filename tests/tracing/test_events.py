"""What only one failure needs lies in the folder of that failure: events, methods of trackers, and modules."""

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import trueloop
from trueloop.failures.load import catalogue, failure_hooks
from trueloop.tracing.events import Event, handlers
from trueloop.tracing.tracker import Tracker, trackers

SRC = Path(trueloop.__file__).parent

EVENTS_OF_ONE_FAILURE = {
    "ErrorRaised": "for failures of other packages",
    "NonFiniteValue": "the calls that are replayed to find it are recorded by the hook of all model calls",
    "ReplicaStepped": "the hook of steps counts the collectives that RanksCompared needs too",
    "ScalerCreated": "a call of GradScaler like LossScaled",
}
"""Events outside the failures' folders that at most one failure receives, with the reason. May only shrink."""
METHODS_OF_ONE_FAILURE: Mapping[str, str] = {
    "GradientLedger.reused_by": "the account of each gradient is one story",
    "GradientLedger.still_scaled_by": "the account of each gradient is one story",
    "TensorOrigins.cut_before": "the cuts that both failures of the tracker rest on, seen from a parameter",
    "TensorOrigins.detached_terms": "the cuts that both failures of the tracker rest on, seen from a loss",
}
"""Methods of trackers that only one failure calls, with the reason. May only shrink."""
MODULES_OF_ONE_FAILURE: Mapping[str, str] = {}
"""Modules that only one failure imports, with the reason. May only shrink."""


def owner(path: Path) -> str:
    """Return the failure to which a file belongs ("failures/data/order_repeated"), otherwise the file itself."""
    parts = path.relative_to(SRC).with_suffix("").parts
    return "/".join(parts[:3] if parts[0] == "failures" else parts)


def is_failure(user: str) -> bool:
    return user.startswith("failures/") and user.count("/") == 2


@functools.cache
def sources() -> Mapping[Path, str]:
    return {path: path.read_text() for path in SRC.rglob("*.py")}


@functools.cache
def events() -> Mapping[str, type[Event]]:
    """Return the events that are defined outside the failures' folders, by name."""
    catalogue(), failure_hooks(), trackers()
    return {
        each.__name__: each
        for each in Event.__subclasses__()
        if each.__module__.startswith("trueloop.") and not each.__module__.startswith("trueloop.failures.")
    }


@functools.cache
def event_users(event: type[Event]) -> set[str]:
    """Return the failures and modules that receive an event, by a method of that name or a subscription."""
    name = event.__name__
    received = re.compile(
        rf"def {event.HANDLER}\(|subscribe\([^)]*\b{name}\b|\b{name}: self\.|\bon_\w+\.append\(.*{name}"
    )
    texts = {path: text for path, text in sources().items() if name in text or event.HANDLER in text}
    return {owner(path) for path, text in texts.items() if received.search(text)}


def used_by_one_failure(users: set[str]) -> bool:
    return not users or (len(users) == 1 and all(map(is_failure, users)))


def test_no_event_has_a_single_failure_as_its_user():
    found = {name for name, event in events().items() if used_by_one_failure(event_users(event))}
    assert found == set(EVENTS_OF_ONE_FAILURE), "a new one belongs into the folder of its failure; delete what is gone"


def test_every_detector_method_is_counted():
    trackers()  # they define the events that they emit
    for entry in catalogue().values():
        if entry.failure.detector is not None:
            user = "/".join(entry.module.split(".")[1:4])
            for event in handlers(entry.failure.detector):
                assert user in event_users(event), (event, user)


def failures_that_use(tracker: type[Tracker]) -> Iterator[str]:
    """Yield the failures whose detector names a tracker in an annotation, or receives an event that it emits."""
    for entry in catalogue().values():
        detector = entry.failure.detector
        if detector is not None:
            annotations = {
                getattr(each, "__name__", each) for each in getattr(detector, "__annotations__", {}).values()
            }
            if tracker.__name__ in annotations or set(tracker.emits) & set(handlers(detector)):
                yield entry.code


def test_no_tracker_and_no_method_of_a_tracker_has_a_single_failure_as_its_user():
    found: set[str] = set()
    for name, tracker in trackers().items():
        other_trackers = [
            each for each in trackers().values() if each is not tracker and set(tracker.emits) & set(handlers(each))
        ]
        if len(set(failures_that_use(tracker))) + len(other_trackers) < 2:
            found.add(name)
        for method, value in vars(tracker).items():
            is_public = not method.startswith(("_", "on_")) and (callable(value) or isinstance(value, property))
            if is_public:
                calls = re.compile(rf"\.{method}\b")
                mentions = re.compile(rf"\b{name}\b")
                users = {owner(p) for p, text in sources().items() if calls.search(text) and mentions.search(text)}
                users.discard("/".join(tracker.__module__.split(".")[1:]))
                if used_by_one_failure(users):
                    found.add(f"{name}.{method}")
    assert found == set(METHODS_OF_ONE_FAILURE), "a new one belongs into the folder of its failure; delete what is gone"


def imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(sources()[path])):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def test_no_module_outside_the_failures_is_imported_by_one_failure_only():
    users: dict[str, set[str]] = {}
    for path in sources():
        for module in imported_modules(path):
            users.setdefault(module, set()).add(owner(path))
    found = set[str]()
    for path in sources():
        if path.parent.name == "trackers":  # found, not imported; see the test above
            continue
        module = ".".join(("trueloop", *path.relative_to(SRC).with_suffix("").parts)).removesuffix(".__init__")
        importers = users.get(module, set()) - {owner(path)}
        if importers and used_by_one_failure(importers) and not is_failure(owner(path)):
            found.add(module)
    assert found == set(MODULES_OF_ONE_FAILURE), "a new one belongs into the folder of its failure; delete what is gone"
