from __future__ import annotations

from trueloop.engines.report.markup import Markup, element, section


def test_text_is_escaped_and_markup_is_not():
    assert element("p", "<b>", Markup("<i>x</i>"), 3) == "<p>&lt;b&gt;<i>x</i>3</p>"


def test_attributes_are_escaped_and_named_as_in_html():
    assert element("p", class_='a"b', text_anchor="end") == '<p class="a&quot;b" text-anchor="end"></p>'


def test_what_no_document_may_hold_is_replaced():
    assert element("p", "a\x00b\udcff") == "<p>a\ufffdb\ufffd</p>"


def test_a_section_has_its_title():
    assert section("A & B", "x") == "<section><h2>A &amp; B</h2>x</section>"
