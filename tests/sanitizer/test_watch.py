from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from trueloop.core.findings import Evidence, Finding, Severity, Verdict
from trueloop.failures.failure import BaseDetector, Failure
from trueloop.sanitizer.dispatch import WatchedFailure
from trueloop.sanitizer.watch import BATCHED_EVENTS, Watch
from trueloop.tracing.attach import Attachment, Hook
from trueloop.tracing.events import ErrorRaised, GraphsAlive
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream


class ZeroGradHook:
    """Reports every ``zero_grad`` of an optimizer as a `GraphsAlive` with the number of calls so far."""

    def __init__(self, stream: EventStream) -> None:
        self._stream, self._count = stream, 0

    def install_always(self, patches: Patches) -> None:
        patches.replace(torch.optim.Optimizer, "zero_grad", self._make)

    def install_full_tracing(self, patches: Patches) -> None:
        """Install no hooks in addition to `install_always`."""

    def _make(self, original: Any) -> Callable[..., Any]:
        report = self._stream.isolated("zeroing", self._emit)

        def zero_grad(*args: Any, **options: Any) -> Any:
            if self._stream.active:
                report()
            return original(*args, **options)

        return zero_grad

    def _emit(self) -> None:
        self._count += 1
        self._stream.update += 1
        self._stream.emit(GraphsAlive(count=self._count, oldest_update=0, holders=()))


def hooks(stream: EventStream, program: ProgramState) -> Sequence[Hook]:
    return [ZeroGradHook(stream)]


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    attachment = Attachment(hooks)
    monkeypatch.setattr("trueloop.sanitizer.watch._attachment", lambda: attachment)


class Detector(BaseDetector):
    def on_error_raised(self, event: ErrorRaised) -> Evidence:
        return Evidence(message=repr(event.error), location=event.location)

    def on_graphs_alive(self, event: GraphsAlive) -> Evidence | None:
        return Evidence(message="cleared", location=None) if event.count >= 2 else None


WATCHED = [
    WatchedFailure(
        Failure(code="GRD901", title="", severity=Severity.ERROR, doc="", bad="", good="", fix="", detector=Detector),
        "made-up",
    )
]


def clear(times: int) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    for _ in range(times):
        optimizer.zero_grad()


def test_a_stretch_is_watched_and_reported_with_its_curves():
    reported: list[Finding] = []
    watch = Watch(WATCHED, on_finding=reported.append)
    clear(5)
    with watch:
        clear(3)
    report = watch.report()
    assert [finding.message for finding in report.findings] == ["cleared"]
    assert len(reported) == 1
    assert report.series["live_graphs"].values == (1.0, 2.0, 3.0)
    assert report.updates == 3
    assert report.verdicts[0].verdict is Verdict.FIRED
    assert report.seconds > 0
    assert not report.problems


def test_numbers_are_processed_in_batches_or_on_request():
    with Watch(WATCHED) as watch:
        clear(BATCHED_EVENTS - 1)
        assert len(watch._pending) == BATCHED_EVENTS - 1
        assert len(watch.report().series["live_graphs"].values) == BATCHED_EVENTS - 1
        assert not watch._pending
        clear(3 * BATCHED_EVENTS + 2)
        assert len(watch._pending) == 2
        watch.timing()
        assert not watch._pending
    assert len(watch.report().series["live_graphs"].values) == 4 * BATCHED_EVENTS + 1


def test_nested_watches_have_their_own_findings():
    with Watch(WATCHED) as outer:
        clear(1)
        with Watch(WATCHED) as inner:
            clear(1)
    assert (len(outer.report().series["live_graphs"].values), len(inner.report().series["live_graphs"].values)) == (
        2,
        1,
    )


def test_pytorch_is_restored_afterwards():
    before = torch.optim.Optimizer.zero_grad
    with Watch(WATCHED):
        assert torch.optim.Optimizer.zero_grad is not before
    assert torch.optim.Optimizer.zero_grad is before


def test_a_failing_recorder_is_disabled_and_detectors_go_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "trueloop.sanitizer.recorder.Recorder._graphs", lambda self, event: (_ for _ in ()).throw(KeyError("x"))
    )
    with Watch(WATCHED) as watch:
        clear(3)
    report = watch.report()
    assert len(report.findings) == 1
    assert report.series == {}
    assert report.problems == ("the numbers of the run are no longer recorded: KeyError: 'x'",)


def test_an_error_of_the_program_is_reported_with_its_line():
    with Watch(WATCHED) as watch:
        try:
            torch.zeros(2) @ torch.zeros(3)
        except RuntimeError as error:
            watch.report_error(error)
    (finding,) = watch.report().findings
    assert finding.location is not None
    assert finding.location.path == __file__


def test_later_watches_do_not_change_a_report():
    first = Watch([])
    assert first.start() is None
    assert first.report().seconds < first.report().seconds, "it is still going on"
    report = first.stop()
    with Watch([]):
        assert first.report() is report


def test_a_paused_watch_ignores_events():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    with Watch([]) as watch:
        optimizer.zero_grad()
        with pytest.raises(ZeroDivisionError), watch.paused():
            optimizer.zero_grad()
            _ = 1 / 0
        assert watch.report().updates == 1
        optimizer.zero_grad()
    assert watch.report().updates == 2


def test_a_model_named_early_has_the_first_number(made_up: None):
    watch, models = Watch(WATCHED), [torch.nn.Linear(2, 1) for _ in range(2)]
    watch.start()
    try:
        watch.name_parameters(models[1])
        names = [watch._attachment.stream.registry.ref(model).name for model in models]
    finally:
        watch.stop()
    assert names == ["Linear 2", "Linear"]
