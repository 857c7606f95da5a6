"""Answer the page "Watch a run": a list of runs, the state of each selected run, code that reads a run, an example."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from trueloop.core.untrusted_input import Bounds
from trueloop.lab.example_run import start_example
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
class Query:
    """A request for the list, the state of some runs, code that reads a run, or the start of the example."""

    what: Literal["list", "poll", "code", "example"] = "list"
    search: Annotated[str, Bounds(0, 80), "text in a run's name, recipe or state"] = ""
    runs: Annotated[tuple[Annotated[str, Bounds(1, 300)], ...], Bounds(0, 6), "ids of runs"] = ()
    smoothing: Annotated[float, Bounds(0, 20), "factor of the default smoothing of the curves"] = 1.0
    versions: Annotated[tuple[Annotated[str, Bounds(0, 64)], ...], Bounds(0, 6), "versions that the page shows"] = ()


def answer(query: Query, runs: VisibleRuns) -> dict[str, Any]:
    """Answer one request."""
    if query.what == "list":
        return runs.list_runs(query.search)
    if query.what == "example":
        start_example()
        return {"started": True}
    if query.what == "code":
        return {"code": highlight(_reading_code(query, runs))}
    return runs.poll(query.runs, query.versions, query.smoothing)


def _reading_code(query: Query, runs: VisibleRuns) -> str:
    """Return Python code that reads the first requested run, or the report of a program under `trueloop run`."""
    run_id = query.runs[0] if query.runs else ""
    kind, _, name = run_id.partition("/")
    if kind == "live":
        return READ_REPORT.format(command=runs.command(name) or "train.py")
    return READ_JOURNAL.format(path=str(runs.folder / name) if name else "runs/digits")
