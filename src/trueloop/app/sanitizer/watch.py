"""`trueloop.watch`: watch a program, or a block of it, for silent failures."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from trueloop.app.sanitizer.live_findings import LiveFindings
from trueloop.app.sanitizer.report_output import format_html, format_text, print_page
from trueloop.core.errors import InvalidConfig
from trueloop.core.findings import Finding, Report, Severity
from trueloop.failures.load import known_errors
from trueloop.failures.selection import select_failures
from trueloop.reporting.summary import headline
from trueloop.sanitizer.finding_bus import publish

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader


def watch(
    *parts: nn.Module | Optimizer | DataLoader[Any], select: Iterable[str] = (), ignore: Iterable[str] = ()
) -> WatchSession:
    """Watch this program for silent failures, from now on.

    As a context manager, ``with trueloop.watch() as report: ...``, it watches the block, and ``report`` has the
    findings. As a plain call, ``trueloop.watch(model, optimizer)``, it watches until the program ends, and then prints
    a report on standard error. In both cases, errors and warnings are printed there immediately.

    Args:
        parts: models, optimizers and loaders of the program, so that messages can name them from the start. Other
            objects are traced when they are used.
        select: codes, families or slugs to watch for; empty = all.
        ignore: codes, families or slugs to ignore.

    Raises:
        InvalidConfig: a part has another type, or a code, family or slug is not in the catalogue.
    """
    folder = Path.cwd()
    return WatchSession(parts, select=select, ignore=ignore, folder=folder)


class WatchSession:
    """A period in which the program is watched, with the findings so far."""

    def __init__(self, parts: Iterable[Any], *, select: Iterable[str], ignore: Iterable[str], folder: Path) -> None:
        from trueloop.sanitizer.dispatch import WatchedFailure
        from trueloop.sanitizer.watch import Watch

        parts = tuple(parts)
        models = _check_parts(parts)
        selection = select_failures(_as_list(select), _as_list(ignore), folder=folder)
        self._base = folder
        self._process = os.getpid()
        self._live = LiveFindings(folder)
        self._final_report: Report | None = None
        self._watch = Watch(
            [WatchedFailure(entry.failure, entry.slug) for entry in selection.entries()],
            on_finding=self._handle_finding,
            is_suppressed=selection.is_suppressed,
            errors=known_errors(),
        )
        for model in models:
            self._watch.name_parameters(model)
        self._watch.start()
        atexit.register(self._at_exit)

    @property
    def report(self) -> Report:
        """The report of the findings so far."""
        return self._final_report or self._watch.report()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings, most severe first."""
        return self.report.findings

    @property
    def verdict(self) -> str:
        """The first line of the report."""
        return headline(self.report)

    @property
    def ok(self) -> bool:
        """True if there is no finding of severity warning or error."""
        return self.report.highest_severity() in (None, Severity.NOTE)

    def stop(self) -> Report:
        """Stop watching and restore PyTorch. Further calls have no effect."""
        if self._final_report is None:
            self._final_report = self._watch.stop()
            atexit.unregister(self._at_exit)
        return self._final_report

    def report_error(self, error: BaseException) -> bool:
        """Explain an exception that left the program; return True if it could be explained."""
        if isinstance(error, Exception) and self._final_report is None:
            self._watch.report_error(error)
        return self.report.error is not None

    def __enter__(self) -> WatchSession:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.report_error(error)
        self.stop()

    def __str__(self) -> str:
        return format_text(self.report, base=self._base)

    def __repr__(self) -> str:
        return f"<trueloop: {self.verdict}>"

    def _repr_html_(self) -> str:
        return format_html(self.report, base=self._base)

    def _handle_finding(self, finding: Finding) -> None:
        publish(finding)
        self._live.print_finding(finding)

    def _at_exit(self) -> None:
        if os.getpid() == self._process:
            error = getattr(sys, "last_value", None)  # the exception whose traceback Python has printed
            if isinstance(error, BaseException) and not hasattr(sys, "ps1"):
                self.report_error(error)
            print_page(self.stop(), file=sys.stderr, base=self._base)


def _as_list(names: Iterable[str]) -> Iterable[str]:
    return [names] if isinstance(names, str) else names


def _check_parts(parts: Iterable[Any]) -> list[nn.Module]:
    """Return the models among the parts; refuse a part of any other type than `watch` supports."""
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

    for part in parts:
        if not isinstance(part, nn.Module | Optimizer | DataLoader):
            raise InvalidConfig(
                f"watch() got {part!r}, which is not a model, an optimizer or a DataLoader.",
                fix="Pass such objects only: with trueloop.watch(model, optimizer) as report: ...",
            )
    return [part for part in parts if isinstance(part, nn.Module)]
