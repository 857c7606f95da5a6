"""`trueloop lint`: find silent failures in source code."""

from typing import Annotated

from cyclopts import Parameter

from trueloop.app.lint.lint_command import LintOptions, lint


def lint_command(
    *paths: Annotated[str, Parameter(allow_leading_hyphen=True)],
    explain: str = "",
    options: Annotated[LintOptions | None, Parameter(name="*", negative=(), show_default=False)] = None,
) -> int:
    """Find silent failures in Python files and notebooks, without running them.

    Exit code: 0 without findings or with notes only, 1 with findings, 2 if no file could be checked.

    Args:
        paths: Files and folders to check; - reads standard input. By default the current folder.
        explain: Print the page of this failure and check nothing: --explain GRD001.
    """
    if explain:
        from trueloop.cli.explain import explain_command

        explain_command(explain)
        return 0
    return lint(paths, options or LintOptions())
