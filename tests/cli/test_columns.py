from rich.cells import cell_len

from trueloop.cli.columns import align_columns, terminal_width


def test_columns_are_aligned():
    lines = list(align_columns(["name", "n"], [["a", "1"], ["longer", "20"]], right={1}))
    assert lines == ["name     n", "a        1", "longer  20"]


def test_empty_titles_are_omitted():
    assert list(align_columns(["", ""], [["a", "b"]])) == ["a  b"]
    assert list(align_columns(["x"], [])) == ["x"]


def test_the_widest_column_is_cut_first():
    lines = list(align_columns(["a", "b"], [["x" * 60, "y" * 15]], width=40))
    assert lines[1] == "x" * 22 + "…  " + "y" * 15


def test_an_uncut_column_is_not_cut():
    lines = list(align_columns(["run", "why"], [["x" * 30, "y" * 25]], never_cut={0}, width=50))
    assert lines[1] == "x" * 30 + "  " + "y" * 17 + "…"


def test_a_line_that_is_still_too_long_is_cut():
    lines = list(align_columns(["a", "b", "c"], [["x" * 30] * 3], width=20))
    assert [len(line) for line in lines] == [20, 20]
    assert lines[1].endswith("…")


def test_wide_characters_count_twice_and_control_characters_are_replaced():
    lines = list(align_columns(["a", "b"], [["漢字漢字漢字漢字漢字", "1"], ["\x1b[31m\n", "2"]], width=18))
    assert {cell_len(line) for line in lines[1:2]} <= set(range(19))
    assert lines[2].startswith("\ufffd[31m\ufffd")


def test_the_width_is_none_without_a_terminal(monkeypatch):
    assert terminal_width() == 80
    monkeypatch.delenv("COLUMNS")
    assert terminal_width() is None
