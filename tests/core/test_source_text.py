"""Tests of byte-exact edits: positions, inserted lines, overlapping fixes."""

import ast

import pytest

from trueloop.core.source_text import Edit, Fix, SourceText, apply_fixes, cuts_graph


def first(source):
    text = SourceText(source)
    return text, ast.parse(source).body


def edited(text, *edits):
    return apply_fixes(text, [Fix(edits, safe=True)])[0].source


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_positions_match_the_syntax_tree(newline):
    source = newline.join(("é = 'ü'", "if é:", "    f(é, 'ß')  # é", ""))
    text, (_, condition) = first(source)
    call = condition.body[0].value
    assert text.segment(call) == "f(é, 'ß')"
    assert text.segment(call.args[1]) == "'ß'"
    assert text.line(3) == "    f(é, 'ß')  # é"
    assert text.newline == newline
    assert edited(text, text.replace(call.args[0], "x")) == source.replace("f(é", "f(x")


def test_lines_are_inserted_with_the_indentation_of_the_statement():
    text, (loop,) = first("for x in y:\n\tf(x)  # why\n\n\tg(\n\t\tx)\n")
    one, two = loop.body
    assert (
        edited(text, text.insert_before(one, "a()", "b()"))
        == "for x in y:\n\ta()\n\tb()\n\tf(x)  # why\n\n\tg(\n\t\tx)\n"
    )
    assert edited(text, text.insert_after(one, "a()")) == "for x in y:\n\tf(x)  # why\n\ta()\n\n\tg(\n\t\tx)\n"
    assert edited(text, text.insert_after(two, "a()")) == text.source + "\ta()\n"


def test_the_last_line_may_lack_a_line_end():
    text, (one,) = first("f()")
    assert edited(text, text.insert_after(one, "g()", "h()")) == "f()\ng()\nh()"


def test_statements_that_share_a_line_are_not_edited():
    text, (one, two) = first("f(); g()\n")
    assert text.insert_after(one, "a()") is None
    assert text.insert_before(two, "a()") is None
    text, (condition,) = first("if x: f()\n")
    assert text.insert_before(condition.body[0], "a()") is None


def test_lines_go_above_decorators():
    text, (function,) = first("@a\n@b\ndef f(): ...\n")
    assert edited(text, text.insert_before(function, "x = 1")) == "x = 1\n@a\n@b\ndef f(): ...\n"


def test_a_fix_is_applied_completely_or_not_at_all():
    text = SourceText("abcdef")
    fixes = [
        Fix((Edit(0, 1, "A"), Edit(5, 6, "F")), safe=True),
        Fix((Edit(2, 3, "C"), Edit(5, 6, "X")), safe=True),
        Fix((Edit(3, 4, "D"),), safe=True),
        Fix((Edit(3, 4, "D"),), safe=True),
    ]
    after, done = apply_fixes(text, fixes)
    assert after.source == "AbcDeF"
    assert done == [fixes[0], fixes[2], fixes[3]], "two fixes may want the same edit"
    both = [Fix((Edit(2, 2, "x"),), safe=True), Fix((Edit(2, 2, "y"),), safe=True)]
    assert apply_fixes(text, both)[1] == both[:1], "which of two insertions comes first matters"


def test_a_missing_line_is_empty():
    text = SourceText("a\nb\n")
    assert [text.line(number) for number in (0, 1, 2, 9)] == ["", "a", "b", ""]


def test_insert_after_keeps_comments_and_refuses_shared_lines():
    text, (_, second) = first("f(); g()  # why\n")
    assert text.insert_after(second, "a()") is None
    text, (one, two) = first("f()  # why\ng()\n")
    assert edited(text, text.insert_after(one, "a()")) == "f()  # why\na()\ng()\n"
    assert edited(text, *text.indent_under(two, "with h():")) == "f()  # why\nwith h():\n    g()\n"


