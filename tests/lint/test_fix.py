import ast
from dataclasses import replace

import pytest

from trueloop.analysis.source_file import Hit
from trueloop.core.findings import Severity
from trueloop.core.source_text import Fix
from trueloop.failures.failure import Failure, Rule
from trueloop.lint.check_file import ActiveRule
from trueloop.lint.fix import fix_text


def rule_replacing(new, *, old="bad", safe=True, code="GRD001"):
    """Return a rule that reports a name, with a fix that replaces it."""

    def find(source):
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Name) and node.id == old:
                yield Hit(message="M.", node=node, fix=Fix((source.text.replace(node, new),), safe=safe))

    rule = Rule((), find)
    return ActiveRule(
        Failure(code=code, title="T", severity=Severity.ERROR, doc="", bad="", good="", fix="F.", rule=rule), "s", rule
    )


def test_a_fix_keeps_all_other_bytes():
    source = "bad = 'é' ;  # bad\r\n\tx = [ bad,bad ]  \x0c\r\n".replace("\tx", "x")
    fixed = fix_text(source, "a.py", [rule_replacing("good")])
    assert fixed.text == source.replace("bad =", "good =").replace("[ bad,bad ]", "[ good,good ]")
    assert fixed.fix_count == 3
    assert not fixed.result.findings


def test_unsafe_fixes_need_the_option():
    rules = [rule_replacing("good", safe=False)]
    assert fix_text("bad", "a.py", rules).text == "bad"
    assert fix_text("bad", "a.py", rules, unsafe=True).text == "good"


@pytest.mark.parametrize("new", ["good.detach()", "good.item()", "good.data", "float(good)", "torch.no_grad()(good)"])
def test_a_fix_that_cuts_the_graph_is_never_safe(new):
    rules = [rule_replacing(new, safe=True)]
    assert fix_text("x = bad", "a.py", rules).text == "x = bad"
    assert fix_text("x = bad", "a.py", rules, unsafe=True).text == f"x = {new}"


def test_a_fix_that_does_not_help_is_skipped():
    for useless in ("bad", "bad + bad", "(", "good good"):
        fixed = fix_text("x = bad\n", "a.py", [rule_replacing(useless)])
        assert (fixed.text, fixed.fix_count) == ("x = bad\n", 0)
        assert len(fixed.result.findings) == 1


def test_one_bad_fix_does_not_block_others():
    fixed = fix_text("bad\nworse\n", "a.py", [rule_replacing("(", code="GRD002"), rule_replacing("fine", old="worse")])
    assert fixed.text == "bad\nfine\n"


def test_fix_rounds_are_limited():
    chain = [rule_replacing(f"n{i + 1}", old=f"n{i}", code=f"GRD{i:03}") for i in range(5)]
    assert fix_text("n0", "a.py", chain).text == "n0", "each alone leaves as many findings as before"
    circle = [rule_replacing("b", old="a"), rule_replacing("a", old="b", code="GRD002")]
    assert fix_text("a", "a.py", circle).fix_count == 0


def test_a_note_about_inserted_code_does_not_block_a_fix():
    note = rule_replacing("x", old="good", code="EVL003")
    note = note._replace(failure=replace(note.failure, severity=Severity.NOTE))
    assert fix_text("bad\n", "a.py", [rule_replacing("good"), note]).text == "x\n"
    grave = rule_replacing("(", old="good", code="EVL001")
    assert fix_text("bad\n", "a.py", [rule_replacing("good"), grave]).text == "bad\n", "it would add another mistake"
