"""Create the files of a new failure and of its tests: `make new-failure FAMILY=gradient NAME=clipped_to_nothing`.

The tests of the catalogue fail until the files are completed: see docs/writing-a-failure.md.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Final

from trueloop.failures.load import FAMILIES, catalogue

ROOT: Final = Path(__file__).parents[1]

FIRST_EXTERNAL_CODE: Final = 900
"""First number that is reserved for other packages."""

FAILURE_TEMPLATE: Final = '''"""One sentence that states the mistake.

What you see
    The symptom: which curve, which number, and which usual remedies have no effect.

Why it happens
    Why PyTorch raises no error.

Fix
    The fix as code.

When this is fine
    - Correct programs that look similar, one sentence each. Each has a test in tests/failures/{family}/.

How it is detected
    What is measured, with numbers, or which source code is searched for.

References
    Name, https://address
"""

from __future__ import annotations

from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity
from trueloop.tracing.events import StepTaken


class Detector(BaseDetector):
    """Detects ... (one sentence)."""

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence if the program does something that no correct program does."""
        return None


FAILURE = Failure(
    code="{code}",
    title="",
    severity=Severity.ERROR,
    bad="""
import torch
""",
    good="""
import torch
""",
    fix="",
    detector=Detector,
)
'''

TEST_TEMPLATE: Final = '''"""{code}: the failure in one line."""

import pytest

HEAD = """
import torch
from torch import nn
"""

FAULTY = {
    "plain": """
...  # <- {code}
""",
}

CORRECT = {
    "the closest correct program": """
...
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)
'''


def next_code(family: str) -> str:
    """Return the next code of a family."""
    used = [
        int(code[3:])
        for code, entry in catalogue().items()
        if entry.family == family and int(code[3:]) < FIRST_EXTERNAL_CODE
    ]
    return f"{FAMILIES[family]}{max(used, default=0) + 1:03}"


def create_files(family: str, name: str, root: Path) -> list[Path]:
    """Create both files.

    Returns:
        The paths of the module and of its test.

    Raises:
        FileExistsError: a module or test of this name exists already.
    """
    values = {"family": family, "code": next_code(family)}
    failure = root / "src" / "trueloop" / "failures" / family / f"{name}.py"
    test = root / "tests" / "failures" / family / f"test_{name}.py"
    for path, text in ((failure, FAILURE_TEMPLATE), (test, TEST_TEMPLATE)):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(_fill(text, values))
    return [failure, test]


def _fill(text: str, values: dict[str, str]) -> str:
    return re.sub(r"\{(family|code)\}", lambda match: values[match[1]], text)


def main() -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("family", choices=sorted(FAMILIES))
    parser.add_argument("name", help="the mistake, in lower case with underscores: never_cleared")
    arguments = parser.parse_args()
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", arguments.name):
        parser.error(f"{arguments.name!r} is not a valid name: use lower case with underscores, such as never_cleared.")
    try:
        paths = create_files(arguments.family, arguments.name, ROOT)
    except FileExistsError as error:
        parser.error(f"{error.filename} exists already.")
    for path in paths:
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")
    sys.stdout.write("Next: docs/writing-a-failure.md\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
