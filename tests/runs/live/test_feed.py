"""Test that a feed is read as written, and that hostile feeds become messages."""

from __future__ import annotations

import errno
import json
import math
import os
from dataclasses import dataclass

import pytest

from trueloop.core.findings import UpdateTiming
from trueloop.runs.live import writer as writing
from trueloop.runs.live.feed import FeedReader
from trueloop.runs.live.folder import FEED_NAME, POSITION_NAME
from trueloop.runs.live.position_file import encode_position, read_position
from trueloop.runs.live.writer import LiveWriter


@dataclass
class Run:
    """A fake status provider for the writer."""

    updates: int = 0
    layers: tuple[int, list[str], list[float | None]] | None = None

    def timing(self):
        return (
            UpdateTiming(update_s=0.01, data_share=0.1, forward_share=0.2, backward_share=0.3, optimizer_share=0.1)
            if self.updates
            else None
        )

    def newest_layer_norms(self):
        return self.layers


@pytest.fixture
def writer(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "WRITE_INTERVAL_S", 0.0)
    monkeypatch.setattr(writing, "TIMING_INTERVAL_S", 0.0)
    return LiveWriter(tmp_path / "live", {"name": "train.py"})


def followed(writer, tmp_path):
    follower = FeedReader(tmp_path / "live" / writer.name)
    while follower.poll():
        pass
    return follower


def test_numbers_are_read_as_written(writer, tmp_path):
    run = Run()
    for update in range(5):
        writer.add_value("loss", update, math.nan if update == 3 else 1.0 / (1 + update))
        run.updates, run.layers = update + 1, (update, ["0", "2"], [0.123456, None if update else 2.0])
        writer.write_if_due(run)
    follower = followed(writer, tmp_path)
    assert (follower.problem, follower.program["name"]) == ("", "train.py")
    assert follower.series["loss"].updates == [0, 1, 2, 3, 4]
    assert math.isnan(follower.series["loss"].values[3])
    layers = follower.layers.to_heatmap()
    assert layers is not None
    assert layers["norms"] == [[0.1235] * 5, [2.0, *[None] * 4]]
    now = follower.status()
    assert (now.updates, now.state, now.code) == (5, "running", None)
    assert now.timing == {
        "update_s": 0.01,
        "data_share": 0.1,
        "forward_share": 0.2,
        "backward_share": 0.3,
        "optimizer_share": 0.1,
    }


def test_a_partially_written_line_is_truncated(writer, tmp_path, monkeypatch):
    whole, left = os.write, [30]

    def write(file, data):
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = whole(file, data[: left[0]])
        left[0] -= count
        return count

    writer.write_finding({"finding": {"code": "GRD001"}})
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(OSError, match="No space"):
            writer.write_finding({"finding": {"code": "GRD002"}})
    writer.write_finding({"finding": {"code": "GRD003"}})
    lines = (tmp_path / "live" / writer.name / FEED_NAME).read_text().splitlines()
    assert [json.loads(line).get("finding") for line in lines] == [None, {"code": "GRD001"}, {"code": "GRD003"}]


def test_only_new_lines_are_read(writer, tmp_path):
    follower, run = followed(writer, tmp_path), Run(updates=1)
    writer.add_value("loss", 0, 1.0)
    writer.write_if_due(run)
    assert follower.poll()
    assert not follower.poll()
    writer.add_value("loss", 1, 2.0)
    writer.write_if_due(run)
    assert follower.poll()
    assert follower.series["loss"].values == [1.0, 2.0]


@pytest.mark.parametrize(("code", "state"), [(0, "finished"), (1, "failed"), (130, "failed")])
def test_the_end_is_read(writer, tmp_path, code, state):
    writer.write_finding({"finding": {"code": "GRD001"}, "excerpts": []})
    writer.write_end(7, code, {"report": {"headline": "words"}, "nothing": ""})
    follower = followed(writer, tmp_path)
    assert (follower.status().state, follower.status().code, follower.status().updates) == (state, code, 7)
    assert follower.report == {"headline": "words"}
    assert follower.findings[0]["finding"]["code"] == "GRD001"


def test_a_killed_program_is_not_running(writer, tmp_path):
    folder = tmp_path / "live" / writer.name
    (folder / POSITION_NAME).write_bytes(encode_position({**read_position(folder), "start_ticks": "0"}))
    assert FeedReader(folder).status().state == "killed"


def test_only_the_user_can_read_the_feed(writer, tmp_path):
    folder = tmp_path / "live" / writer.name
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {(folder / name).stat().st_mode & 0o777 for name in (FEED_NAME, POSITION_NAME)} == {0o600}


def test_no_file_stays_open_and_a_child_writes_nothing(writer, tmp_path):
    folder = tmp_path / "live" / writer.name
    handles = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    assert not any(str(folder) in os.readlink(handle) for handle in handles if os.path.lexists(handle))
    before = (folder / FEED_NAME).read_bytes(), (folder / POSITION_NAME).read_bytes()
    child = os.fork()
    if child == 0:
        try:
            writer.add_value("loss", 9, 9.0)
            writer.write_if_due(Run(updates=9))
            writer.write_end(9, 9, {})
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert ((folder / FEED_NAME).read_bytes(), (folder / POSITION_NAME).read_bytes()) == before


def test_a_feed_is_bounded(writer, tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "MAX_FEED_BYTES", 20_000)
    run = Run()
    for update in range(3000):
        for name in ("loss", "grad_norm"):
            writer.add_value(name, update, update + 0.123456789)
        if update % 10 == 0:
            writer.write_if_due(run)
    assert (tmp_path / "live" / writer.name / FEED_NAME).stat().st_size <= 20_000
    assert followed(writer, tmp_path).problem == ""


def test_a_long_series_is_written_ever_more_rarely(writer, tmp_path):
    run = Run()
    for update in range(20_000):
        writer.add_value("loss", update, 1.0)
        if update % 500 == 0:
            writer.write_if_due(run)
    content = (tmp_path / "live" / writer.name / FEED_NAME).read_bytes()
    assert content.count(b"1.0") < 9000
    assert len(followed(writer, tmp_path).series["loss"].values) <= 4096


def test_a_full_disk_raises_in_the_caller(writer, tmp_path):
    for name in (FEED_NAME, POSITION_NAME):
        (tmp_path / "live" / writer.name / name).unlink()
    (tmp_path / "live" / writer.name).rmdir()
    writer.add_value("loss", 0, 1.0)
    with pytest.raises(OSError, match="No such file"):
        writer.write_if_due(Run(updates=1))


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000, "3", "{}", '{"event":"started","schema":9,"time":1}', '{"event":"started"}',
        '{"event":"numbers","series":[]}', '{"event":"numbers","series":{"loss":[[1],[2,3]]}}',
        '{"event":"numbers","series":{"loss":[[1' + "0" * 400 + '],[1]]}}',
        '{"event":"numbers","series":{},"norms":3}', '{"event":"numbers","series":{"a":[["x"],["y"]]}}',
    ],
)  # fmt: skip
def test_a_hostile_feed_becomes_a_message(tmp_path, line):
    (tmp_path / FEED_NAME).write_text(line + "\n")
    (tmp_path / POSITION_NAME).write_bytes(encode_position({}).replace(b"{}", line.encode()[:2]))
    follower = FeedReader(tmp_path)
    follower.poll()
    assert follower.problem
    assert len(follower.problem) < 300
    assert follower.status().state == "killed"
