from trueloop.core.html import CONTENT_POLICY, Markup, element
from trueloop.runs.html_page import render_page


def test_a_page_is_self_contained_and_escapes_its_title():
    text = render_page("</title><script>", [element("p", "<b>"), Markup()])
    assert text.startswith("<!DOCTYPE html>\n<html")
    assert CONTENT_POLICY in text.replace("&#x27;", "'")
    assert "<title>&lt;/title&gt;&lt;script&gt;</title>" in text
    assert "<main><p>&lt;b&gt;</p></main>" in text
    assert "<script" not in text
