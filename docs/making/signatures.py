"""Measures the curves of each injectable failure, and the healthy ones next to them, from real runs.

`make signatures` runs what is missing or was measured of other scripts (some seconds for each) and writes one small
JSON file per failure. The site draws from these files, so that building it trains nothing. Each carries the name of the
two scripts it was measured of; `tests/test_site.py` compares that with the current scripts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trueloop.failures.load import Entry, catalogue
from trueloop.failures.teaching_script import CannotInject

FOLDER: Final = Path(__file__).parent / "signatures"
SHOWN: Final = 2  # plots of a page: the training loss, and what tells the two runs apart best
BANDS: Final = ("healthy", "broken")


def wanted() -> Iterator[tuple[Entry, str]]:
    """Yield each failure that can be put into the teaching script, with the name of the two scripts."""
    from trueloop.lab.teaching.signatures import pair

    for entry in catalogue().values():
        if entry.failure.inject is None:
            continue
        try:
            yield entry, pair(entry.failure.inject).key()
        except CannotInject:
            continue


def file_of(entry: Entry) -> Path:
    """Return where a failure's curves lie."""
    return FOLDER / f"{entry.code}.json"


def kept(entry: Entry) -> dict[str, Any] | None:
    """Return what was measured of a failure; None where nothing was."""
    file = file_of(entry)
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def stale() -> list[tuple[Entry, str]]:
    """Return the failures whose measurement is missing or out of date."""
    return [(entry, key) for entry, key in wanted() if (kept(entry) or {}).get("key") != key]


def measured(entry: Entry, key: str) -> dict[str, Any]:
    """Run both scripts from every seed, as the lab's page of signatures does, and return what the site needs."""
    from trueloop.lab.views.signature import Query, answer

    answered = answer(Query(code=entry.code))
    while "curves" not in answered:
        answered = answer(Query(code=entry.code))
    curves = answered["curves"]
    finding = curves["finding"]
    return {
        "written by": "make signatures",
        "key": key,
        "seeds": curves["seeds"],
        "found": curves["found"],
        "updates": curves["updates"],
        "raised": curves["raised"],
        "message": finding["message"] if finding else "",
        "changes": answered["changes"],
        "plots": [_rounded(plot) for plot in _distinguishable(curves["plots"])],
    }


def _distinguishable(plots: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the loss, and the quantity in which the two differ most, if they differ in any other."""
    first, *others = plots
    return [first, *(plot for plot in others[: SHOWN - 1] if plot["apart"])]


def _rounded(plot: dict[str, Any]) -> dict[str, Any]:
    bands = {
        which: {
            name: [None if value is None else round(value, 3) for value in values] if name != "lost" else values
            for name, values in plot[which].items()
        }
        for which in BANDS
    }
    return {**plot, **bands, "low": float(f"{plot['low']:.4g}"), "high": float(f"{plot['high']:.4g}")}


def main() -> None:
    """Measure what is missing, or what is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("codes", nargs="*", help="measure these again; by default, those that are not up to date")
    codes = {code.upper() for code in parser.parse_args().codes}
    todo = [(entry, key) for entry, key in wanted() if entry.code in codes] if codes else stale()
    for entry, key in todo:
        file_of(entry).write_text(json.dumps(measured(entry, key), separators=(",", ":")) + "\n", encoding="utf-8")
        print(f"{entry.code} {entry.failure.title}", flush=True)
    known = {file_of(entry) for entry, _ in wanted()}
    for left in set(FOLDER.glob("*.json")) - known:
        left.unlink()
        print(f"{left.name} removed: no failure has this code")


if __name__ == "__main__":
    main()
