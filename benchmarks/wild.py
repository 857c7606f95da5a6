"""Count the findings of `trueloop lint` over checkouts of public repositories, with their precision as judged by hand.

``python benchmarks/wild.py CHECKOUTS`` lints each git checkout below a folder, named ``owner+name``, one at a time.
Each error and warning is looked up in ``wild_judged.json``: a list of records with repository, commit, path (of
a notebook: with its cell), code, lines, verdict ("true", "arguable" or "false") and why. What it lacks is printed, so
that it can be read and judged. Judgements of findings that are no longer reported stay in the file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from measure import console, table, write

JUDGED = Path(__file__).parent / "wild_judged.json"
VERDICTS = ("true", "arguable", "false")
TIMEOUT_S = 300


class Key(NamedTuple):
    """A finding, by the place where it is reported."""

    repository: str
    commit: str
    path: str
    line: int
    code: str


def lint(checkout: Path) -> dict[str, Any]:
    """Lint a checkout and return its JSON report; {} if it took too long or ended without a report."""
    command = [sys.executable, "-m", "trueloop", "lint", ".", "--format", "json", "--jobs", "1", "--no-cache"]
    try:
        completed = subprocess.run(
            command, cwd=checkout, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        console.print(f"{checkout.name}: no report after {TIMEOUT_S} s")
        return {}
    try:
        return json.loads(completed.stdout)
    except json.JSONDecodeError:
        console.print(f"{checkout.name}: no report: {completed.stderr.strip()[-300:]}")
    return {}


def commit_of(checkout: Path) -> str:
    """Return the first 12 digits of the commit that is checked out."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def judgements() -> dict[Key, str]:
    """Return the verdict of each finding that was read by hand."""
    return {
        Key(each["repository"], each["commit"], each["path"], line, each["code"]): each["verdict"]
        for each in json.loads(JUDGED.read_text(encoding="utf-8"))
        for line in each["lines"]
    }


def count(keys: Iterable[Key], verdicts: dict[Key, str]) -> dict[str, int]:
    """Return how many findings have each verdict, or none."""
    found = Counter(verdicts.get(each, "not judged") for each in keys)
    return {name: found[name] for name in (*VERDICTS, "not judged")}


def main() -> None:
    """Lint, count, print and save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkouts", type=Path, help="a folder of git checkouts that are named owner+name")
    parser.add_argument("--quick", action="store_true", help="the first five checkouts only, not saved")
    arguments = parser.parse_args()
    folders = sorted(each for each in arguments.checkouts.iterdir() if (each / ".git").exists())
    repositories: list[dict[str, Any]] = []
    severities: dict[str, Counter[str]] = defaultdict(Counter)
    reported: set[Key] = set()
    for folder in folders[: 5 if arguments.quick else None]:
        name, commit, start = folder.name.replace("+", "/", 1), commit_of(folder), time.perf_counter()
        report = lint(folder)
        seconds = round(time.perf_counter() - start, 1)
        findings = report.get("findings", [])
        repositories.append({
            "repository": name, "commit": commit, "files": report.get("files"), "findings": len(findings),
            "seconds": seconds,
        })  # fmt: skip
        for each in findings:
            severities[each["code"]][each["severity"]] += 1
            if each["severity"] != "note":
                reported.add(Key(name, commit, each["path"], each["line"], each["code"]))
    verdicts = judgements()
    for each in sorted(reported - verdicts.keys()):
        console.print(f"not judged: {each.repository} {each.path}:{each.line} {each.code}")
    files = sum(each["files"] or 0 for each in repositories)
    precision = {code: count((k for k in reported if k.code == code), verdicts) for code in sorted(severities)}
    linted = {(each["repository"], each["commit"]) for each in repositories}
    gone = {key: verdict for key, verdict in verdicts.items() if key not in reported and key[:2] in linted}
    rows = [
        [code, *(str(severities[code][each]) for each in ("error", "warning", "note")), *map(str, found.values())]
        for code, found in precision.items()
    ]
    total = count(reported, verdicts)
    sums = [str(sum(each[name] for each in severities.values())) for name in ("error", "warning", "note")]
    table(
        f"trueloop lint, {len(repositories)} repositories, {files:,} files",
        ["code", "errors", "warnings", "notes", *total],
        [*rows, ["all", *sums, *map(str, total.values())]],
    )
    console.print(f"judged and no longer reported: {count(gone, verdicts)}")
    found = {
        "repositories": repositories, "files": files, "severities": severities, "precision": precision, "all": total,
        "no longer reported": count(gone, verdicts),
    }  # fmt: skip
    write("wild", {"found": found}, quick=arguments.quick)


if __name__ == "__main__":
    main()
