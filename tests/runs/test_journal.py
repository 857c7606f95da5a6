import json
import math
import os
import re
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueloop.core.errors import InvalidData, RunFolderError
from trueloop.core.protocols import CheckpointSaved, Evaluated, Notice, RunEnded, RunStarted, UpdateRow, UpdatesDone
from trueloop.runs.journal import Journal, read_journal

START = RunStarted(name="digits", epochs=2, updates=8, start_update=0, facts={"config": {"optim": {"lr": 0.1}}})


def row(update, loss=0.5, **other):
    values = {
        "epoch": 1, "grad_norm": 1.5, "lr": 1e-3, "examples": 64, "wait_s": 0.25, "total_s": 0.5, "skipped": False
    }  # fmt: skip
    return UpdateRow(**{"update": update, "loss": loss} | values | other)


def lines(run_dir):
    return [json.loads(line) for line in (run_dir / "journal.jsonl").read_text().splitlines()]


def same(a, b):
    return a == b or (math.isnan(a) and math.isnan(b))


def test_every_event_survives_writing_and_reading(run):
    evaluated = Evaluated(
        update=2, epoch=1, split="val", metrics={"loss": 0.1, "accuracy": math.nan},
        tables={"confusion": [[3, 1], [0, math.inf]]}, seconds=0.25, best=True,
    )  # fmt: skip
    saved = CheckpointSaved(
        update=2, epoch=1, path="checkpoints/update-2", metrics={"val/loss": -math.inf}, seconds=0.125
    )
    noted = Notice(update=2, kind="not_finite", message="Üpdate 2\nwas skipped", details={"index": 7, "value": "nan"})
    ended = RunEnded(update=2, reason="finished", seconds=3.5)
    rows = [row(1, 0.30000000000000004), row(2, math.nan, grad_norm=math.inf, skipped=True)]
    history = read_journal(run([START, UpdatesDone(rows=rows), evaluated, saved, noted, ended]))

    assert history.started == START
    assert history.started_at == 1_700_000_000.0
    assert history.updates.loss[0] == 0.30000000000000004
    assert math.isnan(history.updates.loss[1])
    assert history.updates.grad_norm == [1.5, math.inf]
    assert history.updates.update == [1, 2]
    assert history.updates.skipped == [False, True]
    assert (history.updates.wait_s, history.updates.total_s) == ([0.25, 0.25], [0.5, 0.5])
    [read_back] = history.evaluations
    assert math.isnan(read_back.metrics["accuracy"])
    assert (read_back.metrics["loss"], read_back.best, read_back.seconds) == (0.1, True, 0.25)
    assert read_back.tables == {"confusion": [[3, 1], [0, math.inf]]}
    assert history.checkpoints == [saved]
    assert history.notes == [noted]  # the detail "nan" is a string and remains one
    assert history.end == ended


def test_a_line_is_strict_json_with_the_field_names_of_protocols(run):
    run_dir = run([START, UpdatesDone(rows=[row(1, math.nan, skipped=True)])])

    def refuse(constant):
        raise AssertionError(constant)

    text = (run_dir / "journal.jsonl").read_text()
    records = [json.loads(line, parse_constant=refuse) for line in text.splitlines()]
    assert list(records[0]) == ["event", "schema", "time", "name", "epochs", "updates", "start_update", "facts"]
    assert (records[0]["event"], records[0]["schema"]) == ("run_started", 2)
    fields = row(1, "nan", skipped=True)._asdict()
    del fields["rates"]
    assert records[1] == {"event": "updates", "rows": 1, **fields}


@given(
    st.lists(
        st.tuples(st.floats(), st.floats(), st.floats(), st.integers(0, 2**40), st.booleans()), min_size=1, max_size=20
    )
)
def test_update_numbers_survive_exactly(run, values):
    rows = [
        row(k, loss, grad_norm=norm, lr=lr, examples=n, skipped=s) for k, (loss, norm, lr, n, s) in enumerate(values, 1)
    ]
    updates = read_journal(run([START, UpdatesDone(rows=rows)])).updates
    for column in ("loss", "grad_norm", "lr"):
        assert all(map(same, getattr(updates, column), [getattr(each, column) for each in rows]))
    assert updates.examples == [each.examples for each in rows]
    assert updates.skipped == [each.skipped for each in rows]


def test_a_journal_of_the_first_schema_is_read_and_continued(run):
    run_dir = run([START])
    path = run_dir / "journal.jsonl"
    old = [json.dumps({"event": "update", **row(k, k / 4)._asdict()}) for k in (1, 2)]
    path.write_text(path.read_text().replace('"schema":2', '"schema":1') + "\n".join(old) + "\n")
    journal = Journal(path)
    journal.report(UpdatesDone(rows=[row(3, 0.75)]))
    journal.close()
    assert (read_journal(path).updates.update, read_journal(path).updates.loss) == ([1, 2, 3], [0.25, 0.5, 0.75])


