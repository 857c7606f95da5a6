"""A silent failure: all that is known of one mistake, as its file in the catalogue tells it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence, Severity
from trueloop.failures.teaching_script import TeachingLoop
from trueloop.tracing.events import Event


class Detector(Protocol):
    """Watches one run for one failure: a state machine over events, new for every run.

    It never touches torch's internals, keeps no reference to anything live in an event, and returns evidence only for
    what no correct program does. Between two updates that were not watched in full it hears a `Gap`, and forgets
    whatever it was in the middle of.
    """

    moments: ClassVar[tuple[type[Event], ...]]
    """The events it wants to see. One that has ``rouses`` as well, some of these, sees nothing before one of those."""

    def observe(self, event: Any) -> Evidence | Iterable[Evidence] | None:
        """Take in one event of ``moments``; return what is now certain, once for each thing at fault."""
        ...

    def abstains(self) -> str:
        """Say why it cannot tell "passed" after what it has seen; "" where it can."""
        ...


class Rule(NamedTuple):
    """Finds one failure in the text of programs."""

    words: tuple[str, ...]
    """All of them stand in every text that can have it, of "a|b" one: other files are not looked at."""
    find: Callable[[Source], Iterable[Hit]]
    """Yields only what no correct program does; where the text alone cannot tell, nothing."""
    asked: bool = False
    """Only where somebody asks for it: it is a matter of style."""

    def concerns(self, stands: Callable[[str], bool]) -> bool:
        """True for a text that can have it, as far as its words tell.

        Args:
            stands: whether a word stands in the text.
        """
        return all(stands(word) if "|" not in word else any(map(stands, word.split("|"))) for word in self.words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One entry of the catalogue. Family and slug come from where its file lies: ``gradient/never_cleared.py``."""

    code: str
    """Three letters of the family and three digits: "GRD001"."""
    title: str
    severity: Severity
    doc: str
    """The page: sections Symptom, Why nothing raises, Look-alikes, Fix, References."""
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
    examined: bool = False
    """`trueloop doctor` looks for it before a run."""
