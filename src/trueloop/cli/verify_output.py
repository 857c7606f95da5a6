"""Print the results of `trueloop verify`: one line per proof when it ends, with the fix if the property is broken."""

import math
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from trueloop.app.verification.html_page import headline
from trueloop.cli.sparks import ASCII, BLOCKS, sparkline
from trueloop.core.formatting import format_duration, replace_unprintable
from trueloop.verification.discover import all_proofs
from trueloop.verification.evidence import Curve, Evidence, Verdict
from trueloop.verification.proof import Proof

MARKS = {
    Verdict.HOLDS: ("✓", "green"),
    Verdict.BROKEN: ("✗", "bold red"),
    Verdict.NOT_JUDGED: ("?", "yellow"),
    Verdict.NOT_APPLICABLE: ("-", "dim"),
}
ASCII_MARKS = {"✓": "+", "✗": "x"}
CELLS = 40  # largest width of a curve in columns


class VerifyPrinter:
    """Prints the progress of proofs on standard error, and their results on standard output.

    Args:
        quiet: True to print nothing.
        verbose: True to also print the proofs that do not apply, with the reasons.
    """

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        self._console = Console(highlight=False, soft_wrap=True, quiet=quiet)
        self._live = Console(stderr=True, highlight=False, quiet=quiet)
        self._verbose = verbose
        self._status = self._live.status("") if sys.stderr.isatty() and not quiet else None

    def proof_started(self, proof: Proof) -> None:
        """Show the name of the running proof on a terminal."""
        if self._status is not None:
            self._status.update(f"{proof.name} ...")
            self._status.start()

    def proof_finished(self, evidence: Evidence) -> None:
        """Print the line of one proof, and below it the evidence."""
        if self._status is not None:
            self._status.stop()
        if evidence.verdict is Verdict.NOT_APPLICABLE and not self._verbose:
            return
        mark, style = MARKS[evidence.verdict]
        mark = ASCII_MARKS.get(mark, mark) if self._ascii else mark
        heading, message = f"{mark} {evidence.proof:<26}", replace_unprintable(evidence.message)
        self._console.print(Text.assemble((heading, style), message))
        for curve in evidence.charts:
            if isinstance(curve, Curve):
                line = sparkline(_sample_values(curve), ASCII if self._ascii else BLOCKS)
                self._console.print(Text(f"{'':28}{line}", style="cyan"))
        for note in evidence.notes:
            self._console.print(Text(f"{'':28}{replace_unprintable(note)}", style="dim"))
        if evidence.fix:
            self._console.print(Text.assemble(f"{'':28}", ("fix: ", "bold green"), replace_unprintable(evidence.fix)))

    def print_summary(self, evidence: Sequence[Evidence]) -> None:
        """Print the names of the proofs that did not apply, and the summary line."""
        not_applicable = [each.proof for each in evidence if each.verdict is Verdict.NOT_APPLICABLE]
        if not_applicable and not self._verbose:
            names = ", ".join(not_applicable)
            self._console.print(Text(f"- not applicable: {names} (--verbose prints the reasons)", style="dim"))
        style = "bold green" if all(each.ok for each in evidence) else "bold red"
        seconds = format_duration(sum(each.seconds for each in evidence))
        self._console.print(Text(f"{headline(evidence)}, in {seconds}", style=style))

    @property
    def _ascii(self) -> bool:
        return self._console.options.ascii_only


def print_list() -> None:
    """Print every proof with its group and title."""
    console = Console(highlight=False)
    group = ""
    for name, proof in all_proofs().items():
        if proof.group != group:
            group = proof.group
            console.print(f"[bold]{group}[/]")
        console.print(Text(f"  {name:<26}{proof.title}"))


def _sample_values(curve: Curve) -> list[float]:
    """Return at most `CELLS` finite values of a curve's first line, at equal distances."""
    values = [value for value in next(iter(curve.lines.values())) if math.isfinite(value)]
    cells = min(CELLS, len(values))
    return [values[round(cell * (len(values) - 1) / max(1, cells - 1))] for cell in range(cells)]
