"""The table and the pages of silent failures have everything from the catalogue."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trueloop.app.web.wire_format import encode_json
from trueloop.core.errors import InvalidConfig
from trueloop.failures.load import catalogue
from trueloop.lab.views.signatures import Query, _blocks, _pieces, answer


def test_every_failure_is_in_the_table():
    reply = answer(Query())
    assert [each["code"] for each in reply["failures"]] == list(catalogue())
    for each in reply["failures"]:
        assert each["symptom"], each["code"]
        assert each["fix"], each["code"]
        assert bool(each["why"]) != each["curves"], "a failure without curves has a reason"
    encode_json(reply)


@pytest.mark.parametrize("code", list(catalogue()))
def test_every_page_has_all_sections(code: str):
    reply = answer(Query(what="page", code=code))
    headings = [section["heading"] for section in reply["sections"]]
    assert headings[1:] == [
        "What you see",
        "Why it happens",
        "Fix",
        "When this is fine",
        "How it is detected",
        "References",
    ]
    for section in reply["sections"]:
        assert section["blocks"], section["heading"]
    text = "".join(piece for line in reply["bad"] for _, piece in line)
    assert text in "".join(catalogue()[code].failure.bad.strip().split("\n"))


def test_a_text_is_split_into_words_code_and_links():
    assert _pieces("Call ``step()``, see https://docs.pytorch.org/x.html.") == [
        ("", "Call "),
        ("code", "step()"),
        ("", ", see "),
        ("link", "https://docs.pytorch.org/x.html"),
        ("", "."),
    ]
    assert _pieces("javascript:alert(1) http://x.org") == [("", "javascript:alert(1) http://x.org")]


def test_lists_and_code_are_recognised():
    blocks = list(_blocks("One\ntwo.\n\n- a\n  b\n- c\n\n    x = 1\n    y = 2"))
    assert [block["kind"] for block in blocks] == ["text", "list", "code"]
    assert blocks[1]["items"] == [[("", "a b")], [("", "c")]]
    assert blocks[2]["text"] == "x = 1\ny = 2"


def test_an_unknown_failure_is_refused():
    with pytest.raises(InvalidConfig, match="no failure 'GRD999'"):
        answer(Query(what="page", code="GRD999"))


def test_the_view_needs_no_torch():
    script = (
        "import sys\n"
        "from trueloop.lab.views import signatures, watch\n"
        "signatures.answer(signatures.Query())\n"
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
