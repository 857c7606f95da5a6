"""Runs a program under the sanitizer, which watches it from the import of torch to the end."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, NamedTuple

from trueloop.core.findings import Finding, Report, Severity
from trueloop.failures.load import known_errors
from trueloop.failures.selection import FailureSelection
from trueloop.sanitizer.finding_bus import publish
from trueloop.sanitizer.import_hook import on_import
from trueloop.sanitizer.run_program import ProgramCommand, run_program

if TYPE_CHECKING:
    from trueloop.sanitizer.watch import RunObserver, Watch

FINDINGS_EXIT_CODE: Final = 3
"""Exit code if a finding stopped the program, or if it ended with 0 but has findings under ``--strict``."""
NEVER_IMPORTED: Final = "nothing to judge: the program never imported torch"
NOT_INSTALLED: Final = "nothing to judge: torch is not installed here; pip install 'trueloop[train]'"


class LaunchResult(NamedTuple):
    """The exit code and the report of a program."""

    code: int
    """Exit code of the program; `FINDINGS_EXIT_CODE` if a finding of severity error stopped it."""
    report: Report
    not_judged_reason: str
    """The reason why there is no report; "" if there is one."""
    forked: bool
    """Whether this process is a child that the program forked, whose parent reports."""


class StopRequested(SystemExit):
    """Ends the program at its first error finding. Its ``finally`` blocks and exit functions run."""

    def __init__(self) -> None:
        super().__init__(FINDINGS_EXIT_CODE)


def launch(
    program: ProgramCommand,
    selection: FailureSelection,
    *,
    on_finding: Callable[[Finding], None] = lambda finding: None,
    stop_on_error: bool = False,
    observer: RunObserver | None = None,
) -> LaunchResult:
    """Run a program to its end and return its report.

    Args:
        program: the program to run.
        selection: the failures to watch for.
        on_finding: called with each new finding.
        stop_on_error: whether to end the program at the first finding of severity error.
        observer: gets the numbers of the run while it is in progress.
    """
    process = os.getpid()
    session = _Session(selection, on_finding, stop_on_error=stop_on_error, observer=observer)
    cancel = on_import("torch", session.start)
    try:
        ended = run_program(program, on_error=session.report_error)
    finally:
        cancel()
    if os.getpid() != process:
        return LaunchResult(ended.code, Report(findings=()), "", forked=True)
    return LaunchResult(ended.code, session.stop(), session.not_judged_reason, forked=False)


class _Session:
    """The watch from the import of torch to the end of the program; an internal error never reaches the program."""

    def __init__(
        self,
        selection: FailureSelection,
        on_finding: Callable[[Finding], None],
        *,
        stop_on_error: bool,
        observer: RunObserver | None,
    ) -> None:
        self._selection, self._on_finding, self._stop_on_error = selection, on_finding, stop_on_error
        self._observer = observer
        self._watch: Watch | None = None
        self.not_judged_reason = NEVER_IMPORTED if find_spec("torch") else NOT_INSTALLED

    def start(self) -> None:
        try:
            from trueloop.sanitizer.dispatch import WatchedFailure
            from trueloop.sanitizer.watch import Watch

            watch = Watch(
                [WatchedFailure(entry.failure, entry.slug) for entry in self._selection.entries()],
                on_finding=self._handle_finding,
                is_suppressed=self._selection.is_suppressed,
                errors=known_errors(),
                observer=self._observer,
            )
            watch.start()
            self._watch, self.not_judged_reason = watch, ""
        except Exception as error:  # noqa: BLE001 - the program runs without the sanitizer, and the report says so
            self.not_judged_reason = (
                f"cannot judge: trueloop could not attach to torch ({type(error).__name__}: {error})"
            )

    def report_error(self, error: BaseException) -> None:
        if self._watch is not None and isinstance(error, Exception):
            try:
                self._watch.report_error(error)
            except StopRequested:  # the program has already ended
                return

    def stop(self) -> Report:
        if self._watch is None:
            absent = self.not_judged_reason in {NEVER_IMPORTED, NOT_INSTALLED}
            return Report(findings=(), problems=() if absent else (self.not_judged_reason,))
        self._stop_on_error = False
        return self._watch.stop()

    def _handle_finding(self, finding: Finding) -> None:
        publish(finding)
        self._on_finding(finding)
        if self._stop_on_error and finding.severity == Severity.ERROR:
            stop()


def stop() -> None:
    """End the program, from within one of its calls.

    Raises:
        StopRequested: always; outside of the main thread, it is raised in the main thread as well.
    """
    main = threading.main_thread().ident
    if main is not None and main != threading.get_ident():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(StopRequested))
    raise StopRequested
