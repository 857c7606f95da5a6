import csv
import io
import json
import math

from trueloop.core.protocols import Evaluated, RunStarted, UpdatesDone
from trueloop.runs.journal import read_journal
from trueloop.runs.queries.export import write_csv, write_json
from trueloop.runs.queries.overview import read_overview


def table(path):
    text = io.StringIO()
    write_csv(read_journal(path), text)
    return list(csv.DictReader(io.StringIO(text.getvalue())))


def as_text(path):
    text = io.StringIO()
    write_json(read_overview(path), read_journal(path), text)
    return text.getvalue()


def test_a_row_per_update_with_the_evaluations_made_after_it(fake_runs):
    rows = table(fake_runs.run("a", losses=(0.5, 0.25)))
    assert [row["update"] for row in rows] == ["1", "2", "3", "4"]
    assert [row["val/loss"] for row in rows] == ["", "0.5", "", "0.25"]
    assert [row["loss"] for row in rows] == ["0.6", "0.5", "0.35", "0.25"]
    assert rows[0]["skipped"] == "false"
    assert list(rows[0])[:9] == [
        "update", "epoch", "loss", "grad_norm", "lr", "examples", "wait_s", "total_s", "skipped"
    ]  # fmt: skip


def test_an_evaluation_without_a_row_gets_one(fake_runs):
    path = fake_runs.run("a", losses=(0.5,), end="")
    fake_runs.write(
        "a", [Evaluated(update=9, epoch=5, split="test", metrics={"loss": 0.1}, tables={}, seconds=0.1, best=False)]
    )
    last = table(path)[-1]
    assert (last["update"], last["epoch"], last["loss"], last["test/loss"], last["val/loss"]) == (
        "9",
        "5",
        "",
        "0.1",
        "",
    )


def test_nonfinite_values_are_written_as_in_the_journal(fake_runs):
    path = fake_runs.run("a", losses=(math.nan, -math.inf))
    assert [row["val/loss"] for row in table(path)] == ["", "nan", "", "-inf"]
    record = json.loads(as_text(path), parse_constant=lambda word: 1 / 0)
    assert [each["metrics"]["loss"] for each in record["evaluations"]] == ["nan", "-inf"]


def test_json_contains_everything(fake_runs):
    path = fake_runs.run("a", losses=(0.5, 0.25))
    text = as_text(path)
    record = json.loads(text)
    assert text.count("\n") == 1
    assert record["run"]["name"] == "a"
    assert record["updates"][3]["loss"] == 0.25
    assert len(record["updates"]) == 4
    assert [each["update"] for each in record["checkpoints"]] == [2, 4]
    assert record["started"]["facts"]["recipe"] == "digits"
    assert record["end"]["reason"] == "finished"


def test_a_run_without_updates_has_only_a_header(fake_runs):
    path = fake_runs.run("a", losses=())
    assert table(path) == []
    assert json.loads(as_text(path))["updates"] == []


def test_a_title_that_looks_like_a_formula_is_quoted(fake_runs):
    path = fake_runs.run("a", losses=(0.5,), end="")
    fake_runs.write(
        "a",
        [Evaluated(update=2, epoch=1, split="=cmd()", metrics={"x\x1b[2J": 1.0}, tables={}, seconds=0.1, best=False)],
    )
    assert table(path)[1]["'=cmd()/x\ufffd[2J"] == "1.0"


def test_the_rates_of_other_groups_are_separate_columns(fake_runs, fake_runs_module):
    rows = [fake_runs_module.row(k)._replace(rates=(0.001, 0.1 * k)) for k in (1, 2)]
    path = fake_runs.write(
        "a", [RunStarted(name="x", epochs=1, updates=2, start_update=0, facts={}), UpdatesDone(rows=rows)]
    )
    assert [(row["lr"], row["lr/1"]) for row in table(path)] == [("0.001", "0.1"), ("0.001", "0.2")]
    assert json.loads(as_text(path))["updates"][1]["lr/1"] == 0.2
