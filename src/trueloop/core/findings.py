"""Findings and reports: source locations, the evidence of detectors and rules, findings, verdicts, run statistics."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import StrEnum
from types import CodeType
from typing import Final, NamedTuple

from trueloop.core.learning import LearningSummary
from trueloop.core.source_text import Fix


class Severity(StrEnum):
    """Certainty that a finding is a mistake."""

    ERROR = "error"
    """No correct program does this."""
    WARNING = "warning"
    """A correct program hardly ever does this; the failure's page lists the exceptions."""
    NOTE = "note"
    """Slow or fragile, not wrong."""


class SourceLocation(NamedTuple):
    """A line of source code."""

    path: str
    """File name in Python's code object; the report shows it relative to the working directory."""
    line: int
    function: str = ""
    """Qualified name of the enclosing function, "" at module level."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


class CodePosition(NamedTuple):
    """An instruction of running code; recording it costs 100 ns, resolving it to a `SourceLocation` 1 us."""

    code: CodeType
    instruction: int

    def __hash__(self) -> int:
        """Hash name, first line and instruction only: a code object hashes its whole content, every time.

        Cost: 0.2 us.
        """
        return hash((self.code.co_name, self.code.co_firstlineno, self.instruction))

    @property
    def source_location(self) -> SourceLocation:
        """The line of this instruction."""
        code = self.code
        positions = list(code.co_positions())
        line = positions[self.instruction // 2][0] if self.instruction >= 0 else None
        function = "" if code.co_name == "<module>" else code.co_qualname
        return SourceLocation(code.co_filename, line or code.co_firstlineno, function)


class SuggestedChange(NamedTuple):
    """A fix as a small change of the source, which is shown but never applied."""

    location: SourceLocation
    text: str
    """One or more lines, without the indentation of the line at ``location``."""
    position: str = "before"
    """Where the text goes relative to the line at ``location``: "before", "after" or "instead"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The report of a detector or rule about one occurrence of its failure."""

    message: str
    """One sentence with the numbers that prove the failure."""
    location: CodePosition | SourceLocation | None
    """The operation that causes the failure; None if it is not a line of the user's program."""
    related: tuple[tuple[CodePosition | SourceLocation, str], ...] = ()
    """Other relevant lines, each with a description: (location, "cleared here")."""
    fix: str = ""
    """The fix in this case; "" = the fix of the failure's page."""
    change: SuggestedChange | None = None
    """The fix as a change of the source; None if there is none."""
    dedup_key: Hashable = None
    """Distinguishes findings at one line, e.g. by parameter; equal line and ``dedup_key`` only raise the count."""
    first_update: int | None = None
    """The first update with the failure; None = the current update."""
    severity: Severity | None = None
    """Severity in this case; None = the severity of the failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A silent failure in the user's program."""

    code: str
    slug: str
    title: str
    severity: Severity
    message: str
    location: SourceLocation | None
    related: tuple[tuple[SourceLocation, str], ...] = ()
    first_update: int | None = None
    """Index, from 0, of the optimizer update at which the failure was first found; None for a linter finding."""
    count: int = 1
    """Number of occurrences at this location."""
    fix: str = ""
    change: SuggestedChange | None = None
    column: int | None = None
    """Column of the operation, in characters from 1; None for a finding at run time."""
    end: tuple[int, int] | None = None
    """Line and column after the operation's last character."""
    autofix: Fix | None = None
    """The fix as edits of the file."""
    cell: int | None = None
    """Number of the notebook cell, from 1, in which ``location.line`` is counted; None outside notebooks."""


def by_importance(finding: Finding) -> tuple[int, bool, int]:
    """Return a sort key: by severity; of equal ones, reasons why the run does not learn (LRN) last; then by update."""
    return list(Severity).index(finding.severity), finding.code.startswith("LRN"), finding.first_update or 0


class Verdict(StrEnum):
    """Conclusion of a run about one failure of the catalogue."""

    FIRED = "fired"
    PASSED = "passed"
    NOT_APPLICABLE = "not applicable"
    """The failure is impossible in this program, for example without a learning rate schedule."""
    NOT_JUDGED = "not judged"
    """The failure was possible but could not be checked; the verdict gives the reason."""


UNPROVABLE_AT_RUN_TIME: Final = "no event at run time proves it"
"""The reason of ``NOT_JUDGED`` for failures that have no detector: the linter or `trueloop doctor` finds them."""


