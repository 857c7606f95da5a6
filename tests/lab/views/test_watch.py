"""The watch page's questions: bounds, and Python that really runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import parse_record
from trueloop.lab.views.watch import Query, answer
from trueloop.lab.visible_runs import VisibleRuns
from trueloop.runs.live.writer import LiveWriter


@pytest.fixture
def seen(made, tmp_path):
    made.run("a'b{0}")
    return VisibleRuns(made.root, tmp_path / "live")


def text(told) -> str:
    return "\n".join("".join(piece for _, piece in line) for line in told["code"])


def test_a_list_and_a_run(seen):
    assert [each["name"] for each in answer(parse_record(Query, {"what": "list"}), seen)["runs"]] == ["a'b{0}"]
    told = answer(parse_record(Query, {"what": "poll", "runs": ["runs/a'b{0}"]}), seen)
    assert (told["runs"][0]["update"], told["poll_interval_ms"]) == (6, 1000)


def test_the_code_that_is_shown_reads_the_run(seen):
    code = text(answer(parse_record(Query, {"what": "code", "runs": ["runs/a'b{0}"]}), seen))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "2 val {'loss': 0.5}"


def test_the_code_of_a_program_reads_its_report(seen, tmp_path):
    writer = LiveWriter(tmp_path / "live", {"name": "x.py", "command": "x.py\nimport os"})
    code = text(answer(parse_record(Query, {"what": "code", "runs": [f"live/{writer.name}"]}), seen))
    assert code.splitlines()[0] == "# trueloop run --json report.json x.py import os", "a comment, on one line"
    compile(code, "shown", "exec")


@pytest.mark.parametrize(
    "given",
    [
        {"what": "delete"}, {"runs": ["a"] * 7}, {"runs": ["x" * 301]}, {"runs": [3]}, {"runs": "a"},
        {"search": "x" * 81}, {"path": "/etc"}, {"versions": [None]},
    ],
)  # fmt: skip
def test_what_is_out_of_bounds_is_refused(given):
    with pytest.raises(InvalidConfig):
        parse_record(Query, given)
