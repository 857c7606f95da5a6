"""One watched stretch of a program: attach, judge, report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from time import perf_counter
from types import TracebackType

from trueloop.engines.watch.attach import Attachment
from trueloop.engines.watch.judge import Judge, Watched
from trueloop.engines.watch.sources import all_sources
from trueloop.ground.findings import Finding, Report, Site


@cache
def _attachment() -> Attachment:
    """There is one torch in a process, so there is one attachment; nested watches listen to the same events."""
    return Attachment(all_sources)


class Watch:
    """Watches from ``start`` to ``stop``, or as a context manager.

    Args:
        catalogue: the failures to watch for.
        found: called with each finding as soon as it is certain.
        silenced: whether the program asks not to hear of a code at a line.
    """

    def __init__(
        self,
        catalogue: Iterable[Watched],
        *,
        found: Callable[[Finding], None] = lambda finding: None,
        silenced: Callable[[str, Site | None], bool] = lambda code, site: False,
    ) -> None:
        self._attachment = _attachment()
        self._problems: list[str] = []
        self._judge = Judge(catalogue, found=found, silenced=silenced, trouble=self._trouble)
        self._began = (0, 0, 0.0, 0.0)

    def start(self) -> None:
        """Begin to watch."""
        stream, levels = self._attachment.stream, self._attachment.levels
        self._began = (stream.update, levels.watched, stream.busy_s, perf_counter())
        self._attachment.attach(self._judge.hear)

    def stop(self) -> Report:
        """End watching; torch becomes as it was, unless another watch goes on."""
        self._attachment.detach(self._judge.hear)
        return self.report()

    def report(self) -> Report:
        """Return what is known by now."""
        stream, levels = self._attachment.stream, self._attachment.levels
        update, watched, busy_s, began_s = self._began
        return Report(
            findings=self._judge.findings(),
            judged=tuple(self._judge.judged()),
            silenced=self._judge.silenced,
            updates=stream.update - update,
            watched=levels.watched - watched,
            seconds=perf_counter() - began_s,
            cost_s=stream.busy_s - busy_s,
            problems=(*self._problems, *stream.problems),
        )

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _trouble(self, what: str, error: BaseException) -> None:
        self._problems.append(f"{what}: {type(error).__name__}: {error}")
