"""A silent failure: all that is known of one mistake, as its file in the catalogue tells it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence, Severity
from trueloop.failures.teaching_script import TeachingLoop
from trueloop.tracing.events import Event


class Detector(ABC):
    """Watches one run for one failure: a state machine over events, one instance per run.

    A detector never touches PyTorch's internals, keeps no reference to anything live in an event, and returns evidence
    only for what no correct program does. Between two updates that were not traced in full it receives a `Gap` and
    discards whatever it was in the middle of.
    """

    subscribes_to: ClassVar[tuple[type[Event], ...]]
    """The types of the events that `observe` receives."""
    activated_by: ClassVar[tuple[type[Event], ...]] = ()
    """Some of ``subscribes_to``: the detector receives nothing before the first event of one of these. () = from the
    start."""

    @abstractmethod
    def observe(self, event: Any) -> Evidence | Iterable[Evidence] | None:
        """Take one event of ``subscribes_to``; return the evidence that is now certain, once per cause."""

    def inconclusive(self) -> str:
        """Return why "passed" cannot be concluded from the events seen; "" where it can."""
        return ""


class Rule(NamedTuple):
    """Finds one failure in the text of programs."""

    required_words: tuple[str, ...]
    """All of them stand in every text that can have it, of "a|b" one: other files are not looked at."""
    find: Callable[[SourceFile], Iterable[Hit]]
    """Yields only what no correct program does; where the text alone cannot tell, nothing."""
    opt_in: bool = False
    """Only where somebody asks for it: it is a matter of style."""

    def may_match(self, contains: Callable[[str], bool]) -> bool:
        """True for a text that can have it, as far as its words tell.

        Args:
            contains: whether a word stands in the text.
        """
        return all(
            contains(word) if "|" not in word else any(map(contains, word.split("|"))) for word in self.required_words
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One entry of the catalogue. Family and slug come from where its file lies: ``gradient/never_cleared.py``."""

    code: str
    """Three letters of the family and three digits: "GRD001"."""
    title: str
    severity: Severity
    doc: str
    """The page: see `load.SECTIONS` for its sections."""
    bad: str
    """A short complete script that has it, in words of every day; run by the tests."""
    good: str
    """Its correct twin."""
    fix: str
    """What to do, in one sentence."""
    rule: Rule | None = None
    detector: Callable[[], Detector] | None = None
    inject: Callable[[TeachingLoop], None] | None = None
    """Breaks one operation of the teaching loop."""
    checked_by_doctor: bool = False
    """`trueloop doctor` looks for it before a run."""
