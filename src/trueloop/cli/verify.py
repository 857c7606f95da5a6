"""`trueloop verify SPEC`: prove properties of a model and its training loop."""

import json as json_format
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

from cyclopts import App, CycloptsError, Parameter

from trueloop.app.option_types import Flag
from trueloop.app.output_file import check_writable, write_output
from trueloop.core.errors import MissingExtra


@Parameter(name="*", negative=(), show_default=False)
@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """Options of `trueloop verify`."""

    select: Sequence[str] = ()
    """Run only these proofs: names or groups, separated by commas."""
    ignore: Sequence[str] = ()
    """Skip these proofs: names or groups, separated by commas."""
    html: Path | None = None
    """Write an HTML page with plots to this file."""
    causal: Flag = False
    """Check that no output depends on later positions, even if the target is not marked as causal."""
    verbose: Flag = False
    """Print why a proof does not apply."""
    list: Flag = False
    """List the proofs without running them."""
    json: Flag = False
    """Print one JSON object and nothing else."""


def verify_command(spec: str = "", /, *, options: VerifyOptions | None = None) -> int:
    """Prove properties of your own model and loop: no leak between samples, exact accumulation, and so on.

    Exit code: 0 if all applicable properties hold, 1 if one fails or could not be judged, 2 for wrong usage.

    Args:
        spec: Name of a recipe, or path/to/file.py:build, a function that returns a trueloop.verify.ProofTarget, a dict
            of its fields, a model or a Recipe.
    """
    options = options or VerifyOptions()
    if not spec and not options.list:
        raise CycloptsError(
            msg="The target is missing: pass path/to/file.py:build, or a recipe.", app=App(name="trueloop verify")
        )
    try:
        from trueloop.app.verification.load_target import load_target
        from trueloop.cli.verify_output import VerifyPrinter, print_list
        from trueloop.verify import prove
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "torch", "train") from error
    if options.list:
        print_list()
        return 0
    html = options.html and check_writable(options.html, "page")
    printer = VerifyPrinter(quiet=options.json, verbose=options.verbose)
    with redirect_stdout(sys.stderr) if options.json else nullcontext():  # the file's prints must not break the JSON
        target = load_target(spec)
        target = replace(target, causal=True) if options.causal else target
        evidence = prove(
            target,
            select=options.select,
            ignore=options.ignore,
            on_start=printer.proof_started,
            on_end=printer.proof_finished,
        )
    printer.print_summary(evidence)
    ok = all(each.ok for each in evidence)
    if html:
        from trueloop.app.verification.html_page import to_html

        write_output(html, to_html(evidence, spec), "page")
    if options.json:
        report = {"subject": spec, "ok": ok, "proofs": [each.as_dict() for each in evidence]}
        print(json_format.dumps(report, indent=2, allow_nan=False))
    return 0 if ok else 1
