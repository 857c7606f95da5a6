from dataclasses import fields
from pathlib import Path

import pytest

from trueloop.core.errors import RunFolderError
from trueloop.core.protocols import RunStarted, UpdatesDone
from trueloop.runs.journal import read_journal
from trueloop.runs.queries.fork_journal import fork_journal, rollback_note
from trueloop.runs.queries.overview import Point, metric_points

NEW_ID = "f" * 32


def branched(source, tmp_path, update):
    target = tmp_path / "target"
    target.mkdir()
    note = rollback_note(source=source, run_id="a" * 32, update=update)
    fork_journal(source, target, update=update, run_id=NEW_ID, note=note, final_dir=Path("runs/new"))
    return target


def test_history_up_to_the_update_and_its_source_are_copied(fake_runs, fake_runs_module, tmp_path):
    source = fake_runs.run("a")
    before = (source / "journal.jsonl").read_bytes()
    target = branched(source, tmp_path, 4)
    forked = read_journal(target)
    assert forked.updates.update == [1, 2, 3, 4]
    assert metric_points(forked.evaluations)["val/loss"] == [Point(0.5, 2, 1), Point(0.3, 4, 2)]
    assert [each.path for each in forked.checkpoints] == [
        "runs/new/checkpoints/update-000000002",
        "runs/new/checkpoints/update-000000004",
    ]
    assert (forked.end, forked.facts["run_id"], forked.started_at) == (None, NEW_ID, 1_700_000_000.0)
    (note,) = forked.notes
    assert (note.kind, note.update) == ("rolled_back", 4)
    assert note.details == {"run_id": "a" * 32, "path": str(source), "update": 4}
    assert (source / "journal.jsonl").read_bytes() == before
    kept, all_of_it = (
        [r for r in fake_runs_module.records(run) if r["event"] == "updates"] for run in (target, source)
    )
    assert (len(kept), kept) == (2, all_of_it[:2])


@pytest.mark.parametrize("update", range(1, 7))
@pytest.mark.parametrize("rates", [(), (0.1, 0.2)])
@pytest.mark.parametrize("spread", [0.0, 0.25])
def test_a_line_of_many_updates_is_truncated(fake_runs, fake_runs_module, tmp_path, update, rates, spread):
    rows = [
        fake_runs_module.row(k, 1.0 + k * spread, skipped=k == 3)._replace(
            rates=(rates[0], rates[1] + k * spread) if rates else ()
        )
        for k in range(1, 7)
    ]
    start = RunStarted(name="x", epochs=3, updates=6, start_update=0, facts={})
    source = fake_runs.write("a", [start, UpdatesDone(rows=rows, memory_mib=5.0)])
    complete, forked = read_journal(source), read_journal(branched(source, tmp_path, update))
    for field in fields(complete.updates):
        if field.name != "rates":
            assert getattr(forked.updates, field.name) == getattr(complete.updates, field.name)[:update]
    assert forked.updates.rates == [column[:update] for column in complete.updates.rates]
    assert forked.memory == ([(6, 5.0)] if update == 6 else [])


def test_superseded_lines_remain_superseded(fake_runs, fake_runs_module, tmp_path):
    source = fake_runs.run("a", losses=(0.5, 0.3, 0.4), end="")
    again = RunStarted(name="digits", epochs=3, updates=6, start_update=2, facts={"recipe": "digits"})
    fake_runs.write("a", [again, UpdatesDone(rows=[fake_runs_module.row(k, 9.0) for k in (3, 4, 5)])])
    forked = read_journal(branched(source, tmp_path, 4))
    assert forked.updates.loss == [0.6, 0.5, 9.0, 9.0]
    assert forked.processes == 2
    assert [each.update for each in forked.evaluations] == [2]


def test_a_later_process_is_not_copied(fake_runs, fake_runs_module, tmp_path):
    source = fake_runs.run("a", end="")
    fake_runs.write("a", [RunStarted(name="digits", epochs=3, updates=6, start_update=4, facts={})])
    forked = read_journal(branched(source, tmp_path, 2))
    assert (forked.processes, forked.last_update, forked.facts["recipe"]) == (1, 2, "digits")


def test_a_line_that_is_being_written_is_not_copied(fake_runs, tmp_path):
    source = fake_runs.run("a", end="")
    with (source / "journal.jsonl").open("a") as file:
        file.write('{"event":"update","update":7,"epo')
    assert read_journal(branched(source, tmp_path, 6)).last_update == 6


def test_only_the_name_of_a_recorded_path_is_used(fake_runs, tmp_path):
    forked = read_journal(branched(fake_runs.hostile(), tmp_path, 2))
    assert [each.path for each in forked.checkpoints] == ["runs/new/checkpoints/etc"]


def test_an_unreadable_source_raises_a_clear_error(fake_runs, tmp_path):
    with pytest.raises(RunFolderError, match="cannot be copied"):
        branched(fake_runs.root / "nowhere", tmp_path, 2)
