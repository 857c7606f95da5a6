"""Test offline W&B runs: their folders, and their records in W&B's log format."""

import json
import math
import time

import pytest

pytest.importorskip("wandb")

from trueloop.runs.journal import read_journal
from trueloop.runs.tracking import wandb_sink
from trueloop.runs.tracking.sink import StoreError
from trueloop.runs.tracking.sync_journal import sync_run
from trueloop.runs.tracking.target import parse_target
from trueloop.runs.tracking.wandb_sink import WandbSink

pytestmark = [
    pytest.mark.slow(reason="each W&B run starts a process of its own"),
    pytest.mark.filterwarnings("ignore"),
]  # each W&B run starts a separate process


def sync(run, folder, **how):
    return sync_run(run.path, parse_target(f"wandb:{folder}", run.path.parent), **how)


def offline(folder):
    return sorted((folder / "wandb").glob("offline-run-*"))


def records(folder):
    """Every record of the one offline run: W&B's log format is that of LevelDB, of blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    [run] = offline(folder)
    [path] = run.glob("run-*.wandb")
    data, offset, payload = path.read_bytes(), 7, b""
    while offset + 7 <= len(data):
        if 32768 - offset % 32768 < 7:
            offset += 32768 - offset % 32768
            continue
        length, kind = int.from_bytes(data[offset + 4 : offset + 6], "little"), data[offset + 6]
        payload += data[offset + 7 : offset + 7 + length]
        offset += 7 + length
        if kind in (1, 4):
            record = Record()
            record.ParseFromString(payload)
            yield record
            payload = b""


def history(folder):
    """{(name, step): value}, after checking that each exists once."""
    found = {}
    for record in records(folder):
        if record.WhichOneof("record_type") == "history":
            step = record.history.step.num
            for item in record.history.item:
                name = item.key or "/".join(item.nested_key)
                if not name.startswith("_"):
                    assert (name, step) not in found
                    found[name, step] = json.loads(item.value_json)
    return found


def summary(folder):
    found = {}
    for record in records(folder):
        if record.WhichOneof("record_type") == "summary":
            for item in record.summary.update:
                found[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
    return found


def same(found, expected):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        stored = float(found[key])
        if value == "nan":
            assert math.isnan(stored), key
        elif abs(value) > 1e300:
            assert math.isinf(stored), key
        else:
            assert stored == pytest.approx(value, rel=1e-12), key


@pytest.mark.parametrize("kind", ["COMPLETE", "RESUMED"])
def test_an_offline_run_contains_the_content_of_the_journal(helpers, new_run, tmp_path, kind):
    run = new_run(getattr(helpers, kind))
    sync(run, tmp_path / "wb")
    same(history(tmp_path / "wb"), helpers.points_of(run.path))
    run_summary = summary(tmp_path / "wb")
    assert run_summary["trueloop.state"] == "finished"
    for checkpoint in read_journal(run.path).checkpoints:
        assert run_summary[f"checkpoints/update-{checkpoint.update:09d}"]["path"] == checkpoint.path
    [made] = [r.run for r in records(tmp_path / "wb") if r.WhichOneof("record_type") == "run"][:1]
    assert (made.run_id, made.display_name, made.project) == (helpers.RUN_ID, run.path.name, "digits")
    assert "optim.lr" in {item.key or item.nested_key[0] for item in made.config.update}


def test_a_file_is_complete_only_with_the_exit_code_of_the_run(helpers, new_run, tmp_path):
    sync(new_run(helpers.COMPLETE), tmp_path / "wb")
    [path] = tmp_path.glob("wb/wandb/offline-run-*/run-*.wandb")
    content = path.read_bytes()
    for size in (0, 7, len(content) // 2, len(content) - 30, len(content) - 1):
        path.write_bytes(content[:size])
        assert not wandb_sink._has_end(path)
    path.write_bytes(content)
    assert wandb_sink._has_end(path)


def test_a_second_sync_writes_nothing_and_a_resumed_run_is_one_run(helpers, new_run, tmp_path):
    run = new_run(helpers.COMPLETE[:4])
    assert sync(run, tmp_path / "wb").state == "killed"
    before = offline(tmp_path / "wb")
    assert sync(run, tmp_path / "wb").outcome == "complete"
    assert offline(tmp_path / "wb") == before
    run.add(helpers.COMPLETE[4:])
    assert sync(run, tmp_path / "wb").outcome == "rewritten"
    same(history(tmp_path / "wb"), helpers.points_of(run.path))


def test_a_killed_writer_is_repaired(helpers, new_run, tmp_path, monkeypatch):
    run = new_run(helpers.COMPLETE)

    def killed(self, state, time_ms, mark):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(WandbSink, "finish_run", killed)
        with pytest.raises(KeyboardInterrupt):
            sync(run, tmp_path / "wb")
    assert len(offline(tmp_path / "wb")) == 1
    assert sync(run, tmp_path / "wb").outcome == "rewritten"
    same(history(tmp_path / "wb"), helpers.points_of(run.path))


def test_a_writer_killed_at_its_start_leaves_nothing_permanent(helpers, new_run, tmp_path, monkeypatch):
    run = new_run(helpers.COMPLETE)

    def killed(self, batch, mark):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(WandbSink, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            sync(run, tmp_path / "wb")
    [left] = offline(tmp_path / "wb")
    time.sleep(1.1)  # folder names contain the time in seconds
    somebody_elses = left.with_name(left.name[:-1] + "z")
    somebody_elses.mkdir()
    assert sync(run, tmp_path / "wb").outcome == "rewritten"
    assert not left.exists()
    somebody_elses.rmdir()
    same(history(tmp_path / "wb"), helpers.points_of(run.path))


def test_only_a_folder_of_this_run_is_removed(helpers, new_run, tmp_path):
    run = new_run(helpers.COMPLETE)
    sync(run, tmp_path / "wb")
    mark = tmp_path / "wb" / "wandb" / f"trueloop-{helpers.RUN_ID}.json"
    record = json.loads(mark.read_text())
    precious = tmp_path / "precious"
    precious.mkdir()
    record["extra"]["folder"] = "../../precious"
    mark.write_text(json.dumps(record))
    sync(run, tmp_path / "wb", rewrite=True)
    assert precious.is_dir()


def test_a_run_that_cannot_be_deleted_raises_a_clear_error(helpers, new_run, tmp_path, monkeypatch):
    run = new_run(helpers.COMPLETE)
    sync(run, tmp_path / "w")

    def refused(*_given):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("trueloop.runs.tracking.wandb_sink.shutil.rmtree", refused)
    with pytest.raises(StoreError, match="Permission denied"):
        sync(run, tmp_path / "w", rewrite=True)
