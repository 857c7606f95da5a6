"""The lab shows the runs of its folder and no other file, and does not send an unchanged run again."""

from __future__ import annotations

import json

import pytest

from trueloop.app.web.wire_format import encode_json
from trueloop.lab import visible_runs as module
from trueloop.lab.visible_runs import VisibleRuns
from trueloop.runs.live.position_file import encode_position
from trueloop.runs.live.writer import LiveWriter


@pytest.fixture
def visible_runs(fake_runs, tmp_path):
    return VisibleRuns(fake_runs.root, tmp_path / "live")


def test_runs_and_programs_are_listed_together(fake_runs, visible_runs, tmp_path):
    fake_runs.run("digits-1", end="finished")
    fake_runs.run("digits-2", end="")
    writer = LiveWriter(tmp_path / "live", {"name": "train.py", "command": "train.py --lr 1"})
    run = visible_runs.list_runs("")
    assert run["more"] == 0
    by_id = {each["id"]: each for each in run["runs"]}
    assert set(by_id) == {"runs/digits-1", "runs/digits-2", f"live/{writer.name}"}
    assert run["runs"][0]["id"] == f"live/{writer.name}", "running programs come first"
    assert (by_id["runs/digits-1"]["state"], by_id["runs/digits-1"]["update"]) == ("finished", 6)
    assert by_id["runs/digits-2"]["state"] == "killed"
    assert by_id[f"live/{writer.name}"]["what"] == "train.py --lr 1"
    assert [each["id"] for each in visible_runs.list_runs("train lr")["runs"]] == [f"live/{writer.name}"]
    assert [each["id"] for each in visible_runs.list_runs("killed")["runs"]] == ["runs/digits-2"]
    encode_json(run)


def test_the_length_of_the_list_is_limited(fake_runs, visible_runs, monkeypatch):
    monkeypatch.setattr(module, "MAX_LISTED", 2)
    for number in range(5):
        fake_runs.run(f"r{number}")
    run = visible_runs.list_runs("")
    assert (len(run["runs"]), run["more"]) == (2, 3)


def test_an_unchanged_run_is_not_sent_again(fake_runs, visible_runs):
    fake_runs.run("a")
    (first,) = visible_runs.poll(["runs/a"], [])["runs"]
    assert (first["update"], first["state"]) == (6, "finished")
    assert {"loss", "lr", "grad_norm", "throughput"} <= {panel["name"] for panel in first["panels"]}
    (again,) = visible_runs.poll(["runs/a"], [first["version"]])["runs"]
    assert again == {"id": "runs/a", "version": first["version"], "same": True, "behind": False}
    fake_runs.run("a", losses=(0.9,))
    (later,) = visible_runs.poll(["runs/a"], [first["version"]])["runs"]
    assert (later["update"], later["version"] != first["version"]) == (2, True)


def test_a_run_is_sent_again_if_its_smoothing_changes(fake_runs, visible_runs):
    fake_runs.run("a")
    (first,) = visible_runs.poll(["runs/a"], [], 1.0)["runs"]
    (other,) = visible_runs.poll(["runs/a"], [first["version"]], 0.0)["runs"]
    assert "same" not in other
    (again,) = visible_runs.poll(["runs/a"], [other["version"]], 0.0)["runs"]
    assert again["same"]


@pytest.mark.parametrize(
    "run_id",
    [
        "runs/../secret", "runs/.hidden", "runs/link", "runs/", "runs/a/../../secret", "live/../runs/a", "live/a",
        "live/20260101-000000-1/..", "secret", "/etc", "other/a", "runs/a\0", "",
    ],
)  # fmt: skip
def test_files_outside_the_folder_are_not_read(fake_runs, visible_runs, tmp_path, run_id):
    fake_runs.run("a")
    fake_runs.run(".hidden")
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "journal.jsonl").write_bytes((fake_runs.root / "a" / "journal.jsonl").read_bytes())
    (fake_runs.root / "link").symlink_to(secret)
    (run,) = visible_runs.poll([run_id], [])["runs"]
    assert set(run) == {"id", "version", "missing"}
    assert [each["id"] for each in visible_runs.list_runs("")["runs"]] == ["runs/a"]


