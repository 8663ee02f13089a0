from __future__ import annotations

import json
from html import unescape

from hypothesis import example, given
from hypothesis import strategies as st

from fedarena.display.drawing.html import Html, embed, join, script_safe, tag


@given(st.text())
@example('"><script>')
def test_text_and_attributes_come_back_as_they_went_in(text):
    element = tag("p", text, title=text)
    title, _, content = element.removeprefix('<p title="').partition('">')
    assert unescape(title) == text
    assert unescape(content.removesuffix("</p>")) == text
    assert not {"<", ">", '"'} & set(title)
    assert not {"<", ">"} & set(content.removesuffix("</p>"))


def test_elements_nest_and_only_finished_html_is_trusted():
    assert tag("p", tag("b", "<"), "<") == "<p><b>&lt;</b>&lt;</p>"
    assert join([Html("<b>"), "<b>"]) == "<b>&lt;b&gt;"
    assert tag("meta", http_equiv="a", class_="b") == '<meta http-equiv="a" class="b">'
    assert isinstance(tag("p"), Html)


@given(st.text())
@example("</script><!-- \u2028")
def test_json_stays_inside_its_script_and_means_the_same(text):
    safe = script_safe(json.dumps(text, ensure_ascii=False))
    assert "<" not in safe
    assert json.loads(safe) == text
    assert embed("script", safe, id="a") == f'<script id="a">{safe}</script>'