class FailureVerdict(NamedTuple):
    """The verdict on one failure, with its reason."""

    code: str
    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateTiming:
    """The time of one update and its parts, as measured in fully traced updates."""

    update_s: float
    """Seconds between two updates: the median over single updates, or over periods of sampled tracing."""
    data_share: float
    """Fraction of the time spent waiting for the data loader; the four fractions add up to at most 1."""
    forward_share: float
    backward_share: float
    optimizer_share: float

    @property
    def shares(self) -> dict[str, float]:
        """Fraction of the time in each phase, and in everything else under "other"; the fractions add up to 1."""
        phases = {name: getattr(self, f"{name}_share") for name in ("data", "forward", "backward", "optimizer")}
        return {**phases, "other": max(0.0, 1 - sum(phases.values()))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The values of one quantity and the updates at which they were read, thinned to a bounded length."""

    updates: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGradientNorms:
    """L2 norm of each layer's gradient at some updates, thinned to a bounded number."""

    updates: tuple[int, ...]
    layers: tuple[str, ...]
    """Layer names such as "encoder.0". In a model with very many layers the last entry combines the remaining ones."""
    norms: tuple[tuple[float | None, ...], ...]
    """For each layer, one norm per update; None if the optimizer did not update the layer."""


class LayerState(NamedTuple):
    """What a layer does at the end of a run."""

    layer: str
    """Name of the layer, as in `LayerGradientNorms`."""
    gradient: float | None = None
    """Median L2 norm of its gradient over the latest updates; None = not read."""
    update_ratio: float | None = None
    """Norm of an update over the norm of the weight: the largest of its weights; None = not read."""
    activation: str = ""
    """The activation that gets its values: "relu", "sigmoid", "tanh"; "" = none of these."""
    idle: float | None = None
    """Share of its units that are 0 for all samples of the latest batches that were read, behind a ReLU; share of the
    values that are saturated, behind a sigmoid or tanh; None = not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedError:
    """The explanation of a PyTorch error that ended the program."""

    kind: str
    """Identifier of the explanation, such as "shape-mismatch"."""
    type: str
    """Class name of PyTorch's exception, such as "RuntimeError"."""
    title: str
    message: str
    """PyTorch's own message, shortened."""
    location: SourceLocation | None
    meaning: str
    """What the message says about the program, in one or two sentences."""
    fix: str
    origin: SourceLocation | None = None
    """The line that created the offending tensor."""
    origin_message: str = ""
    """What happened at ``origin``: "`x` is created here"."""
    other_locations: tuple[tuple[SourceLocation, str], ...] = ()
    update: int = 0

    @property
    def related(self) -> tuple[tuple[SourceLocation, str], ...]:
        """Every relevant line except the line that raised the error."""
        origin = ((self.origin, self.origin_message),) if self.origin and self.origin != self.location else ()
        return (*origin, *self.other_locations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of one sanitized run or one linted tree."""

    findings: tuple[Finding, ...]
    """Findings, most severe first."""
    verdicts: tuple[FailureVerdict, ...] = ()
    files: int = 0
    """Number of files the linter read; 0 for a run."""
    suppressed: int = 0
    """Number of findings that a comment or the settings suppress."""
    updates: int = 0
    updates_traced: int = 0
    """Number of updates with full tracing."""
    seconds: float = 0.0
    overhead_s: float = 0.0
    """Lower bound of the time spent tracing: the work inside hooks is timed, calling the hooks is not."""
    timing: UpdateTiming | None = None
    series: dict[str, Series] = field(default_factory=dict[str, Series])
    """Series by name: "loss", "loss_read" (each loss that the program reads), "grad_norm", "lr", "live_graphs",
    "held_out_loss" (of evaluations)."""
    layer_gradient_norms: LayerGradientNorms | None = None
    """Gradient norm of each layer; None if no norm could be read without a device synchronisation."""
    layers: tuple[LayerState, ...] = ()
    """The layers of the model, first one first."""
    learning: LearningSummary | None = None
    """Whether the run learns; None if no loss with readable targets was seen."""
    error: ExplainedError | None = None
    """The PyTorch error that ended the program, if it can be explained."""
    problems: tuple[str, ...] = ()
    """Descriptions of internal errors of the sanitizer, which did not affect the program."""

    def highest_severity(self) -> Severity | None:
        """Return the severity of the most severe finding; None without findings."""
        order = list(Severity)
        return min((finding.severity for finding in self.findings), key=order.index, default=None)
