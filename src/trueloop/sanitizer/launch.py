"""Runs a program under the watch: attached when torch is imported, reported at the end, stopped early where asked."""

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
from trueloop.sanitizer.finding_bus import pass_on
from trueloop.sanitizer.import_hook import when_loaded
from trueloop.sanitizer.run_program import Program, run

if TYPE_CHECKING:
    from trueloop.sanitizer.watch import Audience, Watch

FOUND: Final = 3
"""Exit code: a finding made trueloop end the program, or call a run that ended with 0 a failure."""
NEVER_IMPORTED: Final = "nothing to judge: the program never imported torch"
NOT_INSTALLED: Final = "nothing to judge: torch is not installed here; pip install 'trueloop[train]'"


class Launched(NamedTuple):
    """How a program ended, and what was found."""

    code: int
    """What Python would have exited with; `FOUND` where it was stopped at an error."""
    report: Report
    nothing: str
    """Why there is no report, in words; "" where there is one."""
    forked: bool
    """This process is a child that the program forked: its parent reports."""


class Stopped(SystemExit):
    """Ends the program at its first certain error. Its ``finally`` blocks and exit functions run."""

    def __init__(self) -> None:
        super().__init__(FOUND)


def launch(
    program: Program,
    choice: FailureSelection,
    *,
    found: Callable[[Finding], None] = lambda finding: None,
    stop_on_error: bool = False,
    audience: Audience | None = None,
) -> Launched:
    """Run a program to its end and say what was found.

    Args:
        program: what to run.
        choice: what to watch for.
        found: called with each finding as soon as it is certain.
        stop_on_error: end the program at the first finding of severity error.
        audience: who follows its numbers while it runs.
    """
    process = os.getpid()
    session = _Session(choice, found, stop_on_error=stop_on_error, audience=audience)
    leave = when_loaded("torch", session.start)
    try:
        ended = run(program, failed=session.tell_error)
    finally:
        leave()
    if os.getpid() != process:
        return Launched(ended.code, Report(findings=()), "", forked=True)
    return Launched(ended.code, session.stop(), session.nothing, forked=False)


class _Session:
    """The watch from the import of torch to the end of the program; nothing in it reaches the program."""

    def __init__(
        self, choice: FailureSelection, found: Callable[[Finding], None], *, stop_on_error: bool, audience: Audience | None
    ) -> None:
        self._choice, self._found, self._stop_on_error = choice, found, stop_on_error
        self._audience = audience
        self._watch: Watch | None = None
        self.nothing = NEVER_IMPORTED if find_spec("torch") else NOT_INSTALLED

    def start(self) -> None:
        try:
            from trueloop.sanitizer.dispatch import Watched
            from trueloop.sanitizer.watch import Watch

            watch = Watch(
                [Watched(entry.failure, entry.slug) for entry in self._choice.entries()],
                found=self._take,
                silenced=self._choice.is_suppressed,
                errors=known_errors(),
                audience=self._audience,
            )
            watch.start()
            self._watch, self.nothing = watch, ""
        except Exception as error:  # noqa: BLE001 - the program goes on unwatched, and the report says so
            self.nothing = f"cannot judge: trueloop could not attach to torch ({type(error).__name__}: {error})"

    def tell_error(self, error: BaseException) -> None:
        if self._watch is not None and isinstance(error, Exception):
            try:
                self._watch.tell_error(error)
            except Stopped:  # it has ended already
                return

    def stop(self) -> Report:
        if self._watch is None:
            absent = self.nothing in {NEVER_IMPORTED, NOT_INSTALLED}
            return Report(findings=(), problems=() if absent else (self.nothing,))
        self._stop_on_error = False
        return self._watch.stop()

    def _take(self, finding: Finding) -> None:
        pass_on(finding)
        self._found(finding)
        if self._stop_on_error and finding.severity == Severity.ERROR:
            stop()


def stop() -> None:
    """End the program from within one of its own calls.

    Raises:
        Stopped: at this line; a thread other than the main one ends, and the main one is ended too.
    """
    main = threading.main_thread().ident
    if main is not None and main != threading.get_ident():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(Stopped))
    raise Stopped
