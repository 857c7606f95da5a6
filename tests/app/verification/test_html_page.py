"""The page: whole, self-contained and escaped."""

import re

from trueloop.app.verification.html_page import headline, to_html
from trueloop.verification.evidence import Curve, Evidence, Verdict

FOUND = [
    Evidence(verdict=Verdict.NOT_APPLICABLE, message="No mask.", proof="mask-respected", title="Masked"),
    Evidence(
        verdict=Verdict.HOLDS,
        message="It fell.",
        proof="loss-falls",
        title="The loss falls",
        charts=(Curve(title="Loss", lines={"loss": [2.0, 1.0]}),),
        seconds=0.5,
    ),
    Evidence(
        verdict=Verdict.BROKEN,
        message="<script>alert(1)</script> moves.",
        proof="input-used",
        title="The input is used",
        fix="Use it.",
        notes=("Also <b>this</b>.",),
    ),
]


def test_the_headline_counts():
    assert headline(FOUND) == "1 broken, 1 hold, 1 not applicable"
    assert headline([]) == "no proof was run"


def test_the_page_shows_everything_and_runs_nothing():
    page = to_html(FOUND, "mine.py:build")
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; moves." in page
    assert "Use it." in page
    assert "<polyline" in page
    assert "No mask." in page
    assert not re.search(r"(?:src|href)=", page)
    assert page.index("input-used") < page.index("loss-falls"), "what is broken comes first"