def test_learning_rates_of_several_groups_survive(run):
    rows = [row(1), row(2, rates=(1e-3, 0.5)), row(3, rates=(1e-3, 0.25)), row(4)]
    updates = read_journal(run([START, UpdatesDone(rows=rows)])).updates
    assert updates.rates == [[1e-3] * 4, [1e-3, 0.5, 0.25, 1e-3]]
    assert updates.lr == updates.rates[0]
    shared = read_journal(run([START, UpdatesDone(rows=[row(k, rates=(1e-3, 0.5)) for k in (1, 2)])])).updates
    assert shared.rates == [[1e-3, 1e-3], [0.5, 0.5]]


def test_memory_beyond_a_resume_is_dropped(run):
    run_dir = run([START, *(UpdatesDone(rows=[row(k)], memory_mib=100.0 * k) for k in (1, 2, 3))])
    assert read_journal(run_dir).memory == [(1, 100.0), (2, 200.0), (3, 300.0)]
    journal = Journal(run_dir / "journal.jsonl")
    journal.report(RunStarted(name="digits", epochs=2, updates=8, start_update=1, facts={}))
    journal.close()
    assert read_journal(run_dir).memory == [(1, 100.0)]


def test_too_few_values_in_an_updates_line_are_damage(run):
    path = run([START, UpdatesDone(rows=[row(1, 0.25), row(2, 0.5)])]) / "journal.jsonl"
    path.write_text(path.read_text().replace('"loss":[0.25,0.5]', '"loss":[0.25]'))
    with pytest.raises(InvalidData, match="1 values for 2 updates"):
        read_journal(path)


def test_only_the_first_line_of_a_process_has_a_schema(run):
    run_dir = run([START, UpdatesDone(rows=[row(1), row(2)])])
    journal = Journal(run_dir / "journal.jsonl")
    journal.report(START)
    journal.report(UpdatesDone(rows=[row(1)]))
    journal.close()
    assert ["schema" in record for record in lines(run_dir)] == [True, False, True, False]


def test_types_unknown_to_json_are_written_as_text(run, tmp_path):
    start = RunStarted(name="x", epochs=1, updates=1, start_update=0, facts={"options": {"path": tmp_path}})
    assert read_journal(run([start])).facts == {"options": {"path": str(tmp_path)}}


def test_a_batch_of_updates_is_one_line_and_one_write(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "journal.jsonl")
    written = []

    class Counting:
        closed = False

        def write(self, data):
            written.append(bytes(data))
            return len(data)

    journal.close()
    monkeypatch.setattr(journal, "_file", Counting())
    journal.report(UpdatesDone(rows=[row(k) for k in range(1, 101)]))
    assert [data.count(b"\n") for data in written] == [1]


def test_a_torn_last_line_is_ignored_and_truncated_before_appending(run):
    run_dir = run([START, UpdatesDone(rows=[row(1)]), UpdatesDone(rows=[row(2)])])
    path = run_dir / "journal.jsonl"
    complete = path.read_bytes()
    for cut in (1, 2, 40):
        path.write_bytes(complete[:-cut])
        assert read_journal(path).updates.update == [1]
    journal = Journal(path)
    journal.report(UpdatesDone(rows=[row(2, 0.75)]))
    journal.close()
    assert read_journal(path).updates.loss == [0.5, 0.75]
    assert len(lines(run_dir)) == 3


def test_a_file_that_is_one_torn_line_is_emptied(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"x" * 200_000)
    Journal(path).close()
    assert path.read_bytes() == b""


def test_a_killed_process_loses_at_most_the_line_it_was_writing(tmp_path):
    script = (
        "import sys, pathlib\n"
        "from trueloop.runs.journal import Journal\n"
        "from trueloop.core.protocols import *\n"
        "journal = Journal(pathlib.Path(sys.argv[1]))\n"
        "journal.report(RunStarted(name='x', epochs=1, updates=None, start_update=0, facts={}))\n"
        "for k in range(1, 10**9):\n"
        "    journal.report(UpdatesDone(rows=[UpdateRow(k, 1, 0.5, 1.0, 0.1, 8, 0.0, 0.001, False)]))\n"
        "    print(k, flush=True)\n"
    )
    path = tmp_path / "journal.jsonl"
    process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    reported = 0
    while reported < 50:
        reported = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    reported = int(([reported, *process.stdout.read().split("\n")[:-1]])[-1])
    process.wait()
    process.stdout.close()
    updates = read_journal(path).updates.update
    assert updates == list(range(1, len(updates) + 1))
    assert len(updates) >= reported


@pytest.mark.parametrize(
    "damage",
    [b"not json\n", b'{"event":"updates","update":2}\n', b'{"event":"updates","update":1e999}\n',
     b"\x00\x00\n", b"\xff\xfe\n", b"[1]\n", b"{}\n",
     b"[" * 99_999 + b"\n", b'{"event":"unheard"}\n',
     b'{"event":"notice","update":"x","kind":"a","message":"b","details":{}}\n'],
)  # fmt: skip
def test_a_corrupt_line_is_named_with_its_number(run, damage):
    path = run([START, UpdatesDone(rows=[row(1)]), UpdatesDone(rows=[row(2)])]) / "journal.jsonl"
    first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second + damage + third)
    with pytest.raises(InvalidData, match=rf"^Line 3 of {re.escape(str(path))} is not a journal line"):
        read_journal(path)


