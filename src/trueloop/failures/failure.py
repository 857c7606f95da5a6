"""Defines the records of a silent failure: `Failure`, its `BaseDetector` and its lint `Rule`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from trueloop.analysis.project import Word, WordSearch
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Severity

if TYPE_CHECKING:
    from trueloop.failures.teaching_script import TeachingLoop
    from trueloop.tracing.events import Event


class BaseDetector:
    """Detects one failure in one run: a state machine over events, one instance per run.

    A method ``on_<event>`` receives every event of that type, for example ``on_step_taken`` every `StepTaken`. It
    returns the evidence that is now certain, once per cause: an `Evidence`, several, or None. An annotation of the
    class with a tracker's type, as in ``gradients: GradientLedger``, gets the run's instance of that tracker, which
    several detectors share.

    A detector never touches PyTorch's internals, keeps no reference to a live object of an event, and returns evidence
    only for behaviour that no correct program has. After updates that were not fully traced it receives a `TracingGap`
    and discards incomplete observations.
    """

    activated_by: ClassVar[tuple[type[Event], ...]] = ()
    """Event types that activate the detector: it receives no event before the first event of these types. () = active
    from the start."""
    ignore: Callable[..., None] = staticmethod(lambda *events: None)
    """Called by the detector with types of events of which no further one can change anything, so that it does not
    receive them; the dispatcher of a run sets it."""

    def inconclusive(self) -> str:
        """Return the reason why the events so far do not allow the verdict "passed"; "" if they allow it."""
        return ""


class Rule(NamedTuple):
    """Finds one failure in the source code of a program."""

    required_words: tuple[Word, ...]
    """Words that every affected file contains; files without them are skipped. "a|b&c" = a, or both b and c; a pattern
    of one line stands for text that it matches, and a function for a text for which it returns True."""
    find: Callable[[SourceFile], Iterable[Hit]]
    """Function that yields code that no correct program has, and nothing if the source code is not conclusive."""
    opt_in: bool = False
    """Whether the rule runs only if it is selected, because it is a matter of style."""
    depends_on_users: bool = False
    """Whether code of other files that uses a function or class may make it right: it is judged together with them."""

    def may_match(self, contains: WordSearch) -> bool:
        """Return True if a file contains all `required_words`.

        Args:
            contains: returns True for a word, pattern or function that applies to the file.
        """
        return all(map(contains, self.required_words))


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One entry of the catalogue. Its file names its family and slug: ``gradient/never_cleared.py``."""

    code: str
    """Code of three letters for the family and three digits: "GRD001"."""
    title: str
    severity: Severity
    bad: str
    """Short complete script with the failure; the tests run it."""
    good: str
    """Corrected version of ``bad``."""
    fix: str
    """One sentence that says how to fix the failure."""
    rule: Rule | None = None
    detector: Callable[[], BaseDetector] | None = None
    inject: Callable[[TeachingLoop], None] | None = None
    """Injects the failure into the teaching loop by changing one operation."""
    checked_by_doctor: bool = False
    """Whether `trueloop doctor` checks for the failure before a run."""
    doc: str = ""
    """Text of the page with the sections of `load.SECTIONS`; `load` reads it from the docstring of the file."""


def changed(script: str, replacements: Mapping[str, str]) -> str:
    """Return a script with some parts replaced, such as ``good`` from ``bad``.

    Raises:
        ValueError: a part to replace does not occur exactly once.
    """
    for old, new in replacements.items():
        if script.count(old) != 1:
            raise ValueError(f"{old!r} occurs {script.count(old)} times in the script, not once.")
        script = script.replace(old, new)
    return script
