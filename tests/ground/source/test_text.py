"""Edits by bytes: positions, insertion of lines, fixes that overlap."""

import ast

import pytest

from trueloop.ground.source.text import Edit, Fix, Text, applied


def first(source):
    text = Text(source)
    return text, ast.parse(source).body


def edited(text, *edits):
    return applied(text, [Fix(edits, safe=True)])[0].source


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_positions_are_those_of_the_syntax_tree(newline):
    source = newline.join(("é = 'ü'", "if é:", "    f(é, 'ß')  # é", ""))
    text, (_, condition) = first(source)
    call = condition.body[0].value
    assert text.of(call) == "f(é, 'ß')"
    assert text.of(call.args[1]) == "'ß'"
    assert text.line(3) == "    f(é, 'ß')  # é"
    assert text.newline == newline
    assert edited(text, text.replace(call.args[0], "x")) == source.replace("f(é", "f(x")


def test_lines_go_before_and_behind_a_statement_with_its_indentation():
    text, (loop,) = first("for x in y:\n\tf(x)  # why\n\n\tg(\n\t\tx)\n")
    one, two = loop.body
    assert edited(text, text.before(one, "a()", "b()")) == "for x in y:\n\ta()\n\tb()\n\tf(x)  # why\n\n\tg(\n\t\tx)\n"
    assert edited(text, text.after(one, "a()")) == "for x in y:\n\tf(x)  # why\n\ta()\n\n\tg(\n\t\tx)\n"
    assert edited(text, text.after(two, "a()")) == text.source + "\ta()\n"


def test_the_last_line_need_not_end():
    text, (one,) = first("f()")
    assert edited(text, text.after(one, "g()", "h()")) == "f()\ng()\nh()"


def test_statements_that_share_a_line_are_left_alone():
    text, (one, two) = first("f(); g()\n")
    assert text.after(one, "a()") is None
    assert text.before(two, "a()") is None
    text, (condition,) = first("if x: f()\n")
    assert text.before(condition.body[0], "a()") is None


def test_what_is_decorated_gets_its_lines_above_the_decorators():
    text, (function,) = first("@a\n@b\ndef f(): ...\n")
    assert edited(text, text.before(function, "x = 1")) == "x = 1\n@a\n@b\ndef f(): ...\n"


def test_a_fix_is_applied_whole_or_waits():
    text = Text("abcdef")
    fixes = [
        Fix((Edit(0, 1, "A"), Edit(5, 6, "F")), safe=True),
        Fix((Edit(2, 3, "C"), Edit(5, 6, "X")), safe=True),
        Fix((Edit(3, 4, "D"),), safe=True),
        Fix((Edit(3, 4, "D"),), safe=True),
    ]
    after, done = applied(text, fixes)
    assert after.source == "AbcDeF"
    assert done == [fixes[0], fixes[2], fixes[3]], "two fixes may want the same edit"
    both = [Fix((Edit(2, 2, "x"),), safe=True), Fix((Edit(2, 2, "y"),), safe=True)]
    assert applied(text, both)[1] == both[:1], "which of two insertions comes first matters"
