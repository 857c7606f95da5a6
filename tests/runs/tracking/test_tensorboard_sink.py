"""Test TensorBoard event files with TensorBoard's reader."""

import json
import math

import pytest

pytest.importorskip("tensorboard")

from trueloop.runs.journal import read_journal
from trueloop.runs.tracking.sink import StoreError
from trueloop.runs.tracking.sync_journal import sync_run
from trueloop.runs.tracking.target import parse_target
from trueloop.runs.tracking.tensorboard_sink import TensorBoardSink

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # TensorBoard's own


def sync(run, folder, **how):
    return sync_run(run.path, parse_target(f"tensorboard:{folder}", run.path.parent), **how)


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def scalars(folder):
    """{(tag, step): value}, after checking that each exists once."""
    found, accumulator = {}, events(folder)
    for tag in accumulator.Tags()["scalars"]:
        for event in accumulator.Scalars(tag):
            assert (tag, event.step) not in found
            found[tag, event.step] = event.value
    return found


def texts(folder, tag):
    accumulator = events(folder)
    return [(e.step, e.tensor_proto.string_val[0].decode()) for e in accumulator.Tensors(f"{tag}")]


def same(found, expected):
    """Event files store 32-bit floats, and infinity unchanged."""
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if value == "nan":
            assert math.isnan(found[key]), key
        elif abs(value) > 1e300:
            assert math.isinf(found[key]), key
        else:
            assert found[key] == pytest.approx(value, rel=1e-6), key


@pytest.mark.parametrize("kind", ["COMPLETE", "KILLED", "RESUMED"])
def test_event_files_contain_the_content_of_the_journal(helpers, new_run, tmp_path, kind):
    run = new_run(getattr(helpers, kind))
    sync(run, tmp_path / "tb")
    folder = tmp_path / "tb" / run.path.name
    same(scalars(folder), helpers.points_of(run.path))
    saved = texts(folder, "checkpoint")
    assert [step for step, _ in saved] == [c.update for c in read_journal(run.path).checkpoints]
    assert all(rf"update\-{step:09d}" in text for step, text in saved)
    assert texts(folder, "state") == [(0, "killed" if kind == "KILLED" else "finished")]


def test_points_have_the_time_of_the_journal(helpers, new_run, tmp_path):
    run = new_run(helpers.COMPLETE)
    sync(run, tmp_path / "tb")
    scalar_events = events(tmp_path / "tb" / run.path.name).Scalars("train/loss")
    assert [round(e.wall_time, 2) for e in scalar_events[:4]] == [
        1700000000.26,
        1700000000.27,
        1700000000.28,
        1700000000.29,
    ]


def test_a_second_sync_writes_nothing(helpers, new_run, tmp_path):
    run = new_run(helpers.COMPLETE)
    sync(run, tmp_path / "tb")
    before = {path: path.read_bytes() for path in (tmp_path / "tb").rglob("*") if path.is_file()}
    assert sync(run, tmp_path / "tb").outcome == "complete"
    assert {path: path.read_bytes() for path in (tmp_path / "tb").rglob("*") if path.is_file()} == before


def test_a_resumed_run_gets_a_second_file_without_duplicates(helpers, new_run, tmp_path):
    run = new_run(helpers.COMPLETE[:4])
    sync(run, tmp_path / "tb")
    run.add(helpers.COMPLETE[4:])
    assert sync(run, tmp_path / "tb").outcome == "copied"
    folder = tmp_path / "tb" / run.path.name
    assert len(list(folder.glob("events.*"))) == 2
    same(scalars(folder), helpers.points_of(run.path))


def test_superseded_points_are_removed(helpers, new_run, tmp_path):
    run = new_run(helpers.KILLED)
    sync(run, tmp_path / "tb")
    run.add(helpers.RESUMED[len(helpers.KILLED) :])
    assert sync(run, tmp_path / "tb").outcome == "rewritten"
    same(scalars(tmp_path / "tb" / run.path.name), helpers.points_of(run.path))


