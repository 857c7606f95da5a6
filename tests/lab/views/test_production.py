"""The answer has the highlighted programs, their new lines and the chart, without importing torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trueloop.app.web.wire_format import decode_object, encode_json
from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import describe_fields, parse_record
from trueloop.lab.teaching.production.program import production_program
from trueloop.lab.teaching.production.selection import NAMES, select
from trueloop.lab.views.production import Query, answer, new_lines, removed_lines

BEFORE = "a = 1\n\nfor x in y:\n    f(x)\n"
AFTER = "a = 1\nb = 2\n\nfor x in y:\n    g(x)\n\n"


def test_lines_that_were_missing_are_new():
    assert new_lines(BEFORE, AFTER) == [2, 5]
    assert new_lines("", "a\n\nb\n") == [1, 3]


def test_lines_that_are_missing_now_are_removed():
    assert removed_lines(BEFORE, AFTER) == ["    f(x)"]
    assert removed_lines(AFTER, AFTER) == new_lines(AFTER, AFTER) == []


def ask(**fields):
    return decode_object(encode_json(answer(parse_record(Query, fields))))


def text(program):
    return "\n".join("".join(piece for _, piece in line) for line in program["lines"]) + "\n"


def test_the_program_is_that_of_the_selection():
    reply = ask(selection={"clipping": True})
    assert text(reply["program"]) == production_program(select("clipping")).text
    assert (reply["program"]["new"], reply["program"]["removed"]) == ([], [])
    assert [each["name"] for each in reply["components"]] == list(NAMES)
    assert [each["name"] for each in reply["components"] if each["on"]] == reply["on"] == ["clipping"]


def test_new_lines_and_boxes_are_marked():
    reply = ask(selection={"clipping": True}, before={})
    (new,) = reply["program"]["new"]
    assert text(reply["program"]).splitlines()[new - 1].strip().startswith("nn.utils.clip_grad_norm_(")
    assert [box["name"] for box in reply["chart"]["boxes"] if box["new"]] == ["clip"]
    (line,) = [box["lines"] for box in reply["chart"]["boxes"] if box["name"] == "clip"]
    assert line == [[new, new]]
    assert text(reply["trainer"]).splitlines()[reply["trainer"]["new"][0] - 1].strip() == "clip=1.0,"
    assert reply["trainer"]["removed"] == ["    clip=None,"]


def test_a_required_component_is_added_with_a_reason():
    reply = ask(selection={"early_stopping": True})
    assert reply["added"] == [{"name": "evaluation", "because": "Early stopping needs an evaluation."}]
    assert reply["on"] == ["evaluation", "early_stopping"]
    assert ask(selection={"early_stopping": True, "evaluation": True})["added"] == []


def test_the_costs_of_enabled_components_are_marked():
    on = {row["name"] for row in ask(selection={"precision": "fp16", "logging": True})["costs"]["rows"] if row["on"]}
    assert on == {"precision fp16", "logging"}


@pytest.mark.parametrize(
    "fields", [{"selektion": {}}, {"selection": {"precision": "fp8"}}, {"selection": {"clipping": 1}}]
)
def test_an_invalid_selection_is_refused(fields):
    with pytest.raises(InvalidConfig):
        ask(**fields)


def test_the_fields_of_the_query_are_described():
    selection, before = decode_object(encode_json({"fields": describe_fields(Query)}))["fields"]
    assert [field["name"] for field in selection["fields"]] == list(NAMES)
    assert before["optional"]


def test_the_view_needs_no_torch():
    script = (
        "import sys; from trueloop.lab.views.production import Query, answer; answer(Query());"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
