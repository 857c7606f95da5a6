"""`trueloop runs sync`: copy the parts of runs that a tracking store lacks."""

import json as json_format
import os
from dataclasses import asdict
from pathlib import Path

from trueloop.app.option_types import Flag
from trueloop.app.runs.sync import SyncedRun, sync_runs
from trueloop.cli.runs import Root
from trueloop.core.formatting import format_count, replace_unprintable

_OUTCOME_TEXT = {
    "complete": "was complete",
    "copied": "copied",
    "rewritten": "rewritten",
    "busy": "is being copied by another process",
    "empty": "has not started",
}


def sync_command(
    *runs: str, store: str | None = None, again: Flag = False, root: Root = Path("runs"), json: Flag = False
) -> int:
    """Copy runs to a tracking store, such as runs that trained while the store was down.

    Only missing parts are copied, so repeating the command is safe. Exit code: 0, or 1 if a run could not be copied.

    Args:
        runs: Runs to copy, by path, name, or the beginning of a name or run id; by default all runs in the root.
        store: Target: sqlite, sqlite:///FILE, postgresql+psycopg://USER@HOST/DATABASE, http://HOST:PORT (MLflow),
            tensorboard:FOLDER, wandb:FOLDER; by default the environment variable TRUELOOP_STORE.
        again: Remove the runs from the store and write them again.
        root: Folder of the runs.
        json: Print one JSON object and nothing else.
    """
    synced_runs: list[SyncedRun] = []
    for synced in sync_runs(runs, root, store or os.environ.get("TRUELOOP_STORE"), rewrite=again):
        synced_runs.append(synced)
        if not json:
            print(replace_unprintable(_line(synced)), flush=True)
    failed = [each for each in synced_runs if each.result is None]
    if json:
        print(json_format.dumps({"store": synced_runs[0].store, "runs": [_record(each) for each in synced_runs]}))
    elif len(synced_runs) > 1:
        failures = f", {len(failed)} could not be copied" if failed else ""
        print(f"{format_count(len(synced_runs), 'run')} in {synced_runs[0].store}{failures}.")
    return 1 if failed else 0


def _line(synced: SyncedRun) -> str:
    if synced.result is None:
        return f"{synced.run}  could not be copied: {synced.problem}"
    result = synced.result
    lines = f", {format_count(result.lines, 'line')}" if result.lines else ""
    state = f", {result.state}" if result.state else ""
    return f"{synced.run}  {_OUTCOME_TEXT[result.outcome]}{lines}{state}"


def _record(synced: SyncedRun) -> dict[str, object]:
    result = asdict(synced.result) if synced.result else {"outcome": "failed", "state": "", "lines": 0}
    return {"run": str(synced.run), **result, "problem": synced.problem or None}
