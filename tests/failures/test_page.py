"""Tests of `failures.page`."""

from __future__ import annotations

from trueloop.failures.page import first_reference_url, join_wrapped_lines, render_markdown, split_sections

PAGE = """Something is wrong.

What you see
    The loss
    falls.

References
    A book, without an address.
    torch.nn.Module, https://docs.pytorch.org/module.html.
    Another, https://arxiv.org/abs/1803.08494
"""


def test_split_sections_at_the_headings():
    doc = (
        "One.\n\nMore of it,\nin two lines.\n\nWhat you see\n    A.\n\n        code\n    Fixed by hand.\nFix\n    B.\n"
    )
    assert list(split_sections(doc)) == [
        ("", "One.\n\nMore of it,\nin two lines."),
        ("What you see", "A.\n\n    code\nFixed by hand."),
        ("Fix", "B."),
    ]


def test_lines_of_a_paragraph_are_joined():
    text = "One\nline.\n\nAnother:\n- first\n  of all\n- second\n\n    code\n    more\n"
    assert join_wrapped_lines(text) == "One line.\n\nAnother:\n- first\n  of all\n- second\n\n    code\n    more"


def test_each_reference_keeps_its_own_line():
    text = "A, https://a.org/x.\nB, of two\nlines, https://b.org/y\nC, arXiv:1711.05101\nD, without one.\n"
    assert join_wrapped_lines(text) == (
        "A, https://a.org/x.\nB, of two lines, https://b.org/y\nC, arXiv:1711.05101\nD, without one."
    )


def test_markdown_has_headings_and_joined_paragraphs():
    assert render_markdown(PAGE).endswith("module.html.\n- Another, https://arxiv.org/abs/1803.08494")
    assert render_markdown(PAGE).startswith(
        "Something is wrong.\n\n### What you see\n\nThe loss falls.\n\n### References\n\n- A"
    )


def test_the_first_reference_with_an_address_is_returned():
    assert first_reference_url(PAGE) == "https://docs.pytorch.org/module.html"
    assert first_reference_url("One.\n\nWhat you see\n    See https://example.org.\n\nReferences\n    None.\n") is None
