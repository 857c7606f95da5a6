"""Tests of suppression comments: on a line, for a full statement, never in a string."""

from __future__ import annotations

import textwrap

import pytest

from trueloop.core.suppression import ALL_CODES, ignored_codes, matches_code


def read(text: str) -> dict[int, set[str]]:
    return {line: set(message) for line, message in ignored_codes(textwrap.dedent(text)).items()}


@pytest.mark.parametrize(
    ("comment", "message"),
    [
        ("# trueloop: ignore[GRD001]", {"GRD001"}),
        ("# trueloop: ignore[GRD001, los002]", {"GRD001", "LOS002"}),
        ("# trueloop: ignore[GRD]", {"GRD"}),
        ("#trueloop:ignore[GRD001]", {"GRD001"}),
        ("# trueloop: ignore", {""}),
        ("# trueloop: ignore, as the paper does it", {""}),
        ("# noqa: E501  # trueloop: ignore[GRD001] on purpose", {"GRD001"}),
        ("# trueloop: ignore[GRD001]  # trueloop: ignore[MEM001]", {"GRD001", "MEM001"}),
    ],
)
def test_a_comment_lists_codes(comment: str, message: set[str]):
    assert read(f"a = 1\nstep()  {comment}\nb = 2\n") == {2: message}


@pytest.mark.parametrize(
    "comment",
    [
        "# trueloop: ignored",
        "# trueloop: ignore-me",
        "# trueloop: ignore[]",
        "# trueloop: ignore[GRD001",
        "# trueloop is great",
        "# ignore[GRD001]",
    ],
)
def test_malformed_comments_suppress_nothing(comment: str):
    assert read(f"step()  {comment}\n") == {}


def test_a_string_is_not_a_comment():
    assert (
        read("""
        text = "# trueloop: ignore"
        page = '''
        step()  # trueloop: ignore[GRD001]
        '''
    """)
        == {}
    )


def test_a_comment_applies_to_the_full_statement():
    text = """\
        loss = criterion(
            output,  # trueloop: ignore[LOS001]
            target,
        )
        loss.backward()
        optimizer.step(
        )  # trueloop: ignore[GRD001]
    """
    assert read(text) == {**{line: {"LOS001"} for line in (1, 2, 3, 4)}, 6: {"GRD001"}, 7: {"GRD001"}}


def test_the_header_of_a_loop_is_a_separate_statement():
    assert read("for x in data:  # trueloop: ignore[DAT003]\n    step(x)\n    step(x)\n") == {1: {"DAT003"}}


def test_a_comment_on_its_own_line_suppresses_nothing():
    assert read("a = 1\n# trueloop: ignore\nstep()\n") == {}
    assert read("def f():\n    # trueloop: ignore\n    step()\n") == {}


def test_statements_on_one_line_share_its_comment():
    assert read("a = 1; step()  # trueloop: ignore[GRD001]\n") == {1: {"GRD001"}}


@pytest.mark.parametrize("broken", ["f(((\n", "'''never closed\n", "  a\n b\n", "%%time\n", "a = $\n", "\0", ""])
def test_invalid_python_is_read_up_to_the_error(broken: str):
    assert read("step()  # trueloop: ignore[GRD001]\n" + broken)[1] == {"GRD001"}


def test_no_newline_at_the_end():
    assert read("step()  # trueloop: ignore[GRD001]") == {1: {"GRD001"}}


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        ("GRD001", {"GRD001"}, True),
        ("GRD001", {"GRD"}, True),
        ("GRD001", {"GRD002", "MEM"}, False),
        ("GRD001", ALL_CODES, True),
        ("GRD001", set[str](), False),
    ],
)
def test_a_code_matches_itself_its_family_or_all_codes(code: str, message: set[str], expected: bool):
    assert matches_code(code, frozenset(message)) is expected
