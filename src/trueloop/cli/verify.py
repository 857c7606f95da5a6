"""`trueloop verify SPEC`: proofs on a model and its loop."""

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
    """What the user asks for, as options of the command line."""

    select: Sequence[str] = ()
    """Prove these only: names or groups, with commas between them."""
    ignore: Sequence[str] = ()
    """Leave these out."""
    html: Path | None = None
    """Write a page with plots to this file."""
    causal: Flag = False
    """The model may not see the future, though the file does not say so."""
    verbose: Flag = False
    """Say of every proof that does not apply why."""
    list: Flag = False
    """List the proofs, and prove nothing."""
    json: Flag = False
    """Print one JSON object and nothing else."""


def verify_command(spec: str = "", /, *, wishes: VerifyOptions | None = None) -> int:
    """Prove on your own model and loop what is to hold: no leak between samples, exact accumulation, and so on.

    Exit code: 0 all that applies holds, 1 something is broken or could not be judged, 2 wrong usage.

    Args:
        spec: path/to/file.py:build, a function that returns a trueloop.verify.ProofTarget, dict of its fields, a model
            or a Recipe; or a recipe's name.
    """
    wishes = wishes or VerifyOptions()
    if not spec and not wishes.list:
        raise CycloptsError(
            msg="Say what to verify: path/to/file.py:build, or a recipe.", app=App(name="trueloop verify")
        )
    try:
        from trueloop.app.verification.load_target import load_target
        from trueloop.cli.verify_page import VerifyPage, print_list
        from trueloop.verify import prove
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "torch", "train") from error
    if wishes.list:
        print_list()
        return 0
    html = wishes.html and check_writable(wishes.html, "page")
    page = VerifyPage(quiet=wishes.json, verbose=wishes.verbose)
    with redirect_stdout(sys.stderr) if wishes.json else nullcontext():  # what the file prints is no JSON
        subject = load_target(spec)
        subject = replace(subject, causal=True) if wishes.causal else subject
        found = prove(
            subject, select=wishes.select, ignore=wishes.ignore, on_start=page.proof_started, on_end=page.proof_finished
        )
    page.print_summary(found)
    ok = all(each.ok for each in found)
    if html:
        from trueloop.app.verification.html_page import to_html

        write_output(html, to_html(found, spec), "page")
    if wishes.json:
        report = {"subject": spec, "ok": ok, "proofs": [each.as_dict() for each in found]}
        print(json_format.dumps(report, indent=2, allow_nan=False))
    return 0 if ok else 1
