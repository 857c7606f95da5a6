from trueloop.core.protocols import CheckpointSaved, Evaluated, RunStarted, UpdateRow, UpdatesDone
from trueloop.runs.journal import read_journal


def evaluated(update, split="val", *, best=False):
    return Evaluated(update=update, epoch=1, split=split, metrics={"loss": 0.5}, tables={}, seconds=2.0, best=best)


def test_the_best_is_the_newest_marked_one_of_validation(run, synthetic):
    events = [
        synthetic.started(), evaluated(1, best=True), evaluated(2, "val", best=True), evaluated(2, "test", best=True),
        evaluated(3),
    ]  # fmt: skip
    history = read_journal(run(events))
    assert (history.best.update, history.best.split) == (2, "val")
    assert history.latest("val").update == 3
    assert history.latest("test").update == 2
    assert history.latest("train") is None


def test_an_empty_run_has_neither_best_nor_updates(run, synthetic):
    history = read_journal(run([synthetic.started(start_update=5)]))
    assert history.best is None
    assert (len(history.updates), history.last_update, history.skipped) == (0, 5, [])
    assert history.time_split().total == 0


def test_time_is_split_by_activity(run):
    rows = [UpdateRow(1, 1, 0.5, 1.0, 0.1, 8, 0.25, 1.0, False), UpdateRow(2, 1, 0.5, 1.0, 0.1, 8, 0.5, 1.0, True)]
    saved = CheckpointSaved(update=2, epoch=1, path="c", metrics={}, seconds=0.5)
    start = RunStarted(name="x", epochs=1, updates=2, start_update=0, facts={})
    history = read_journal(run([start, UpdatesDone(rows=rows), evaluated(2), saved]))
    split = history.time_split()
    assert (split.computing, split.waiting, split.evaluating, split.saving) == (1.25, 0.75, 2.0, 0.5)
    assert split.total == 4.5
    assert history.skipped == [2]
