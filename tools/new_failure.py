"""`make new-failure FAMILY=gradient NAME=clipped_to_nothing`: the files of a new failure and of its tests, to fill in.

The tests of the catalogue fail until it is: docs/writing-a-failure.md goes through it, from the idea to the merge.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Final

from trueloop.failures.load import FAMILIES, catalogue

ROOT: Final = Path(__file__).parents[1]

OWN: Final = 900
"""From here on codes are left to the packages of others."""

FAILURE: Final = '''"""In one sentence: what happens.

What you see
    Which curve, which number, and what people try without success.

Why it happens
    Why PyTorch raises no error.

Fix
    What to change, as code.

When this is fine
    Correct programs that come close, a sentence each. Each has a test below tests/failures/{family}/.

How it is detected
    What is measured, or what must stand in the text.

References
    Name, https://address
"""

from __future__ import annotations

from typing import ClassVar

from trueloop.tracing.events import Event, StepTaken
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Severity
from trueloop.core.findings import Evidence


class Detector(failure.Detector):
    """What it looks for, in one sentence."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (StepTaken,)

    def observe(self, event: StepTaken) -> Evidence | None:
        """Return evidence where no correct program does this."""
        return None


FAILURE = Failure(
    code="{code}",
    title="",
    severity=Severity.ERROR,
    doc=__doc__ or "",
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

TEST: Final = '''"""{code}: what the failure is, in a line."""

import pytest

HEAD = """
import torch
from torch import nn
"""

GUILTY = {
    "plain": """
...  # <- {code}
""",
}

QUIET = {
    "the nearest correct program": """
...
""",
}


@pytest.mark.parametrize("script", GUILTY.values(), ids=GUILTY.keys())
def test_it_is_found(guilty, script):
    guilty(HEAD + script)


@pytest.mark.parametrize("script", QUIET.values(), ids=QUIET.keys())
def test_its_look_alikes_are_left_in_peace(quiet, script):
    quiet(HEAD + script)
'''


def next_code(family: str) -> str:
    """Return the first code of a family that is higher than all there are."""
    taken = [int(code[3:]) for code, entry in catalogue().items() if entry.family == family and int(code[3:]) < OWN]
    return f"{FAMILIES[family]}{max(taken, default=0) + 1:03}"


def write(family: str, name: str, root: Path) -> list[Path]:
    """Write both files.

    Returns:
        Their paths.

    Raises:
        FileExistsError: there is such a failure already.
    """
    words = {"family": family, "code": next_code(family)}
    failure = root / "src" / "trueloop" / "catalogue" / family / f"{name}.py"
    test = root / "tests" / "catalogue" / family / f"test_{name}.py"
    for path, text in ((failure, FAILURE), (test, TEST)):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(_filled(text, words))
    return [failure, test]


def _filled(text: str, words: dict[str, str]) -> str:
    return re.sub(r"\{(family|code)\}", lambda match: words[match[1]], text)


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("family", choices=sorted(FAMILIES))
    parser.add_argument("name", help="the mistake, in lower case with underscores: never_cleared")
    given = parser.parse_args()
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", given.name):
        parser.error(f"{given.name!r} is no name: lower case with underscores, such as never_cleared.")
    try:
        written = write(given.family, given.name, ROOT)
    except FileExistsError as error:
        parser.error(f"{error.filename} is there already.")
    for path in written:
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")
    sys.stdout.write("Next: docs/writing-a-failure.md\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