def test_a_journal_that_is_a_link_is_not_followed(fake_runs, visible_runs, tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    (fake_runs.root / "b").mkdir(parents=True)
    (fake_runs.root / "b" / "journal.jsonl").symlink_to(tmp_path / "secret.txt")
    (run,) = visible_runs.poll(["runs/b"], [])["runs"]
    assert run["state"] == "damaged"
    assert "secret" not in json.dumps({**run, "id": ""})
    assert visible_runs.list_runs("")["runs"] == []


def test_a_hostile_run_is_shown_as_text(fake_runs, visible_runs):
    folder = fake_runs.hostile()
    (run,) = visible_runs.poll([f"runs/{folder.name}"], [])["runs"]
    assert run["checkpoints"][0]["name"] == "etc"
    assert run["checkpoints"][0]["there"] is False
    encode_json(run)


def test_few_readers_stay_open(fake_runs, visible_runs, monkeypatch):
    monkeypatch.setattr(module, "MAX_READERS", 2)
    for name in "abc":
        fake_runs.run(name)
        visible_runs.poll([f"runs/{name}"], [])
    assert list(visible_runs._readers) == ["runs/b", "runs/c"]


def test_a_program_is_shown_while_it_runs_and_after(visible_runs, tmp_path):
    writer = LiveWriter(tmp_path / "live", {"name": "train.py", "command": "train.py"})
    run_id = f"live/{writer.name}"
    (first,) = visible_runs.poll([run_id], [])["runs"]
    assert (first["state"], first["kind"]) == ("running", "watched")
    finding = {"code": "GRD001", "title": "t", "severity": "error", "message": "m", "path": "/x.py", "line": 3}
    lines = [{"number": 3, "text": "step()", "fault": True, "words": ["here"]}, None]
    writer.write_finding({"finding": finding, "excerpts": [{"path": "x.py:3", "function": "", "lines": lines}]})
    series = {"loss": {"updates": [0, 1, 2], "values": [3.0, "nan", 1.0]}}
    layers = {"updates": [0, 2], "layers": ["0"], "norms": [[1.0, None]]}
    report = {
        "headline": "1 error", "findings": [{**finding, "count": 7}], "series": series, "layer_gradient_norms": layers,
        "timing": {
            "update_s": 0.01, "data_share": 0.1, "forward_share": 0.2, "backward_share": 0.3, "optimizer_share": 0.1,
        },
        "verdicts": [{"code": "GRD001", "verdict": "fired", "reason": ""}], "problems": [], "error": None,
    }  # fmt: skip
    writer.write_end(3, 0, {"report": report, "nothing": ""})
    (run,) = visible_runs.poll([run_id], [first["version"]])["runs"]
    assert (run["state"], run["words"], run["update"]) == ("finished", "1 error", 3)
    assert (run["findings"][0]["count"], run["findings"][0]["line"]) == (7, 3)
    assert run["findings"][0]["excerpts"][0]["lines"] == [lines[0], None]
    assert run["layers"]["norms"] == [[1.0, None]]
    (loss,) = [panel for panel in run["panels"] if panel["name"] == "loss"]
    assert (loss["marks"], loss["curves"][0]["y"]) == ([1], [3.0, 1.0])
    assert {part["name"]: round(part["share"], 3) for part in run["spent"]}["other"] == 0.3
    encode_json(run)


def test_a_hostile_program_is_shown_as_text(visible_runs, tmp_path):
    writer = LiveWriter(tmp_path / "live", {"name": ["<b>"], "command": 3})
    folder = tmp_path / "live" / writer.name
    finding = {"severity": "<b>", "line": "x", "count": 1e999, "path": {}}
    writer.write_finding({"finding": finding, "excerpts": [3, {"lines": [1, {}]}]})
    writer.write_end(
        1, 0, {"report": {"verdicts": [3], "problems": [{}], "findings": [1], "error": [], "headline": {}}}
    )
    (run,) = visible_runs.poll([f"live/{writer.name}"], [])["runs"]
    assert run["findings"][0]["severity"] == "warning"
    encode_json(run)
    (folder / "now").write_bytes(encode_position({"s": "x", "updates": 1e308, "pid": "1", "timing": {"a": []}}))
    (run,) = visible_runs.poll([f"live/{writer.name}"], [])["runs"]
    assert run["state"] == "killed"
    encode_json(run)


def test_a_folder_of_one_run_shows_only_this_run(fake_runs, tmp_path):
    fake_runs.run("a")
    fake_runs.run("b")
    visible_runs = VisibleRuns(fake_runs.root / "a", tmp_path / "live")
    assert [each["id"] for each in visible_runs.list_runs("")["runs"]] == ["runs/a"]
    first, second = visible_runs.poll(["runs/a", "runs/b"], [])["runs"]
    assert (first["update"], "missing" in second) == (6, True)