def test_a_killed_writer_is_repaired(helpers, new_run, tmp_path, monkeypatch):
    run = new_run(helpers.COMPLETE)

    def killed(self, state, time_ms, cursor):
        self._writer.flush()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TensorBoardSink, "finish_run", killed)
        with pytest.raises(KeyboardInterrupt):
            sync(run, tmp_path / "tb")
    folder = tmp_path / "tb" / run.path.name
    assert scalars(folder)
    assert sync(run, tmp_path / "tb").outcome == "rewritten"
    same(scalars(folder), helpers.points_of(run.path))


def test_a_writer_killed_at_its_start_leaves_no_second_folder(helpers, new_run, tmp_path, monkeypatch):
    run = new_run(helpers.COMPLETE)

    def killed(self, batch, cursor):
        self._writer.flush()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TensorBoardSink, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            sync(run, tmp_path / "tb")
    sync(run, tmp_path / "tb")
    assert [path.name for path in (tmp_path / "tb").iterdir()] == [run.path.name]
    same(scalars(tmp_path / "tb" / run.path.name), helpers.points_of(run.path))


def test_a_moved_run_is_recognised(helpers, new_run, tmp_path):
    run = new_run(helpers.COMPLETE)
    sync(run, tmp_path / "tb")
    name = run.path.name
    run.path = run.path.rename(tmp_path / "elsewhere")
    assert sync(run, tmp_path / "tb").outcome == "complete"
    assert [path.name for path in (tmp_path / "tb").iterdir()] == [name]


def test_a_foreign_folder_is_not_modified(helpers, new_run, tmp_path):
    run = new_run(helpers.COMPLETE)
    theirs = tmp_path / "tb" / run.path.name / "events.out.tfevents.1.theirs"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"theirs")
    sync(run, tmp_path / "tb", rewrite=True)
    sync(run, tmp_path / "tb", rewrite=True)
    assert theirs.read_bytes() == b"theirs"
    assert [path.name for path in theirs.parent.iterdir()] == [theirs.name]
    folder = tmp_path / "tb" / f"{run.path.name}-{helpers.RUN_ID[:8]}"
    same(scalars(folder), helpers.points_of(run.path))


def test_an_invalid_cursor_causes_a_rewrite(helpers, new_run, tmp_path):
    run = new_run(helpers.COMPLETE)
    sync(run, tmp_path / "tb")
    path = tmp_path / "tb" / run.path.name / "trueloop.json"
    for cursor in ('{"schema": 1}', "[]", "nonsense", '{"schema": 1, "journal_bytes": "x"}'):
        path.write_text(json.dumps({"run_id": helpers.RUN_ID, "cursor": cursor}))
        assert sync(run, tmp_path / "tb").outcome == "rewritten"
    same(scalars(path.parent), helpers.points_of(run.path))


def test_text_is_shown_literally(helpers, new_run, tmp_path):
    hostile = "<script>alert(1)</script> [x](javascript:1) | # *b*"
    run = new_run([helpers.started(), helpers.rows(1, 4), helpers.notice(4, "odd", hostile), helpers.ended(4)])
    sync(run, tmp_path / "tb")
    [(step, text)] = texts(tmp_path / "tb" / run.path.name, "note/odd")
    assert step == 4
    assert r"\<script\>alert\(1\)\</script\>" in text
    assert text.replace("\\", "") == hostile


def test_settings_are_numbers_or_texts(helpers, new_run, tmp_path):
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    run = new_run([helpers.started(facts={**helpers.FACTS, "options": {"data": "1_2"}}), helpers.ended(0)])
    sync(run, tmp_path / "tb")
    metadata = events(tmp_path / "tb" / run.path.name).SummaryMetadata("_hparams_/session_start_info")
    hparams = HParamsPluginData.FromString(metadata.plugin_data.content).session_start_info.hparams
    assert hparams["optim.lr"].number_value == 0.001
    assert hparams["options.data"].string_value == "1_2"


def test_a_folder_that_cannot_be_created_is_named(helpers, new_run, tmp_path):
    (tmp_path / "tb").write_text("a file")
    with pytest.raises(StoreError, match="tb"):
        sync(new_run(helpers.COMPLETE), tmp_path / "tb")
