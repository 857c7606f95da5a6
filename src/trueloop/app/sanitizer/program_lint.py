"""Lint the files that a program has run, for failures that the run itself could not judge."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from trueloop.analysis.project import Project
from trueloop.app.lint.lint_command import active_rules
from trueloop.core.findings import FailureVerdict, Finding, Report, Severity, Verdict, by_importance
from trueloop.failures.selection import FailureSelection
from trueloop.lint.check_tree import LintJob, lint_files
from trueloop.lint.files import read_text
from trueloop.tracing.user_location import is_user_file

MAX_FILES: Final = 64
DECIDED_BY_RUN: Final = frozenset((
    "EVL001", "EVL002", "EVL003", "GRD001", "GRD003", "GRD004", "MEM001", "MEM002", "MDL002", "MDL007",
))  # fmt: skip
"""Failures that a run shows to be absent if it judged them: each mode, gradient or graph of the program is seen.

For others, the detector and the rule find different forms: that the run has passed says nothing about the source.
"""

LOCATED_BY_LINT: Final = frozenset(("LOS011", "LOS013", "LOS018", "LOS021", "LOS027"))
"""Failures of which a run sees the effect, but not always the line: the finding of the linter takes its place."""


def add_lint_findings(report: Report, selection: FailureSelection) -> Report:
    """Return the report of a run with the errors and warnings that `trueloop lint` finds in the program's files.

    A failure that fired in the run is not reported again, unless it is one of `LOCATED_BY_LINT`, nor is a warning about
    one of `DECIDED_BY_RUN` that the run has judged. The files are read together, so that what one passes to another is
    known.

    Cost: about 20 ms for each file of the program.
    """
    verdicts = {each.code: each.verdict for each in report.verdicts}
    fired = {code for code, verdict in verdicts.items() if verdict is Verdict.FIRED} - LOCATED_BY_LINT
    rules = [rule for rule in active_rules(selection) if rule.failure.code not in fired]
    shown_absent = {code for code in DECIDED_BY_RUN if verdicts.get(code) is Verdict.PASSED}
    added: list[Finding] = []
    problems = list(report.problems)
    try:
        files = sorted(_program_files())
        job = LintJob(rules, project=Project(map(str, files), read_text))
        for linted in lint_files(files, job, jobs=1):
            added += [
                each
                for each in linted.result.findings
                if each.severity is Severity.ERROR
                or (each.severity is Severity.WARNING and each.code not in shown_absent)
            ]
    except Exception as error:  # noqa: BLE001 - the report of the run must not be lost
        problems.append(f"the program's files could not be linted: {type(error).__name__}: {error}")
    codes = {each.code for each in added}
    kept = [each for each in report.findings if each.code not in codes & LOCATED_BY_LINT]
    return replace(
        report,
        findings=tuple(sorted((*kept, *added), key=lambda each: by_importance(each)[:2])),
        verdicts=tuple(
            FailureVerdict(each.code, Verdict.FIRED, "found in the source") if each.code in codes else each
            for each in report.verdicts
        ),
        problems=tuple(problems),
    )


def _program_files() -> set[Path]:
    """Return the program's own files: those of loaded modules in the folder of the script or in the current folder."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if not isinstance(main, str) or not main.endswith((".py", ".ipynb")):
        return set()
    folders = Path(main).parent, Path.cwd()
    found = {Path(main)}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and is_user_file(file) and Path(file).is_file():
            found |= {Path(file)} if any(map(Path(file).is_relative_to, folders)) else set()
    return found if len(found) <= MAX_FILES else {Path(main)}
