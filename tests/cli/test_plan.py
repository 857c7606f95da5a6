"""The command as a user types it, and the page it prints at any width, for any plan."""
# ruff: noqa: RUF001  # × and – are meant

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest
from cyclopts import App
from hypothesis import assume, given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from trueloop.cli.plan import plan_command
from trueloop.cli.plan_output import print_plan
from trueloop.cli.timeline import timeline
from trueloop.core.arithmetic import MAX_INDEX, Plan, plan
from trueloop.core.errors import InvalidConfig

SCRIPT = """
import sys
from cyclopts import App
from trueloop.cli.plan import plan_command
app = App()
app.default(plan_command)
try:
    app()
finally:
    assert not {'torch', 'numpy'} & set(sys.modules), 'heavy'
"""

FIRST = "--dataset 10000 --batch 32 --epochs 3"


def run(line: str) -> None:
    app = App(name="trueloop", result_action="return_value")
    app.command(plan_command, name="plan")
    app(["plan", *line.split()])


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch):
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")


def page(sizes: Plan, width: int) -> str:
    file = io.StringIO()
    print_plan(sizes, Console(file=file, width=width, highlight=False, force_terminal=False))
    return file.getvalue()


def plans(largest: int) -> st.SearchStrategy[Plan]:
    count = st.integers(1, largest)

    def build(**sizes: Any) -> Plan:
        assume(not sizes["drop_last"] or sizes["dataset"] >= sizes["batch"] * sizes["processes"])
        return plan(**sizes)

    return st.builds(
        build,
        dataset=count,
        batch=st.integers(1, 64) | count,
        epochs=st.integers(1, 8) | count,
        accumulate=st.integers(1, 20) | count,
        processes=st.integers(1, 9) | count,
        drop_last=st.booleans(),
        sample_bytes=st.none() | count,
    )


# What a user reads -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "rows"),
    [
        (
            FIRST,
            {"iterations per epoch": 313, "last iteration": 16, "updates in the run": 939, "examples seen": 30000},
        ),
        (f"{FIRST} --accumulate 4", {"effective batch": 128, "updates per epoch": 79, "updates in the run": 237}),
        ("--dataset 100 --batch 16 --drop-last", {"iterations per epoch": 6, "left out per epoch": 4}),
        (f"{FIRST} --processes 2", {"iterations per epoch": 157, "forward passes": 942, "scheduler ticks": 471}),
    ],
)
def test_the_page_has_the_numbers(line: str, rows: dict[str, int], capsys: pytest.CaptureFixture[str]):
    run(line)
    out = capsys.readouterr().out
    for name, value in rows.items():
        assert re.search(rf"^ *{name} +{value}(  |$)", out, flags=re.MULTILINE), (name, out)


def test_each_number_has_its_formula(capsys: pytest.CaptureFixture[str]):
    run(f"{FIRST} --accumulate 4 --sample-bytes 3072")
    out = capsys.readouterr().out
    assert re.search(r"iterations per epoch +313  = ceil\(10000 / 32\)\n", out)
    assert re.search(r"updates per epoch +79  = ceil\(313 / 4\)\n", out)
    assert re.search(r"memory of one batch +96\.0 KiB  = 32 × 3072 bytes\n", out)


def test_a_pipe_gets_no_colour_codes_and_no_trailing_spaces(capsys: pytest.CaptureFixture[str]):
    run(f"{FIRST} --accumulate 4")
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert not re.search(r" $", out, flags=re.MULTILINE)


def test_partial_iterations_and_short_windows_differ_in_shape_and_colour():
    sizes = plan(dataset=100, batch=16, accumulate=4)
    (row,) = timeline(sizes, 80)
    assert row.plain == "epoch 1  [████](██▄·)  updates 1–2"
    styles = {row.plain[span.start]: span.style for span in row.spans}
    assert styles["█"] != styles["▄"]
    assert styles["["] != styles["("]


