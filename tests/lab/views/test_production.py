"""The page gets texts as coloured lines, what is new in them, and the chart, without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trueloop.app.web.wire_format import decode_object, encode_json
from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import describe_fields, parse_record
from trueloop.lab.teaching.production.program import production_program
from trueloop.lab.teaching.production.selection import NAMES, selected
from trueloop.lab.views.production import Query, answer, new_lines, removed_lines

SETUP_SNIPPETS = "a = 1\n\nfor x in y:\n    f(x)\n"
NOW = "a = 1\nb = 2\n\nfor x in y:\n    g(x)\n\n"


def test_lines_that_were_not_there_are_new():
    assert new_lines(SETUP_SNIPPETS, NOW) == [2, 5]
    assert new_lines("", "a\n\nb\n") == [1, 3]


def test_lines_that_are_there_no_more_are_gone():
    assert removed_lines(SETUP_SNIPPETS, NOW) == ["    f(x)"]
    assert removed_lines(NOW, NOW) == new_lines(NOW, NOW) == []


def asked(**fields):
    return decode_object(encode_json(answer(parse_record(Query, fields))))


def text(shown):
    return "\n".join("".join(piece for _, piece in line) for line in shown["lines"]) + "\n"


def test_the_program_is_the_selections():
    told = asked(selection={"clipping": True})
    assert text(told["program"]) == production_program(selected("clipping")).text
    assert (told["program"]["new"], told["program"]["gone"]) == ([], [])
    assert [each["name"] for each in told["components"]] == list(NAMES)
    assert [each["name"] for each in told["components"] if each["on"]] == told["on"] == ["clipping"]


def test_what_is_new_is_told_by_line_and_box():
    told = asked(selection={"clipping": True}, before={})
    (new,) = told["program"]["new"]
    assert text(told["program"]).splitlines()[new - 1].strip().startswith("nn.utils.clip_grad_norm_(")
    assert [box["name"] for box in told["chart"]["boxes"] if box["new"]] == ["clip"]
    (line,) = [box["lines"] for box in told["chart"]["boxes"] if box["name"] == "clip"]
    assert line == [[new, new]]
    assert text(told["trainer"]).splitlines()[told["trainer"]["new"][0] - 1].strip() == "clip=1.0,"
    assert told["trainer"]["gone"] == ["    clip=None,"]


def test_what_a_component_needs_is_added_and_said():
    told = asked(selection={"early_stopping": True})
    assert told["added"] == [{"name": "evaluation", "because": "Early stopping needs an evaluation."}]
    assert told["on"] == ["evaluation", "early_stopping"]
    assert asked(selection={"early_stopping": True, "evaluation": True})["added"] == []


def test_the_costs_of_what_is_on_are_marked():
    on = {row["name"] for row in asked(selection={"precision": "fp16", "logging": True})["costs"]["rows"] if row["on"]}
    assert on == {"precision fp16", "logging"}


@pytest.mark.parametrize(
    "given", [{"selektion": {}}, {"selection": {"precision": "fp8"}}, {"selection": {"clipping": 1}}]
)
def test_what_is_not_to_be_had_is_refused(given):
    with pytest.raises(InvalidConfig):
        asked(**given)


def test_what_can_be_asked_is_described():
    selection, before = decode_object(encode_json({"fields": describe_fields(Query)}))["fields"]
    assert [field["name"] for field in selection["fields"]] == list(NAMES)
    assert before["optional"]


def test_it_needs_no_torch():
    script = (
        "import sys; from trueloop.lab.views.production import Query, answer; answer(Query());"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
