"""`trueloop lint`: silent failures found in the text of programs."""

from typing import Annotated

from cyclopts import Parameter

from trueloop.app.lint.lint_command import LintOptions, lint


def lint_command(
    *paths: Annotated[str, Parameter(allow_leading_hyphen=True)],
    explain: str = "",
    options: Annotated[LintOptions | None, Parameter(name="*", negative=(), show_default=False)] = None,
) -> int:
    """Find silent failures in Python files and notebooks, without running them.

    Exit code: 0 clean, or notes only; 1 findings; 2 something could not be judged.

    Args:
        paths: Files and folders; - reads standard input. By default the folder you are in.
        explain: Print the page of a failure: --explain GRD001.
    """
    if explain:
        from trueloop.cli.explain import explain_command

        explain_command(explain)
        return 0
    return lint(paths, options or LintOptions())
