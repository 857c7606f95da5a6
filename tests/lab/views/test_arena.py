"""The requests of the arena's page, on a temporary leaderboard and with a fake judge."""

from __future__ import annotations

import ast
import json
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import describe_fields, parse_record
from trueloop.lab.arena.judge_client import JudgeClient
from trueloop.lab.arena.submission_queue import SubmissionQueue
from trueloop.lab.views import arena
from trueloop.lab.views.arena import Query, answer


@pytest.fixture
def ask(tmp_path: Path, fake_judge: list[Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    queue = SubmissionQueue(tmp_path / "arena.sqlite3")
    monkeypatch.setattr(arena, "_submission_queue", lambda: queue)

    def ask_arena(do: str, **fields: Any) -> Any:
        return json.loads(json.dumps(answer(parse_record(Query, {"do": do, **fields})), allow_nan=False))

    yield ask_arena
    queue.close()


def submit_and_wait(ask: Any, **fields: Any) -> Any:
    number = ask("submit", **fields)["id"]
    end = time.monotonic() + 30
    while (reply := ask("entry", id=number))["open"]:
        assert time.monotonic() < end
        time.sleep(0.02)
    return reply


def text_of(lines: list[list[list[str]]]) -> str:
    return "\n".join("".join(piece for _, piece in line) for line in lines)


def test_every_setting_of_a_baseline_has_a_field(ask: Any):
    fields = {field["name"]: field for field in describe_fields(Query)}
    settings = {field["name"]: field for field in fields["entry"]["fields"]}
    tracks = ask("tracks")
    assert [track["baseline"].keys() <= settings.keys() for track in tracks["tracks"]] == [True] * 3


def test_damaged_rows_are_listed_and_the_leaderboard_still_works(ask: Any):
    submissions = ((0.02, "ada"), (0.03, "eve"))
    rows = [submit_and_wait(ask, track="digits", entry={"lr": lr}, name=name) for lr, name in submissions]
    with sqlite3.connect(arena._submission_queue().leaderboard.path) as connection:
        connection.execute("UPDATE entries SET trials = '[7]' WHERE id = ?", (rows[1]["id"],))
        connection.execute("UPDATE curves SET points = '{' WHERE entry = ?", (rows[0]["id"],))
    connection.close()
    board = ask("board", track="digits")
    assert [row["name"] for row in board["boards"]["updates"]] == ["ada", "baseline"]
    assert [row["id"] for row in board["refused"]] == [rows[1]["id"]]
    assert [curve["name"] for curve in board["curves"]] == ["baseline"]


def test_the_shown_script_is_the_practice_script(ask: Any):
    text = text_of(ask("script", track="deep", entry={"lr": 0.3}, seed=9)["script"])
    ast.parse(text)
    assert "SEED = 9\n" in text
    assert "lr=0.3" in text
    assert "del second" in text


def test_a_practice_run_is_polled_for_new_points(ask: Any):
    number = ask("practise", track="deep", entry={"lr": 0.3}, seed=9)["id"]
    end = time.monotonic() + 30
    while not (reply := ask("poll", id=number))["done"]:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert (reply["trial"]["end"], reply["trial"]["updates"], reply["error"]) == ("reached", 300, None)
    assert [len(ask("poll", id=number, since=since)["points"]) for since in (0, 1, 2, 99)] == [2, 1, 0, 0]


def test_a_submitted_entry_is_on_the_leaderboard_with_its_curve(ask: Any):
    reply = submit_and_wait(ask, track="deep", entry={"lr": 0.002}, name="Ada <b>")
    assert (reply["state"], reply["name"], reply["rank"], reply["pooled_entries"]) == ("reached", "Ada <b>", 1, 1)
    assert len(reply["trials"]) == len(reply["curves"]) == len(reply["seeds"]) == 5
    assert f"SEED = {reply['seeds'][0]}\n" in text_of(reply["script"])
    board = ask("board", track="deep")
    assert [(row["rank"], row["name"]) for row in board["boards"]["updates"]] == [(1, "Ada <b>"), (2, "baseline")]
    assert [(curve["name"], curve["baseline"]) for curve in board["curves"]] == [("baseline", True), ("Ada <b>", False)]
    assert board["best"] == {"digits": None, "spiral": None, "deep": 2}
    assert board["queue"] == []
    again = submit_and_wait(ask, track="deep", entry={"lr": 0.002}, name="somebody else")
    assert (again["pooled_entries"], ask("board", track="deep")["boards"]["updates"][0]["seeds"]) == (2, 10)


def forge(entry: int) -> None:
    """Edit a result as anyone can who may write the file."""
    with sqlite3.connect(arena._submission_queue().leaderboard.path) as connection:
        connection.execute(
            "UPDATE entries SET trials = replace(trials, '\"updates\":20', '\"updates\":1') WHERE id = ?", (entry,)
        )
    connection.close()


def replay_and_wait(ask: Any, entry: int) -> Any:
    number, end = ask("replay", id=entry)["id"], time.monotonic() + 30
    while not (reply := ask("poll", id=number))["done"]:
        assert time.monotonic() < end
        time.sleep(0.02)
    return reply


def ranks(ask: Any) -> list[tuple[int | None, str, bool]]:
    rows = ask("board", track="digits")["boards"]["updates"]
    return [(row["rank"], row["name"], row["confirmed"]) for row in rows]


def test_a_forged_row_is_not_ranked_and_a_replay_does_not_confirm_it(ask: Any):
    number = submit_and_wait(ask, track="digits", entry={"lr": 0.02}, name="eve")["id"]
    assert ranks(ask) == [(1, "eve", True), (2, "baseline", True)]
    forge(number)
    assert ranks(ask) == [(1, "baseline", True), (None, "eve", False)]
    assert ask("board", track="digits")["best"]["digits"] == 100
    assert replay_and_wait(ask, number)["same"] is False
    assert ranks(ask) == [(1, "baseline", True), (None, "eve", False)]


def test_a_failed_replay_unranks_an_entry_and_a_successful_one_ranks_it(ask: Any, monkeypatch: pytest.MonkeyPatch):
    number = submit_and_wait(ask, track="digits", entry={"lr": 0.02}, name="ada")["id"]
    with monkeypatch.context() as other_result:
        run = JudgeClient.run
        other_result.setattr(JudgeClient, "run", lambda *args, **options: replace(run(*args, **options), digest="cd"))
        assert replay_and_wait(ask, number)["same"] is False
    assert (None, "ada", False) in ranks(ask)
    assert replay_and_wait(ask, number)["same"] is True
    assert (1, "ada", True) in ranks(ask)


def test_a_replay_with_other_versions_changes_no_rank(ask: Any, monkeypatch: pytest.MonkeyPatch):
    number = submit_and_wait(ask, track="digits", entry={"lr": 0.02}, name="ada")["id"]
    run = JudgeClient.run
    monkeypatch.setattr(JudgeClient, "run", lambda *args, **options: replace(run(*args, **options), digest="cd"))
    monkeypatch.setattr(JudgeClient, "versions", lambda self: {"torch": "3.0"})
    assert replay_and_wait(ask, number)["same"] is False
    assert (1, "ada", True) in ranks(ask)


def test_the_baseline_cannot_be_submitted_as_an_entry(ask: Any):
    (track,) = [each for each in ask("tracks")["tracks"] if each["name"] == "digits"]
    with pytest.raises(InvalidConfig, match="settings of the baseline"):
        ask("submit", track="digits", entry=track["baseline"], name="ada")
    assert ranks(ask) == []


def test_a_queued_entry_can_be_withdrawn(ask: Any, monkeypatch: pytest.MonkeyPatch):
    judged = submit_and_wait(ask, track="digits", entry={"lr": 0.02})["id"]
    with pytest.raises(InvalidConfig, match="can no longer be withdrawn"):
        ask("withdraw", id=judged)
    monkeypatch.setattr(SubmissionQueue, "ensure_judging", lambda self: None)
    queued = ask("submit", track="digits", entry={"lr": 0.03}, name="ada")["id"]
    assert ask("withdraw", id=queued) == {"withdrawn": queued}
    with pytest.raises(InvalidConfig, match=f"no entry {queued}"):
        ask("entry", id=queued)


def test_a_row_has_accuracy_time_memory_and_lines(ask: Any):
    submit_and_wait(ask, track="digits", entry={"lr": 0.02}, name="ada")
    (row,) = [each for each in ask("board", track="digits")["boards"]["updates"] if each["name"] == "ada"]
    assert row["accuracy"]["median"] == 0.97
    assert row["step_ms"]["median"] == 2.5
    assert row["memory_mib"]["median"] == 3.0
    assert (
        row["lines"]
        == sum(bool(line.strip()) for line in text_of(ask("script", track="digits")["script"]).splitlines()) - 1
    )


def test_a_finding_disqualifies_the_entry(ask: Any):
    reply = submit_and_wait(ask, track="deep", entry={"lr": 9.0})
    assert (reply["state"], reply["rank"]) == ("disqualified", None)
    assert reply["trials"][0]["found"]["code"] == "GRD007"


@pytest.mark.parametrize(
    ("fields", "message"),
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
def test_an_invalid_request_runs_nothing(ask: Any, fake_judge: list[Any], fields: Any, message: str):
    with pytest.raises(InvalidConfig, match=message):
        ask(fields.pop("do"), **fields)
    assert fake_judge == []
