"""What is found and where: places in the user's code, evidence, findings, verdicts."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import StrEnum
from types import CodeType
from typing import Final, NamedTuple

from trueloop.core.source_text import Fix


class Severity(StrEnum):
    """How sure a finding is to be a mistake."""

    ERROR = "error"
    """No correct program does this."""
    WARNING = "warning"
    """A correct program hardly ever does; the page says when."""
    NOTE = "note"
    """Slow or fragile, not wrong."""


class SourceLocation(NamedTuple):
    """A line of source."""

    path: str
    """As Python knows it; the report shows it relative to the working directory."""
    line: int
    function: str = ""
    """The qualified name of the function it is in, "" at module level."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


class CodePosition(NamedTuple):
    """A point in running code, taken in 100 ns; `location` looks up its line, in 1 us, only when somebody asks."""

    code: CodeType
    instruction: int

    def __hash__(self) -> int:
        """Hash what equal code has in common: that of a code object itself is computed anew each time, from all of it.

        Cost: 0.2 us.
        """
        return hash((self.code.co_name, self.code.co_firstlineno, self.instruction))

    @property
    def site(self) -> SourceLocation:
        """The line it stands on."""
        code = self.code
        positions = list(code.co_positions())
        line = positions[self.instruction // 2][0] if self.instruction >= 0 else None
        function = "" if code.co_name == "<module>" else code.co_qualname
        return SourceLocation(code.co_filename, line or code.co_firstlineno, function)


class SuggestedChange(NamedTuple):
    """A fix as a small change of the text, to be shown, not applied."""

    location: SourceLocation
    text: str
    """One or more lines, without the indentation of the line at ``location``."""
    position: str = "before"
    """"before", "after" or "instead" of that line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a detector or rule returns when it is certain."""

    message: str
    """One sentence with the numbers that prove it."""
    location: CodePosition | SourceLocation | None
    """The operation at fault; None where no line of the user's is."""
    related: tuple[tuple[CodePosition | SourceLocation, str], ...] = ()
    """Other lines that matter, each with what it does: (place, "cleared here")."""
    fix: str = ""
    """What to change, in this case; "" = what the failure's page says."""
    change: SuggestedChange | None = None
    """The fix as a change of the text, where one can be given."""
    about: Hashable = None
    """Tells apart two findings at one line, e.g. the parameter; evidence with equal line and ``about`` is counted."""
    update: int | None = None
    """Since when; None = now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A silent failure in the user's program."""

    code: str
    slug: str
    title: str
    severity: Severity
    message: str
    site: SourceLocation | None
    related: tuple[tuple[SourceLocation, str], ...] = ()
    first_update: int | None = None
    """The optimizer update it was first seen at, from 0; None where the text alone was read."""
    count: int = 1
    fix: str = ""
    change: SuggestedChange | None = None
    column: int | None = None
    """Of the operation at fault, in characters from 1; None where the program ran."""
    end: tuple[int, int] | None = None
    """Line and column behind its last character."""
    repair: Fix | None = None
    """The fix as edits of the file."""
    cell: int | None = None
    """Of a notebook, from 1; ``location`` is then a line of that cell."""


class Verdict(StrEnum):
    """What was decided about one failure of the catalogue."""

    FIRED = "fired"
    PASSED = "passed"
    NOT_APPLICABLE = "not applicable"
    """The program has nothing it could happen to."""
    NOT_JUDGED = "not judged"
    """It could have happened, and was not looked at: the reason is told."""


UNPROVEN: Final = "nothing that happens at run time proves it"
"""Why no run judges a failure that only the text, or the machine, shows."""


class Judged(NamedTuple):
    """The verdict on one failure, and why it is not more."""

    code: str
    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRate:
    """Where the time of an update went, as measured in the updates watched in full."""

    update_s: float
    """Seconds between two updates: the median of single ones, or of stretches that were not watched in full."""
    data: float
    """Share of the time spent waiting for the loader; the shares add up to at most 1."""
    forward: float
    backward: float
    optimizer: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One number over the updates it was read at, thinned to a bounded length."""

    updates: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorms:
    """The gradient's L2 norm of each layer at the updates it was read at, thinned to a bounded number of them."""

    updates: tuple[int, ...]
    layers: tuple[str, ...]
    """By name: "encoder.0". Of a model with very many the last one stands for the rest."""
    norms: tuple[tuple[float | None, ...], ...]
    """For each layer a norm for each of the updates; None where it was not stepped then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """An error that ended the program, in a report."""

    kind: str
    """"shape-mismatch"."""
    type: str
    """"RuntimeError"."""
    title: str
    message: str
    """torch's own words, shortened."""
    site: SourceLocation | None
    meaning: str
    fix: str
    made_at: SourceLocation | None = None
    made: str = ""
    """What was made there: "x was made here"."""
    others: tuple[tuple[SourceLocation, str], ...] = ()
    update: int = 0

    @property
    def related(self) -> tuple[tuple[SourceLocation, str], ...]:
        """Every line that matters beside the one that raised."""
        own = ((self.made_at, self.made),) if self.made_at and self.made_at != self.site else ()
        return (*own, *self.others)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything one watched run, or one linted tree, has to say."""

    findings: tuple[Finding, ...]
    """The gravest first."""
    judged: tuple[Judged, ...] = ()
    files: int = 0
    """Texts that were read, where nothing ran."""
    silenced: int = 0
    """Findings a comment or the settings asked not to hear of."""
    updates: int = 0
    watched: int = 0
    """Of those, in full detail."""
    seconds: float = 0.0
    cost_s: float = 0.0
    """Spent watching, at least: what is done within torch's calls is timed, passing them on is not."""
    rate: UpdateRate | None = None
    series: dict[str, Series] = field(default_factory=dict[str, Series])
    """"loss", "grad_norm", "lr", "live_graphs"."""
    layers: LayerNorms | None = None
    """None where no norm could be read without waiting for it."""
    error: Explained | None = None
    """What ended the program, where it is an error of torch's that can be explained."""
    problems: tuple[str, ...] = ()
    """What broke inside the watching, in words; the program went on."""

    def worst(self) -> Severity | None:
        """The gravest severity found."""
        order = list(Severity)
        return min((finding.severity for finding in self.findings), key=order.index, default=None)
