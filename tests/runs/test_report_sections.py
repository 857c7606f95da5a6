import math

from trueloop.core.protocols import CheckpointSaved, Notice
from trueloop.runs.journal import read_journal
from trueloop.runs.report_sections import (
    MAX_ROWS,
    checkpoints_section,
    environment_section,
    evaluations_section,
    notes_section,
    settings_section,
    time_section,
)


def test_evaluations_are_shown_with_the_training_loss_of_their_epoch(run, synthetic):
    history = read_journal(run(synthetic.finished_run(skipped=(3,))))
    page = evaluations_section(history)
    stepped = [loss for loss in history.updates.loss[:23] if math.isfinite(loss)]
    assert len(stepped) == 22
    assert f"<td>1</td><td>23</td><td>{sum(stepped) / 22:.3f}</td>" in page
    assert page.count(">best<") == 1
    assert '<th scope="col">test accuracy</th>' in page


def test_only_checkpoints_on_disk_are_listed_and_the_rest_counted(run, synthetic, tmp_path):
    history = read_journal(run(synthetic.finished_run()))
    for update in (230, 276):
        (tmp_path / f"checkpoints/update-{update:08d}").mkdir(parents=True)
    page = checkpoints_section(history, tmp_path)
    assert page.index("checkpoints/update-00000276") < page.index("checkpoints/update-00000230")
    assert "10 older checkpoints no longer on disk." in page
    assert page.count("<code>") == 2
    assert page.count(">best<") == 1


def test_a_moved_run_finds_its_checkpoints_again(run, synthetic, tmp_path):
    saved = CheckpointSaved(update=23, epoch=1, path="/gone/run/checkpoints/update-00000023", metrics={}, seconds=0.1)
    events = [synthetic.started(), saved]
    (tmp_path / "checkpoints/update-00000023").mkdir(parents=True)
    assert "<code>checkpoints/update-00000023</code>" in checkpoints_section(read_journal(run(events)), tmp_path)


def test_the_shares_of_the_time_add_up(run, synthetic):
    page = time_section(read_journal(run(synthetic.finished_run())))
    widths = [float(part.split("%")[0]) for part in page.split("width:")[1:]]
    assert len(widths) == 4
    assert abs(sum(widths) - 100) < 0.03


def test_settings_keep_their_nesting(run, synthetic):
    facts = {
        "config": {"epochs": 3, "optim": {"lr": 0.1, "deep": {"er": True}}},
        "options": {"width": None},
        "device": "cpu",
    }
    history = read_journal(run([synthetic.started(facts=facts)]))
    page = settings_section(history)
    assert "<h3>optim</h3><dl><div><dt>lr</dt><dd>0.1</dd></div><div><dt>deep.er</dt><dd>true</dd></div></dl>" in page
    assert "<h3>options</h3><dl><div><dt>width</dt><dd>none</dd></div></dl>" in page
    assert "width" not in environment_section(history)
    assert "<dt>device</dt><dd>cpu</dd>" in environment_section(history)


def test_without_facts_there_are_no_sections(run, synthetic, tmp_path):
    history = read_journal(run([synthetic.started(facts={})]))
    assert settings_section(history) == ""
    assert (
        evaluations_section(history)
        == notes_section(history)
        == checkpoints_section(history, tmp_path)
        == time_section(history)
        == ""
    )


def test_too_many_notes_are_truncated_with_a_remark(run, synthetic):
    flood = [Notice(update=k, kind="not_finite", message=f"number {k}", details={}) for k in range(1, MAX_ROWS + 11)]
    page = notes_section(read_journal(run([synthetic.started(), *flood])))
    assert page.count("<li>") == MAX_ROWS
    assert "number 10<" not in page
    assert "number 11<" in page
    assert f"The newest {MAX_ROWS} of {MAX_ROWS + 10} notes; all are in the journal." in page