def test_examples_that_drop_last_leaves_out_are_drawn():
    (row,) = timeline(plan(dataset=100, batch=16, drop_last=True), 80)
    assert row.plain == "epoch 1  [█][█][█][█][█][█]×  updates 1–6"


def test_the_middle_of_long_epochs_and_runs_is_left_out():
    rows = [row.plain for row in timeline(plan(dataset=10000, batch=32, epochs=100, accumulate=4), 80)]
    assert rows == [
        "epoch 1    [████][████][████][████] ⋯ 73 more ⋯ [████](▄···)  updates 1–79",
        "epoch 2    [████][████][████][████] ⋯ 73 more ⋯ [████](▄···)  updates 80–158",
        "epoch 3    [████][████][████][████] ⋯ 73 more ⋯ [████](▄···)  updates 159–237",
        "⋯          96 more epochs, all the same",
        "epoch 100  [████][████][████][████] ⋯ 73 more ⋯ [████](▄···)  updates 7822–7900",
    ]


def test_the_legend_explains_exactly_the_drawn_marks():
    marks = "█▄·×"
    for sizes in (
        plan(dataset=96, batch=16),
        plan(dataset=100, batch=16, accumulate=4),
        plan(dataset=90, batch=16, accumulate=3, drop_last=True),
        plan(dataset=20, batch=64),
    ):
        marks_drawn = {mark for row in timeline(sizes, 80) for mark in row.plain if mark in marks}
        explained = re.findall(rf"^([{marks}])  ", page(sizes, 80), flags=re.MULTILINE)
        assert sorted(explained) == sorted(marks_drawn)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_terminal_without_unicode_gets_ascii(encoding: str):
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, *f"{FIRST} --accumulate 4".split()],
        capture_output=True,
        check=False,
        env=os.environ | {"PYTHONIOENCODING": encoding, "COLUMNS": "80"},
    )
    assert process.returncode == 0, process.stderr.decode()
    assert "[####](+___)  updates 1-79" in process.stdout.decode("ascii")


def test_the_command_needs_no_torch():
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, *FIRST.split()], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    assert "313" in process.stdout


# JSON ------------------------------------------------------------------------------------------------------------


def test_json_is_one_object_and_nothing_else(capsys: pytest.CaptureFixture[str]):
    run(f"{FIRST} --accumulate 4 --processes 2 --sample-bytes 3072 --json")
    captured = capsys.readouterr()
    sizes = plan(dataset=10000, batch=32, epochs=3, accumulate=4, processes=2, sample_bytes=3072)
    assert json.loads(captured.out) == sizes.as_dict()
    assert captured.err == ""


# Errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("--dataset 100 --batch 3.5", "--batch: '3.5' is not a whole number"),
        ("--dataset 100 --batch x", "--batch: 'x' is not a whole number"),
        ("--dataset 100 --batch 10 --epochs 1e3", "--epochs: '1e3' is not a whole number"),
        ("--dataset 100 --batch 10 --sample-bytes 3.0", "--sample-bytes: '3.0' is not a whole number"),
        ("--dataset 100 --batch=", "--batch: '' is not a whole number"),
        ("--dataset 100", "--batch"),
        ("--batch 10", "--dataset"),
        ("--dataset 100 --batch 10 --epoch 3", "Did you mean --epochs"),
    ],
)
def test_an_argument_that_is_not_a_number_is_one_message(line: str, named: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        run(line)
    captured = capsys.readouterr()
    assert end.value.code not in (0, None)
    assert captured.out == ""
    assert named in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("--dataset 0 --batch 10", "dataset is 0"),
        ("--dataset 100 --batch -10", "batch is -10"),
        ("--dataset 100 --batch 10 --epochs 0", "epochs is 0"),
        ("--dataset 40 --batch 64 --drop-last", "leaves nothing of the 40 examples"),
        (f"--dataset {10**30} --batch 10", "dataset is above"),
    ],
)
def test_an_impossible_size_is_an_error_with_its_value(line: str, named: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(InvalidConfig, match=named) as error:
        run(line)
    assert error.value.fix
    assert capsys.readouterr().out == ""


# Laws ------------------------------------------------------------------------------------------------------------


@given(plans(MAX_INDEX), st.integers(20, 200))
def test_the_page_never_fails_and_never_exceeds_the_width(sizes: Plan, width: int):
    lines = page(sizes, width).splitlines()
    assert lines
    assert max(map(cell_len, lines)) <= width


@given(plans(5000), st.integers(60, 200))
def test_no_value_is_cut_off(sizes: Plan, width: int):
    text = page(sizes, width)
    for value in (sizes.effective_batch, sizes.iterations_per_epoch, sizes.updates, sizes.examples_seen):
        assert re.search(rf"  {value if value < 1_000_000 else format(value, ',')}(  |\n)", text)


@given(plans(2000), st.integers(60, 200))
def test_the_windows_drawn_and_left_out_add_up(sizes: Plan, width: int):
    for row in timeline(sizes, width):
        if row.plain.startswith("⋯"):
            continue
        marks_drawn = len(re.findall(r"[\[(]", row.plain))
        left_out = sum(int(count) for count in re.findall(r"(\d+) more", row.plain))
        assert marks_drawn + left_out == sizes.updates_per_epoch
        assert row.plain.count("(") == sizes.short_last_window
        assert row.plain.count("▄") == sizes.partial_last_batch
        assert row.plain.count("×") == (sizes.never_seen_per_epoch > 0)


@given(st.integers(1, 200), st.integers(1, 20), st.integers(1, 8), st.integers(1, 3), st.booleans())
def test_every_iteration_is_drawn_if_the_width_suffices(
    dataset: int, batch: int, accumulate: int, processes: int, drop: bool
):
    assume(not drop or dataset >= batch * processes)
    sizes = plan(dataset=dataset, batch=batch, accumulate=accumulate, processes=processes, drop_last=drop)
    (row,) = timeline(sizes, 1000)
    assert row.plain.count("█") + row.plain.count("▄") == sizes.iterations_per_epoch
    assert row.plain.count("·") == sizes.accumulate - sizes.last_window


# A model and machines --------------------------------------------------------------------------------------------

SEVEN = "--parameters 7e9 --layers 32 --width 4096 --devices 64"


def test_a_model_needs_no_dataset(capsys: pytest.CaptureFixture[str]):
    run(SEVEN)
    out = capsys.readouterr().out
    assert re.search(r"^moments +52\.2 GiB +834\.5 MiB  8 × 7 B, / 64$", out, flags=re.MULTILINE)
    assert "iterations" not in out
    run(f"{SEVEN} --dataset 100 --batch 10")
    both = capsys.readouterr().out
    assert "iterations per epoch" in both
    assert both.endswith(out)


def test_json_has_the_model_next_to_the_run(capsys: pytest.CaptureFixture[str]):
    run(f"{SEVEN} --json")
    model = json.loads(capsys.readouterr().out)
    assert (model["parameters"], model["devices"], model["moment_bytes"]) == (7 * 10**9, 64, 56 * 10**9)
    run(f"{FIRST} --json")
    numbers = json.loads(capsys.readouterr().out)
    run(f"{SEVEN} {FIRST} --json")
    assert json.loads(capsys.readouterr().out) == {**numbers, "model": model}


@pytest.mark.parametrize("options", ["", "--window 4", "--precision off --tokens 1e12", "--optimizer sgd --tokens 1"])
@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_a_models_page_never_exceeds_the_width(
    options: str, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", str(width))
    run(f"{SEVEN} {options}")
    out = capsys.readouterr().out
    assert max(cell_len(line) for line in out.splitlines()) <= width
    assert "…" not in out


def test_missing_sizes_are_wrong_usage(capsys: pytest.CaptureFixture[str]):
    from trueloop.cli.app import main

    assert main(["plan"]) == 2
    assert "Pass --dataset and --batch, or --parameters." in capsys.readouterr().err
