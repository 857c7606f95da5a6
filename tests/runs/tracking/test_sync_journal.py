"""Test that a store contains every current record of a journal once, after any sequence of events."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueloop.core.errors import InvalidData, RunFolderError
from trueloop.runs.journal import read_journal
from trueloop.runs.tracking.sink import StoreError, StoreUnavailable, SyncCursor
from trueloop.runs.tracking.sync_journal import JournalSync, sync_run
from trueloop.runs.tracking.target import Target

TARGET = Target(kind="mlflow", address="sqlite:////x.db", display="x")


def copied(run, memory, **how):
    return sync_run(run.path, TARGET, open_sink=memory, **how)


@pytest.mark.parametrize("events", ["COMPLETE", "KILLED", "RESUMED"])
def test_the_store_contains_the_content_of_the_journal(helpers, new_run, memory, events):
    run = new_run(getattr(helpers, events))
    assert copied(run, memory).outcome == "copied"
    assert memory.points() == helpers.points_of(run.path)
    history, stored = read_journal(run.path), memory.runs[helpers.RUN_ID]
    assert [(s.step, s.path, s.values) for s in stored["checkpoints"]] == [
        (c.update, c.path, c.metrics) for c in history.checkpoints
    ]
    assert [(r.step, r.message) for r in stored["notes"]] == [(n.update, n.message) for n in history.notes]
    assert stored["state"] == ("killed" if events == "KILLED" else "finished")


def test_a_checkpoint_is_stored_at_its_own_point(helpers, new_run, memory):
    copied(new_run(helpers.COMPLETE), memory)
    stored = memory.runs[helpers.RUN_ID]
    times = {(name, p.step): p.time_ms for p in stored["points"] for name in p.values}
    assert stored["checkpoints"]
    assert {(s.step, s.time_ms) for s in stored["checkpoints"]} == {
        (s.step, times["val/loss", s.step]) for s in stored["checkpoints"]
    }


def test_times_go_forward_and_come_from_the_journal(helpers, new_run, memory):
    run = new_run(helpers.RESUMED)
    copied(run, memory)
    points = memory.runs[helpers.RUN_ID]["points"]
    times = [p.time_ms for p in sorted(points, key=lambda p: p.step)]
    assert times == sorted(times)
    assert 1_700_000_000_000 < times[0] < times[-1] <= memory.runs[helpers.RUN_ID]["end_ms"] <= run.clock * 1000


def test_a_rolled_back_run_is_pending(helpers, new_run, memory):
    run = new_run([*helpers.COMPLETE[:4], helpers.notice(4, "rolled_back", "From another run.")])
    assert copied(run, memory).state == "rolled_back"
    run.add([helpers.started(4), helpers.rows(5, 8)])
    assert copied(run, memory).state == "killed"
    assert memory.points() == helpers.points_of(run.path)


@pytest.mark.parametrize(("held", "state"), [(True, "running"), (False, "killed"), (None, "unknown")])
def test_the_lock_decides_the_state_of_a_run_without_an_end(helpers, new_run, memory, monkeypatch, held, state):
    from trueloop.runs.tracking import sync_journal

    monkeypatch.setattr(sync_journal, "is_training", lambda run_dir: held)
    assert copied(new_run(helpers.COMPLETE[:4]), memory).state == state
    assert memory.runs[helpers.RUN_ID]["state"] == state


def test_a_second_sync_writes_nothing(helpers, new_run, memory):
    run = new_run(helpers.COMPLETE)
    copied(run, memory)
    memory.calls.clear()
    again = copied(run, memory)
    assert (again.outcome, again.lines, again.state) == ("complete", 0, "finished")
    assert memory.calls == ["find_cursor"]


def test_a_resumed_run_is_appended(helpers, new_run, memory):
    run = new_run(helpers.COMPLETE[:4])
    assert copied(run, memory).state == "killed"
    memory.calls.clear()
    run.add(helpers.COMPLETE[4:])
    assert copied(run, memory).outcome == "copied"
    assert "delete_run" not in memory.calls
    assert memory.points() == helpers.points_of(run.path)


def test_a_resumed_run_is_rewritten_if_the_store_cannot_append(helpers, new_run):
    memory = helpers.Memory(is_idempotent=False, can_append=False)
    run = new_run(helpers.COMPLETE[:4])
    copied(run, memory)
    run.add(helpers.COMPLETE[4:])
    assert copied(run, memory).outcome == "rewritten"
    assert memory.points() == helpers.points_of(run.path)


def test_superseded_records_are_removed(helpers, new_run, memory):
    run = new_run(helpers.KILLED)
    copied(run, memory)
    run.add(helpers.RESUMED[len(helpers.KILLED) :])
    assert copied(run, memory).outcome == "rewritten"
    assert memory.points() == helpers.points_of(run.path)
    assert [r.number for r in memory.runs[helpers.RUN_ID]["notes"]] == [1]


def test_records_superseded_before_their_cursor_are_removed(helpers, new_run, memory):
    run = new_run(helpers.KILLED)
    memory.fail_after = 3  # find_cursor, delete_run, open_run, then between the first batch and its cursor
    with pytest.raises(StoreUnavailable):
        copied(run, memory)
    assert ("train/loss", 10) in memory.points()
    memory.fail_after = math.inf
    run.add(helpers.RESUMED[len(helpers.KILLED) :])
    assert copied(run, memory).outcome == "rewritten"
    assert memory.points() == helpers.points_of(run.path)


@pytest.mark.parametrize("events", ["RESUMED", "TESTED_TWICE"])
def test_lines_superseded_before_the_sync_cost_nothing(helpers, new_run, memory, events):
    run = new_run(getattr(helpers, events))
    copied(run, memory)
    run.add([helpers.started(12), helpers.notice(12, "more", "More."), helpers.ended(12)])
    assert copied(run, memory).outcome == "copied"
    assert memory.calls.count("delete_run") == 1


def test_a_resume_that_superseded_nothing_does_not_rewrite(helpers, new_run, memory):
    run = new_run([*helpers.COMPLETE[:4], helpers.notice(4, "interrupted"), helpers.ended(4, "interrupted")])
    assert copied(run, memory).state == "interrupted"
    run.add([helpers.started(4), *helpers.COMPLETE[4:]])
    assert copied(run, memory).outcome == "copied"
    assert memory.points() == helpers.points_of(run.path)


def test_a_repeated_test_evaluation_is_stored_once(helpers, new_run, memory):
    run = new_run(helpers.COMPLETE)
    copied(run, memory)
    run.add(helpers.TESTED_TWICE[len(helpers.COMPLETE) :])
    assert copied(run, memory).outcome == "rewritten"
    assert memory.points() == helpers.points_of(run.path)
    assert memory.points()["test/loss", 12] == 0.46


def test_changed_settings_are_those_of_the_newest_process(helpers, new_run, memory):
    run = new_run(helpers.COMPLETE)
    copied(run, memory)
    facts = {**helpers.FACTS, "config": {"epochs": 5}}
    run.add([helpers.started(12, facts), helpers.ended(12)])
    assert copied(run, memory).outcome == "rewritten"
    assert memory.runs[helpers.RUN_ID]["params"] == {"epochs": "5", "options.width": "32"}


def test_an_older_copy_of_a_journal_causes_a_rewrite(helpers, new_run, memory):
    run = new_run(helpers.COMPLETE)
    copied(run, memory)
    journal = run.path / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:5]))
    assert copied(run, memory).outcome == "rewritten"
    assert memory.points() == helpers.points_of(run.path)


def test_rewrite_writes_everything_from_scratch(helpers, new_run, memory):
    run = new_run(helpers.COMPLETE)
    copied(run, memory)
    memory.runs[helpers.RUN_ID]["points"].pop()
    assert copied(run, memory, rewrite=True).outcome == "rewritten"
    assert memory.points() == helpers.points_of(run.path)


def test_a_torn_line_is_read_once_it_is_complete(helpers, new_run, memory):
    run = new_run(helpers.COMPLETE[:4]).tear()
    assert copied(run, memory).lines == 4  # start, rows, an evaluation, a checkpoint
    run.add(helpers.COMPLETE[4:])
    copied(run, memory)
    assert memory.points() == helpers.points_of(run.path)


def test_a_journal_of_the_first_schema_is_synced(helpers, new_run, memory):
    run = new_run(helpers.COMPLETE[:1])
    journal = run.path / "journal.jsonl"
    row = helpers.row(1)._asdict()
    lines = [json.dumps({"event": "update", **row, "update": k}) + "\n" for k in range(1, 5)]
    journal.write_text(journal.read_text().replace('"schema":2', '"schema":1') + "".join(lines))
    copied(run, memory)
    assert memory.points() == helpers.points_of(run.path)
    assert {step for _, step in memory.points()} == {1, 2, 3, 4}


def test_a_journal_without_a_run_is_empty(new_run, memory):
    run = new_run()
    assert copied(run, memory).outcome == "empty"
    assert not memory.runs


def test_a_missing_journal_is_refused(tmp_path, memory):
    with pytest.raises(RunFolderError, match="no journal to copy"):
        sync_run(tmp_path, TARGET, open_sink=memory)


@pytest.mark.parametrize(
    "line",
    [
        b"{}\n",
        b"null\n",
        b'{"event":"notice"}\n',
        b"\xff\n",
        b'{"event":"update","update":3}\n',
        b"[" * 99_999 + b"\n",
        b'{"event":"evaluated","time":1e999,"update":4,"epoch":1,"split":"val","metrics":{},"tables":{},"seconds":1,"best":true}\n',
        b'{"event":"notice","time":1e999,"update":4,"kind":"odd","message":"","details":{}}\n',
    ],
)
def test_a_damaged_journal_is_refused_with_its_offset(helpers, new_run, memory, line):
    run = new_run(helpers.COMPLETE[:4])
    journal = run.path / "journal.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole + line)
    with pytest.raises(InvalidData, match=f"The line at byte {len(whole)} "):
        copied(run, memory)


def test_one_process_at_a_time_syncs_a_run(helpers, new_run, memory):
    run = new_run(helpers.COMPLETE)

    def in_the_middle(target):
        assert copied(run, memory).outcome == "busy"
        return memory

    assert sync_run(run.path, TARGET, open_sink=in_the_middle).outcome == "copied"


def test_a_store_of_a_later_trueloop_is_not_modified(helpers, new_run, memory):
    run = new_run(helpers.COMPLETE)
    copied(run, memory)
    before = memory.runs[helpers.RUN_ID]["cursor"].to_json()
    memory.find_cursor = lambda run: SyncCursor.parse(before.replace('"schema": 1', '"schema": 2'))
    memory.calls.clear()
    with pytest.raises(StoreError, match="its schema is 2, the known schema 1"):
        copied(run, memory)
    assert memory.calls == []


def alive(helpers, new_run, sink, pieces, failing=()):
    """Sync a journal as it grows; the store fails after a number of calls, and the sync starts over."""
    run = new_run()
    (run.path / "journal.jsonl").touch()
    with (run.path / "journal.jsonl").open("rb", buffering=0) as file:
        copying = None
        for piece, failure in zip(pieces, (*failing, *[None] * len(pieces)), strict=False):
            run.add(piece)
            sink.fail_after = math.inf if failure is None else failure
            try:
                copying = copying or JournalSync(file, run.path.name, sink)
                copying.sync_new_lines()
            except StoreUnavailable:  # another sync continues when the journal has grown
                copying = None
        sink.fail_after = math.inf
        copying = copying or JournalSync(file, run.path.name, sink)
        copying.sync_new_lines()
        copying.finish(alive=False)
    return run


STORES = {"is_idempotent and can_append": (True, True), "can_append": (False, True), "neither": (False, False)}


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("events", ["COMPLETE", "RESUMED"])
def test_syncing_live_and_afterwards_give_the_same_store(helpers, new_run, kind, events):
    is_idempotent, can_append = STORES[kind]
    live, after = (helpers.Memory(is_idempotent=is_idempotent, can_append=can_append) for _ in range(2))
    run = alive(helpers, new_run, live, [[event] for event in getattr(helpers, events)])
    assert live.points() == helpers.points_of(run.path)
    copied(run, after)
    for name in ("points", "checkpoints", "notes", "state", "end_ms", "params"):
        assert live.runs[helpers.RUN_ID][name] == after.runs[helpers.RUN_ID][name], name
    live.calls.clear()
    assert copied(run, live).outcome == "complete"


@st.composite
def lives(draw):
    """A run of several killed processes, split into parts that a sync process might see."""
    events, done = [], 0
    for _ in range(draw(st.integers(1, 4))):
        events.append(("started", done))
        last, saving = done, []
        for stretch in draw(st.lists(st.integers(1, 5), max_size=4)):
            events.append(("rows", (last + 1, last + stretch)))
            last += stretch
            events += [(kind, last) for kind in ("evaluated", "notice") if draw(st.booleans())]
            saving.append((last, 1 / last if ("evaluated", last) in events[-2:] else None))
            if draw(st.booleans()):  # complete only after the loop
                events += [("saved", each) for each in saving]
                saving = []
        done = draw(st.integers(0, last))  # also within a line of updates
    cuts = sorted(draw(st.lists(st.integers(0, len(events)), max_size=4)))
    failures = draw(st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=5))
    return [events[a:b] for a, b in zip([0, *cuts], [*cuts, len(events)], strict=True)], failures


@pytest.mark.parametrize("kind", STORES)
@given(life=lives(), slice_bytes=st.sampled_from([1, 700, 1 << 20]))
def test_after_any_events_the_store_matches_the_journal(helpers, tmp_path_factory, kind, life, slice_bytes):
    pieces, failures = life
    is_idempotent, can_append = STORES[kind]
    sink = helpers.Memory(is_idempotent=is_idempotent, can_append=can_append)
    events_by_kind = {
        "started": helpers.started,
        "rows": lambda span: helpers.rows(*span),
        "evaluated": lambda u: helpers.evaluated(u, 1 / u),
        "saved": lambda about: helpers.saved(*about),
        "notice": helpers.notice,
    }
    events = [[events_by_kind[kind](about) for kind, about in piece] for piece in pieces]
    from trueloop.runs.tracking import sync_journal

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sync_journal, "MAX_SLICE_BYTES", slice_bytes)
        run = alive(helpers, lambda: helpers.Run(tmp_path_factory.mktemp("run")), sink, events, failures)
    assert sink.points() == helpers.points_of(run.path)
    history, stored = read_journal(run.path), sink.runs[helpers.RUN_ID]
    assert sorted(s.step for s in stored["checkpoints"]) == sorted(c.update for c in history.checkpoints)
    times = {(name, p.step): p.time_ms for p in stored["points"] for name in p.values}
    assert all(s.time_ms == times["val/loss", s.step] for s in stored["checkpoints"] if s.values)
    assert [(r.number, r.step) for r in stored["notes"]] == [(k, n.update) for k, n in enumerate(history.notes, 1)]
