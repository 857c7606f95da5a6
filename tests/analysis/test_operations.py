"""Tests of operations: loops that run at most once."""

import ast

import pytest

from trueloop.analysis.operations import Loop
from trueloop.failures.load import catalogue
from trueloop.lint.check_file import ActiveRule, lint_text

LEAVING_BODIES = (
    "break",
    "f(); break",
    "if f(): raise ValueError\n  else: break",
    "with f(): break",
    "if 1: break",
    "for y in f():\n   continue\n  break",
    "def g():\n   for y in f(): continue\n  break",
)
REPEATING_BODIES = (
    "f()",
    "if f(): break",
    "if f(): continue\n  break",
    "if 0: break",
    "for y in f(): break",
    "try: break\n  finally: f()",
    "for y in f(): pass\n  else: continue\n  break",
)
NEED_REPETITION = (
    "GRD001",
    "GRD004",
    "PRC004",
    "PRC006",
    "EVL002",
    "MEM001",
    "MEM005",
    "OPT004",
    "DAT003",
    "DAT004",
    "DST003",
)


@pytest.mark.parametrize(
    ("body", "once"), [*((each, True) for each in LEAVING_BODIES), *((each, False) for each in REPEATING_BODIES)]
)
@pytest.mark.parametrize("head", ["for x in f():", "while True:"])
def test_a_loop_whose_body_ends_by_leaving_runs_at_most_once(head, body, once):
    assert Loop(ast.parse(f"{head}\n  {body}").body[0], None).runs_at_most_once() is once


def test_a_comprehension_may_run_several_times():
    assert not Loop(
        next(each for each in ast.walk(ast.parse("[x for x in y]")) if "ifs" in each._fields), None
    ).runs_at_most_once()


@pytest.mark.parametrize("code", NEED_REPETITION)
def test_failures_of_loops_need_several_iterations(code):
    entry = catalogue()[code]
    assert entry.failure.rule is not None
    rules = [ActiveRule(entry.failure, entry.slug, entry.failure.rule)]
    assert code in [each.code for each in lint_text(entry.failure.bad, "train.py", rules).findings]
    tree = ast.parse(entry.failure.bad)
    for each in ast.walk(tree):
        if isinstance(each, ast.For | ast.While):
            each.body.append(ast.Break())
    script = ast.unparse(ast.fix_missing_locations(tree))
    assert code not in [each.code for each in lint_text(script, "train.py", rules).findings]
