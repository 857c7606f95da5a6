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


def test_history_up_to_the_update_and_its_source_are_copied(made, made_runs_module, tmp_path):
    source = made.run("a")
    before = (source / "journal.jsonl").read_bytes()
    target = branched(source, tmp_path, 4)
    told = read_journal(target)
    assert told.updates.update == [1, 2, 3, 4]
    assert metric_points(told.evaluations)["val/loss"] == [Point(0.5, 2, 1), Point(0.3, 4, 2)]
    assert [each.path for each in told.checkpoints] == [
        "runs/new/checkpoints/update-000000002",
        "runs/new/checkpoints/update-000000004",
    ]
    assert (told.end, told.facts["run_id"], told.started_at) == (None, NEW_ID, 1_700_000_000.0)
    (note,) = told.notes
    assert (note.kind, note.update) == ("rolled_back", 4)
    assert note.details == {"run_id": "a" * 32, "path": str(source), "update": 4}
    assert (source / "journal.jsonl").read_bytes() == before
    kept, all_of_it = (
        [r for r in made_runs_module.records(run) if r["event"] == "updates"] for run in (target, source)
    )
    assert (len(kept), kept) == (2, all_of_it[:2])


@pytest.mark.parametrize("update", range(1, 7))
@pytest.mark.parametrize("rates", [(), (0.1, 0.2)])
@pytest.mark.parametrize("spread", [0.0, 0.25])
def test_a_line_of_many_updates_is_truncated(made, made_runs_module, tmp_path, update, rates, spread):
    rows = [
        made_runs_module.row(k, 1.0 + k * spread, skipped=k == 3)._replace(
            rates=(rates[0], rates[1] + k * spread) if rates else ()
        )
        for k in range(1, 7)
    ]
    start = RunStarted(name="x", epochs=3, updates=6, start_update=0, facts={})
    source = made.write("a", [start, UpdatesDone(rows=rows, memory_mib=5.0)])
    whole, told = read_journal(source), read_journal(branched(source, tmp_path, update))
    for field in fields(whole.updates):
        if field.name != "rates":
            assert getattr(told.updates, field.name) == getattr(whole.updates, field.name)[:update]
    assert told.updates.rates == [column[:update] for column in whole.updates.rates]
    assert told.memory == ([(6, 5.0)] if update == 6 else [])


def test_superseded_lines_remain_superseded(made, made_runs_module, tmp_path):
    source = made.run("a", losses=(0.5, 0.3, 0.4), end="")
    again = RunStarted(name="digits", epochs=3, updates=6, start_update=2, facts={"recipe": "digits"})
    made.write("a", [again, UpdatesDone(rows=[made_runs_module.row(k, 9.0) for k in (3, 4, 5)])])
    told = read_journal(branched(source, tmp_path, 4))
    assert told.updates.loss == [0.6, 0.5, 9.0, 9.0]
    assert told.processes == 2
    assert [each.update for each in told.evaluations] == [2]


def test_a_later_process_is_not_copied(made, made_runs_module, tmp_path):
    source = made.run("a", end="")
    made.write("a", [RunStarted(name="digits", epochs=3, updates=6, start_update=4, facts={})])
    told = read_journal(branched(source, tmp_path, 2))
    assert (told.processes, told.last_update, told.facts["recipe"]) == (1, 2, "digits")


def test_a_line_that_is_being_written_is_not_copied(made, tmp_path):
    source = made.run("a", end="")
    with (source / "journal.jsonl").open("a") as file:
        file.write('{"event":"update","update":7,"epo')
    assert read_journal(branched(source, tmp_path, 6)).last_update == 6


def test_only_the_name_of_a_recorded_path_is_used(made, tmp_path):
    told = read_journal(branched(made.hostile(), tmp_path, 2))
    assert [each.path for each in told.checkpoints] == ["runs/new/checkpoints/etc"]


def test_an_unreadable_source_raises_a_clear_error(made, tmp_path):
    with pytest.raises(RunFolderError, match="cannot be copied"):
        branched(made.root / "nowhere", tmp_path, 2)
