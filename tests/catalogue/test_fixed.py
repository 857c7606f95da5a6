"""What `trueloop lint --fix` makes of every page's broken script runs, and the sanitizer finds nothing in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trueloop.catalogue.load import Entry, catalogue
from trueloop.engines.lint.fix import fix_text
from trueloop.engines.lint.lint import Ruled

UNFIXED: set[str] = set()
"""Pages whose broken script the text alone cannot mend: their fix is a decision, or a rewrite."""

RULED = [entry for entry in catalogue().values() if entry.failure.rule]


@pytest.mark.parametrize("entry", RULED, ids=lambda entry: f"{entry.code}-{entry.slug}")
def test_the_fixed_script_runs_and_is_right(entry: Entry, run: Callable[..., Any]):
    assert entry.failure.rule is not None
    rules = [Ruled(entry.failure, entry.slug, entry.failure.rule)]
    fixed = fix_text(entry.failure.bad, "train.py", rules, unsafe=True)
    assert (fixed.text == entry.failure.bad) is (entry.code in UNFIXED)
    if fixed.text != entry.failure.bad:
        found = run(fixed.text).findings
        assert entry.code not in {each.code for each in found}, fixed.text
        assert not [each for each in found if each.severity != "note"], (found, fixed.text)
