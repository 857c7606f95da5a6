"""New and gone lines are told by number and by text."""

from trueloop.lab.teaching.production.differences import gone_lines, new_lines

BEFORE = "a = 1\n\nfor x in y:\n    f(x)\n"
NOW = "a = 1\nb = 2\n\nfor x in y:\n    g(x)\n\n"


def test_lines_that_were_not_there_are_new():
    assert new_lines(BEFORE, NOW) == [2, 5]
    assert new_lines("", "a\n\nb\n") == [1, 3]


def test_lines_that_are_there_no_more_are_gone():
    assert gone_lines(BEFORE, NOW) == ["    f(x)"]
    assert gone_lines(NOW, NOW) == new_lines(NOW, NOW) == []
