"""Measure the curves of each injectable failure, and those of the healthy script, in real runs.

`make signatures` measures the failures whose file is missing or was measured with other scripts (some seconds each),
and writes one small JSON file per failure. The site draws its plots from these files, so building it trains nothing.
Each file has a key of the two scripts with which it was measured; `tests/test_site.py` compares it with today's key.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trueloop.failures.load import Entry, catalogue
from trueloop.failures.teaching_script import CannotInject
from trueloop.lab.serving import STATIC

FOLDER: Final = Path(__file__).parent / "signatures"
MAX_PLOTS: Final = 2  # plots of a page: the training loss, and the quantity that differs most between the runs
BANDS: Final = ("healthy", "broken")
CARDS: Final = ("GRD001", "OPT006", "EVL001", "LOS001", "DAT003", "DAT001", "SCH002", "MEM001")
"""Failures that the lab's simulator shows as cards."""
CARD_LABELS: Final = {"loss": "loss", "held_out": "held-out", "norm": "gradients", "rate": "rate", "graphs": "graphs"}
CARDS_FILE: Final = STATIC / "pages" / "simulator" / "bug_curves.json"
WALL_FILE: Final = STATIC / "pages" / "signatures" / "wall_curves.json"
"""The curves of the lab's page "Bug signatures": of each failure, those of the quantity that differs most."""


def injectable_failures() -> Iterator[tuple[Entry, str]]:
    """Yield each failure that can be injected into the teaching script, with the key of its two scripts."""
    from trueloop.lab.teaching.signatures import write_pair

    for entry in catalogue().values():
        if entry.failure.inject is None:
            continue
        try:
            yield entry, write_pair(entry.failure.inject).key()
        except CannotInject:
            continue


def file_of(entry: Entry) -> Path:
    """Return the path of a failure's file."""
    return FOLDER / f"{entry.code}.json"


def read_signature(entry: Entry) -> dict[str, Any] | None:
    """Return the measured curves of a failure; None if they were not measured."""
    file = file_of(entry)
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def stale() -> list[tuple[Entry, str]]:
    """Return the failures whose measurement is missing or out of date."""
    return [(entry, key) for entry, key in injectable_failures() if (read_signature(entry) or {}).get("key") != key]


def measure(entry: Entry, key: str) -> dict[str, Any]:
    """Run both scripts with every seed, as the lab's page of signatures does, and return the content of the file."""
    from trueloop.lab.views.signature import Query, answer

    reply = answer(Query(code=entry.code))
    while "curves" not in reply:
        reply = answer(Query(code=entry.code))
    curves = reply["curves"]
    finding = curves["finding"]
    return {
        "written by": "make signatures",
        "key": key,
        "seeds": curves["seeds"],
        "found": curves["found"],
        "updates": curves["updates"],
        "raised": curves["raised"],
        "message": finding["message"] if finding else "",
        "changes": reply["changes"],
        "plots": [_round_plot(plot) for plot in _distinguishable(curves["plots"])],
    }


def _distinguishable(plots: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the plot of the loss, and that of the quantity that differs most, if another quantity differs."""
    first, *others = plots
    return [first, *(plot for plot in others[: MAX_PLOTS - 1] if plot["apart"])]


def _round_plot(plot: dict[str, Any]) -> dict[str, Any]:
    bands = {
        which: {
            name: [None if value is None else round(value, 3) for value in values] if name != "lost" else values
            for name, values in plot[which].items()
        }
        for which in BANDS
    }
    return {**plot, **bands, "low": float(f"{plot['low']:.4g}"), "high": float(f"{plot['high']:.4g}")}


def cards_text() -> str:
    """Return the file of the simulator's cards: for each, the curve that differs most between the two runs."""
    from trueloop.lab.teaching.signatures import most_different

    cards: dict[str, Any] = {}
    for code in CARDS:
        signature = json.loads((FOLDER / f"{code}.json").read_text(encoding="utf-8"))
        plot = most_different(signature["plots"])
        cards[code] = {
            "title": plot["title"],
            "label": CARD_LABELS[plot["name"]],
            **{band: [_positions(plot[band]["x"]), plot[band]["middle"]] for band in BANDS},
        }
    return json.dumps(cards, separators=(",", ":")) + "\n"


def wall_text() -> str:
    """Return the file of the lab's wall: for each failure, the plot in which its two runs differ most."""
    from trueloop.lab.teaching.signatures import SEEDS, most_different

    plots = {
        entry.code: most_different(read["plots"])
        for entry, _ in injectable_failures()
        if (read := read_signature(entry))
    }
    for plot in plots.values():
        for band in BANDS:
            plot[band]["x"] = _positions(plot[band]["x"])
    return json.dumps({"seeds": len(SEEDS), "plots": plots}, separators=(",", ":")) + "\n"


def _positions(xs: list[float]) -> list[float]:
    """Return the horizontal positions; those of a run that makes no update, and so stays at 0, are spread evenly."""
    return xs if any(xs) else [round(i / max(1, len(xs) - 1), 3) for i in range(len(xs))]


def main() -> None:
    """Measure the named failures, or all that are missing or out of date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("codes", nargs="*", help="measure these again; by default, those that are not up to date")
    codes = {code.upper() for code in parser.parse_args().codes}
    pending = [(entry, key) for entry, key in injectable_failures() if entry.code in codes] if codes else stale()
    for entry, key in pending:
        file_of(entry).write_text(json.dumps(measure(entry, key), separators=(",", ":")) + "\n", encoding="utf-8")
        print(f"{entry.code} {entry.failure.title}", flush=True)
    current_files = {file_of(entry) for entry, _ in injectable_failures()}
    CARDS_FILE.write_text(cards_text(), encoding="utf-8")
    WALL_FILE.write_text(wall_text(), encoding="utf-8")
    for obsolete in set(FOLDER.glob("*.json")) - current_files:
        obsolete.unlink()
        print(f"{obsolete.name} removed: no failure has this code")


if __name__ == "__main__":
    main()