def test_a_row_with_non_numbers_is_refused(run):
    path = run([START, UpdatesDone(rows=[row(1)])]) / "journal.jsonl"
    path.write_text(path.read_text().replace('"loss":0.5', '"loss":"high"'))
    with pytest.raises(InvalidData, match="not made of numbers: could not convert string to float: 'high'"):
        read_journal(path)


def test_two_concurrent_writers_are_detected(run):
    run_dir = run([START, UpdatesDone(rows=[row(1), row(2)]), UpdatesDone(rows=[row(2)])])
    with pytest.raises(InvalidData, match="Line 3 .*update 2 after update 2: two processes wrote at once"):
        read_journal(run_dir)


def test_another_schema_is_refused(run):
    path = run([START]) / "journal.jsonl"
    path.write_text(path.read_text().replace('"schema":2', '"schema":3'))
    with pytest.raises(RunFolderError, match="has schema 3; this trueloop reads schemas up to 2"):
        read_journal(path)


def test_no_folder_no_journal_and_no_run_have_different_errors(tmp_path):
    with pytest.raises(RunFolderError, match="There is no journal to read at .*absent: No such file"):
        read_journal(tmp_path / "absent")
    with pytest.raises(RunFolderError, match=r"There is no journal to read at .*journal\.jsonl"):
        read_journal(tmp_path)
    Journal(tmp_path / "journal.jsonl").close()
    with pytest.raises(RunFolderError, match="contains no started run"):
        read_journal(tmp_path)


def test_a_resumed_run_reads_as_the_uninterrupted_one(run, synthetic):
    uninterrupted = list(synthetic.finished_run(skipped=(40, 60)))
    # Killed in the fourth epoch; the newest complete checkpoint is that of the second (update 46).
    killed = [synthetic.started()]
    killed += [event for event in uninterrupted if isinstance(event, Notice)]
    for epoch in (1, 2, 3):
        killed += synthetic.epoch_events(epoch, skipped=(40, 60))
    killed.append(UpdatesDone(rows=[each._replace(loss=99.0) for each in synthetic.rows(70, 80)]))
    resumed = [synthetic.started(start_update=46)]
    resumed += [event for event in uninterrupted if isinstance(event, Notice) and event.update > 46]
    for epoch in range(3, 13):
        resumed += synthetic.epoch_events(epoch, skipped=(40, 60))
    resumed += uninterrupted[-2:]

    run_dir = run(killed)
    journal = Journal(run_dir / "journal.jsonl")
    for event in resumed:
        journal.report(event)
    journal.close()
    complete, resumed = read_journal(run(uninterrupted)), read_journal(run_dir)
    assert repr(resumed.updates) == repr(complete.updates)  # repr, since nan is not equal to itself
    assert resumed.evaluations == complete.evaluations
    assert resumed.checkpoints == complete.checkpoints
    assert resumed.notes == complete.notes
    assert resumed.end == complete.end
    assert (resumed.processes, complete.processes) == (2, 1)
    assert resumed.started_at == 1_700_000_000.0


def test_a_resume_clears_the_end_of_the_run(run):
    again = RunStarted(name="digits", epochs=4, updates=16, start_update=2, facts={})
    history = read_journal(
        run([START, UpdatesDone(rows=[row(1), row(2)]), RunEnded(update=2, reason="interrupted", seconds=1.0), again])
    )
    assert history.end is None
    assert history.updates.update == [1, 2]
    assert history.started.epochs == 4


def test_a_fresh_start_in_the_same_journal_supersedes_everything(run):
    history = read_journal(run([START, UpdatesDone(rows=[row(1), row(2)]), START, UpdatesDone(rows=[row(1, 0.125)])]))
    assert history.updates.loss == [0.125]
    assert history.processes == 1


@pytest.mark.parametrize("dead", [False, True])
def test_a_full_disk_leaves_complete_lines_and_one_clear_error(tmp_path, monkeypatch, dead):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.report(START)
    real = journal._file

    class Full:
        closed = False

        def write(self, data):
            real.write(bytes(data[:10]))
            raise OSError(28, "No space left on device")

        def truncate(self, size):
            if dead:
                raise OSError(5, "Input/output error")
            real.truncate(size)

    monkeypatch.setattr(journal, "_file", Full())
    with pytest.raises(RunFolderError, match="cannot be written: No space left on device"):
        journal.report(UpdatesDone(rows=[row(1)]))
    monkeypatch.setattr(journal, "_file", real)
    journal.report(UpdatesDone(rows=[row(1)]))
    journal.close()
    journal.close()
    assert read_journal(path).updates.update == [1]


def test_an_unwritable_path_raises_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written: File exists"):
        Journal(tmp_path / "file" / "journal.jsonl")
    os.mkdir(tmp_path / "journal.jsonl")
    with pytest.raises(RunFolderError, match="cannot be written: Is a directory"):
        Journal(tmp_path / "journal.jsonl")
