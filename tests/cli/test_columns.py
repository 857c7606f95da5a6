from rich.cells import cell_len

from trueloop.cli.columns import align_columns, terminal_width


def test_left_and_right():
    lines = list(align_columns(["name", "n"], [["a", "1"], ["longer", "20"]], right={1}))
    assert lines == ["name     n", "a        1", "longer  20"]


def test_without_titles():
    assert list(align_columns(["", ""], [["a", "b"]])) == ["a  b"]
    assert list(align_columns(["x"], [])) == ["x"]


def test_the_widest_column_gives_way_first():
    lines = list(align_columns(["a", "b"], [["x" * 60, "y" * 15]], most=40))
    assert lines[1] == "x" * 22 + "…  " + "y" * 15


def test_a_name_is_not_cut_while_something_else_can_be():
    lines = list(align_columns(["run", "why"], [["x" * 30, "y" * 25]], whole={0}, most=50))
    assert lines[1] == "x" * 30 + "  " + "y" * 17 + "…"


def test_at_last_the_line_is_cut():
    lines = list(align_columns(["a", "b", "c"], [["x" * 30] * 3], most=20))
    assert [len(line) for line in lines] == [20, 20]
    assert lines[1].endswith("…")


def test_wide_characters_count_twice_and_nothing_steers_the_terminal():
    lines = list(align_columns(["a", "b"], [["漢字漢字漢字漢字漢字", "1"], ["\x1b[31m\n", "2"]], most=18))
    assert {cell_len(line) for line in lines[1:2]} <= set(range(19))
    assert lines[2].startswith("\ufffd[31m\ufffd")


def test_the_width_is_that_of_the_terminal_or_none(monkeypatch):
    assert terminal_width() == 80
    monkeypatch.delenv("COLUMNS")
    assert terminal_width() is None