@pytest.mark.parametrize("source", ['f("""a\nb""")\n', "@a\ndef f(): ...\n", "f(); g()\n"])
def test_indent_under_refuses_unmovable_statements(source):
    text, (statement, *_) = first(source)
    assert text.indent_under(statement, "with h():") is None


@pytest.mark.parametrize(
    ("source", "method", "left"),
    [
        ("x.softmax(1)", True, "x"),
        ("f(x).softmax(dim=1)", True, "f(x)"),
        ("softmax(x, 1)", False, "x"),
        ("softmax(x + y, 1)", False, "(x + y)"),
        ("softmax()", False, None),
        ("softmax(*x)", False, None),
        ("softmax(x,  # why\n  1)", False, None),
        ("(x\n  .softmax(1))", True, None),
    ],
)
def test_unwrap_call_keeps_the_operand_and_comments(source, method, left):
    text, (statement,) = first(source)
    edits = text.unwrap_call(statement.value, method=method)
    assert (edits and edited(text, *edits)) == left


@pytest.mark.parametrize(
    ("source", "left"),
    [("f(a, b)", "f(a)"), ("f(a, (b))", None), ("f(a)", None), ("f(a, b, c=1)", None), ("f(a ,b)", "f(a)")],
)
def test_the_last_argument_is_dropped_with_its_comma(source, left):
    text, (statement,) = first(source)
    edit = text.drop_last_argument(statement.value)
    assert (edit and edited(text, edit)) == left


def test_a_statement_moves_with_its_comment():
    source = "for x in y:\n    f(x)  # why\n    g(\n        x)\nh(); i()\nj()\n"
    text, (loop, shared, _, last) = first(source)
    short, long = loop.body
    assert (
        edited(text, *text.move_statement(short, after=last))
        == "for x in y:\n    g(\n        x)\nh(); i()\nj()\nf(x)  # why\n"
    )
    moved = text.move_statement(last, before=short, leading_lines=("a()",))
    assert edited(text, *moved) == source.replace("    f(x)", "    a()\n    j()\n    f(x)").removesuffix("j()\n")
    assert text.move_statement(long, after=last) is None
    assert text.move_statement(shared, after=last) is None
    assert text.move_statement(last) is None


@pytest.mark.parametrize(
    ("source", "start", "end", "new"),
    [
        ("keep(loss)", 9, 9, ".detach()"),
        ("keep(loss.item())", 9, 16, ""),
        ("x.detach()", 1, 10, ".clone()"),
        ("measure()", 0, 0, "with torch.inference_mode():\n    "),
        ("loss.backward(create_graph=True)", 14, 31, ""),
    ],
)
def test_added_or_removed_graph_cuts_are_detected(source, start, end, new):
    assert cuts_graph(SourceText(source), Fix((Edit(start, end, new),), safe=True))


def test_moved_lines_and_similar_words_do_not_cut_the_graph():
    text = SourceText("a = f(b).item()\nstep()\n")
    edits = text.move_statement(ast.parse(text.source).body[0], after=ast.parse(text.source).body[1])
    assert edits
    assert not cuts_graph(text, Fix(edits, safe=True))
    for new in (
        "optimizer.zero_grad()",
        "torch.utils.data.DataLoader(x)",
        "x.float()",
        "losses.items()",
        "model.eval()",
    ):
        assert not cuts_graph(text, Fix((Edit(0, 0, new),), safe=True)), new


def test_the_joined_text_of_several_files_serves_the_nodes_of_each():
    first, second = SourceText("a = 1\n", 10), SourceText("b = (\n    2)\n# end", 100)
    joined = first.joined([second])
    node = ast.parse(second.source).body[0]
    ast.increment_lineno(node, 100)
    assert joined.segment(node) == "b = (\n    2)"
    assert [joined.line(number) for number in (10, 11, 12, 101, 103, 104)] == ["", "a = 1", "", "b = (", "# end", ""]
    edit = joined.insert_after(node, "c = 3")
    assert edit is not None
    assert edit.start == edit.end == len("a = 1\n\nb = (\n    2)\n")
