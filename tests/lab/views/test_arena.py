"""What the arena's page asks, over a board of its own and with a referee that knows at once."""

from __future__ import annotations

import ast
import json
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import describe_fields, parse_record
from trueloop.lab.arena.submission_queue import SubmissionQueue
from trueloop.lab.views import arena
from trueloop.lab.views.arena import Query, answer


@pytest.fixture
def ask(tmp_path: Path, made_up_referee: list[Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    queue = SubmissionQueue(tmp_path / "arena.sqlite3")
    monkeypatch.setattr(arena, "_submission_queue", lambda: queue)

    def asked(do: str, **given: Any) -> Any:
        return json.loads(json.dumps(answer(parse_record(Query, {"do": do, **given})), allow_nan=False))

    yield asked
    queue.close()


def judged(ask: Any, **given: Any) -> Any:
    number = ask("submit", **given)["id"]
    end = time.monotonic() + 30
    while (told := ask("entry", id=number))["open"]:
        assert time.monotonic() < end
        time.sleep(0.02)
    return told


def text_of(lines: list[list[list[str]]]) -> str:
    return "\n".join("".join(piece for _, piece in line) for line in lines)


def test_the_page_can_make_controls_of_it(ask: Any):
    fields = {field["name"]: field for field in describe_fields(Query)}
    settings = {field["name"]: field for field in fields["entry"]["fields"]}
    tracks = ask("tracks")
    assert [track["baseline"].keys() <= settings.keys() for track in tracks["tracks"]] == [True] * 3


def test_a_row_that_somebody_wrote_is_refused_and_the_board_is_there(ask: Any):
    rows = [judged(ask, track="digits", entry={"lr": lr}, name=name) for lr, name in ((0.02, "ada"), (0.03, "eve"))]
    with sqlite3.connect(arena._submission_queue().leaderboard.path) as base:
        base.execute("UPDATE entries SET trials = '[7]' WHERE id = ?", (rows[1]["id"],))
        base.execute("UPDATE curves SET points = '{' WHERE entry = ?", (rows[0]["id"],))
    base.close()
    board = ask("board", track="digits")
    assert [row["name"] for row in board["boards"]["updates"]] == ["ada", "baseline"]
    assert [row["id"] for row in board["refused"]] == [rows[1]["id"]]
    assert [curve["name"] for curve in board["curves"]] == ["baseline"]


def test_the_code_shown_is_what_practice_runs(ask: Any):
    text = text_of(ask("script", track="deep", entry={"lr": 0.3}, seed=9)["script"])
    ast.parse(text)
    assert "SEED = 9\n" in text
    assert "lr=0.3" in text
    assert "del second" in text


def test_a_practice_run_is_looked_at_piece_by_piece(ask: Any):
    number = ask("practise", track="deep", entry={"lr": 0.3}, seed=9)["id"]
    end = time.monotonic() + 30
    while not (told := ask("poll", id=number))["done"]:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert (told["trial"]["end"], told["trial"]["updates"], told["error"]) == ("reached", 300, None)
    assert [len(ask("poll", id=number, since=since)["points"]) for since in (0, 1, 2, 99)] == [2, 1, 0, 0]


def test_an_entry_handed_in_is_on_the_board_with_its_curve(ask: Any):
    told = judged(ask, track="deep", entry={"lr": 0.002}, name="Ada <b>")
    assert (told["state"], told["name"], told["rank"], told["together"]) == ("reached", "Ada <b>", 1, 1)
    assert len(told["trials"]) == len(told["curves"]) == len(told["seeds"]) == 5
    assert f"SEED = {told['seeds'][0]}\n" in text_of(told["script"])
    board = ask("board", track="deep")
    assert [(row["rank"], row["name"]) for row in board["boards"]["updates"]] == [(1, "Ada <b>"), (2, "baseline")]
    assert [(curve["name"], curve["baseline"]) for curve in board["curves"]] == [("baseline", True), ("Ada <b>", False)]
    assert board["best"] == {"digits": None, "spiral": None, "deep": 2}
    assert board["queue"] == []
    again = judged(ask, track="deep", entry={"lr": 0.002}, name="somebody else")
    assert (again["together"], ask("board", track="deep")["boards"]["updates"][0]["seeds"]) == (2, 10)


def test_a_finding_is_told_with_its_line(ask: Any):
    told = judged(ask, track="deep", entry={"lr": 9.0})
    assert (told["state"], told["rank"]) == ("disqualified", None)
    assert told["trials"][0]["found"]["code"] == "GRD007"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"do": "entry", "id": 99}, "no entry 99"),
        ({"do": "replay", "id": 99}, "no entry 99"),
        ({"do": "poll", "id": 99}, "no longer known"),
        ({"do": "board", "track": "mnist"}, "no track"),
        ({"do": "submit", "entry": {"batch": 10**9}}, "entry.batch"),
        ({"do": "submit", "entry": {"lr": float("nan")}}, "entry.lr"),
        ({"do": "submit", "entry": {"code": "1"}}, r"entry\.code"),
        ({"do": "submit", "name": "a" * 33}, "name"),
        ({"do": "submit", "name": "baseline"}, "name"),
        ({"do": "judged", "updates": 1}, "updates"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_run(ask: Any, made_up_referee: list[Any], given: Any, named: str):
    with pytest.raises(InvalidConfig, match=named):
        ask(given.pop("do"), **given)
    assert made_up_referee == []
