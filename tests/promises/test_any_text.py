"""Whatever text the linter is given: it never fails, and touches only what it reports."""

import ast
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesmith import from_node

from trueloop.failures.load import catalogue
from trueloop.lint.check_file import ActiveRule, lint_text
from trueloop.lint.check_tree import LintJob, lint_content
from trueloop.lint.fix import fix_text

RULES = [ActiveRule(e.failure, e.slug, e.failure.rule) for e in catalogue().values() if e.failure.rule]
EVERYTHING = [each._replace(rule=each.rule._replace(required_words=())) for each in RULES]
"""The same rules, asked of every text."""
TESTS = Path(__file__).parents[1]
PROGRAMS = sorted(
    {each for e in catalogue().values() for each in (e.failure.bad, e.failure.good)}
    | {path.read_text() for folder in ("healthy", "guilty") for path in (TESTS / folder).rglob("*.py")}
)
PATIENT = settings(deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)


def holds(text):
    """Assert what is promised of every text."""
    linted = lint_text(text, "a.py", EVERYTHING)
    assert "trueloop itself" not in linted.problem, linted.problem
    for found in linted.findings:
        assert 1 <= found.location.line <= text.count("\n") + text.count("\r") + 1
    fixed = fix_text(text, "a.py", EVERYTHING, unsafe=True)
    if not any(found.autofix for found in linted.findings):
        assert fixed.text == text
        return
    ast.parse(fixed.text)
    again = fix_text(fixed.text, "a.py", EVERYTHING, unsafe=True)
    assert again.text == fixed.text, "fixing is done in one go"
    if fixed.fix_count:
        assert len(fixed.result.findings) < len(linted.findings)


@pytest.mark.slow(reason="hundreds of generated programs")
@given(from_node())
@settings(PATIENT, max_examples=60)
def test_programs_by_the_grammar(text):
    holds(text)


@pytest.mark.slow(reason="hundreds of generated programs")
@given(st.sampled_from(PROGRAMS), st.randoms(use_true_random=False), st.integers(1, 6))
@settings(PATIENT, max_examples=250)
def test_real_programs_with_lines_taken_out_put_in_and_moved(text, rnd, changes):
    holds(changed(text, rnd, changes))


def changed(text: str, rnd: random.Random, changes: int) -> str:
    """Return a program with some of its lines in other places; most are no Python any more, and some are."""
    lines = text.splitlines(keepends=True)
    for _ in range(changes):
        at, other = rnd.randrange(len(lines)), rnd.randrange(len(lines))
        what = rnd.randrange(5)
        if what == 0:
            del lines[at]
        elif what == 1:
            lines.insert(at, lines[other])
        elif what == 2:
            lines[at], lines[other] = lines[other], lines[at]
        elif what == 3:
            lines[at] = lines[at].replace("    ", "", 1)
        else:
            lines[at] = "    " + lines[at]
        lines = lines or ["\n"]
    return "".join(lines)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
@settings(PATIENT, max_examples=200)
def test_any_bytes_are_a_file_or_a_notebook(content):
    from trueloop.lint.files import Unreadable

    for name in ("a.py", "a.ipynb"):
        try:
            read = lint_content(content, name, LintJob(RULES, fix=True, unsafe=True))
        except Unreadable as error:
            assert str(error)
        else:
            assert read.after is None or read.result is not None
            assert "trueloop itself" not in read.result.problem


@pytest.mark.parametrize(
    "text", ["", "\n", "\r\n", "\x0c", "# only a comment", "#!/bin/sh", "\t\n x", "async def f():\n await x\n"]
)
def test_nearly_empty_files(text):
    holds(text)


def test_every_program_keeps_every_byte_that_is_not_reported():
    for text in PROGRAMS:
        fixed = fix_text(text, "a.py", RULES, unsafe=True)
        if not fixed.fix_count:
            assert fixed.text == text
        else:
            kept = iter(fixed.text.splitlines())
            missing = [line for line in text.splitlines() if line.strip().startswith("#") and line not in kept]
            assert not missing, "comments stay, in their order"
