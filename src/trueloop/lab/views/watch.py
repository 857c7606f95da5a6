"""The page that watches runs: a list of them, and each chosen one as it is now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from trueloop.core.untrusted_input import Bounds
from trueloop.lab.highlight import highlight
from trueloop.lab.visible_runs import VisibleRuns

NEEDS_TORCH = False
NEEDS_RUNS = True

READ_JOURNAL = """\
import json
from pathlib import Path

journal = Path({path!r}) / "journal.jsonl"
for line in journal.read_text().splitlines():
    record = json.loads(line)
    if record["event"] == "evaluated":
        print(record["update"], record["split"], record["metrics"])
"""
READ_REPORT = """\
# trueloop run --json report.json {command}
import json
from pathlib import Path

report = json.loads(Path("report.json").read_text())
print(report["headline"])
for finding in report["findings"]:
    print(finding["code"], finding["path"], finding["line"], finding["message"])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A list, or the state of some runs."""

    what: Literal["list", "follow", "code"] = "list"
    search: Annotated[str, Bounds(0, 80), "words in a run's name, recipe or state"] = ""
    runs: Annotated[tuple[Annotated[str, Bounds(1, 300)], ...], Bounds(0, 6), "which runs"] = ()
    marks: Annotated[tuple[Annotated[str, Bounds(0, 64)], ...], Bounds(0, 6), "how far each is known"] = ()


def answer(asked: Asked, seen: VisibleRuns) -> dict[str, Any]:
    """Answer one question."""
    if asked.what == "list":
        return seen.list_runs(asked.search)
    if asked.what == "code":
        return {"code": highlight(_code(asked, seen))}
    return seen.poll(asked.runs, asked.marks)


def _code(asked: Asked, seen: VisibleRuns) -> str:
    """Return Python that reads the first of the runs."""
    word = asked.runs[0] if asked.runs else ""
    kind, _, name = word.partition("/")
    if kind == "live":
        return READ_REPORT.format(command=seen.command(name) or "train.py")
    return READ_JOURNAL.format(path=str(seen.folder / name) if name else "runs/digits")
