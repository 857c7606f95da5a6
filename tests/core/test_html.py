from hypothesis import given
from hypothesis import strategies as st

from trueloop.core.html import Markup, element, section, table


def test_text_is_escaped_and_markup_is_not():
    assert element("p", "<b>", Markup("<i>x</i>"), 3) == "<p>&lt;b&gt;<i>x</i>3</p>"


def test_attributes_are_escaped_and_named_for_html():
    assert element("a", class_="x", aria_label='"> <script>') == (
        '<a class="x" aria-label="&quot;&gt; &lt;script&gt;"></a>'
    )


def test_tables_and_sections_escape_every_cell():
    page = table(["<th>"], [["<td>"]]) + section("<h2>", "<p>")
    for word in ("<th>", "<td>", "<p>"):
        assert f"&lt;{word[1:-1]}&gt;" in page


def test_invalid_characters_are_replaced():
    assert element("p", "a\x00b\udcff") == "<p>a\ufffdb\ufffd</p>"


@given(st.text())
def test_no_text_can_open_an_element(text):
    inside = element("p", text)[3:-4]
    assert "<" not in inside
    assert ">" not in inside
    assert inside.isprintable()
