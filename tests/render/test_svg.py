"""Drawings in a page: what they draw stays, what they repeat is said once."""

import re
from xml.etree import ElementTree as ET

from attnbench.render.svg import PageDrawings

SVG = "{http://www.w3.org/2000/svg}"
DOCUMENT = """<?xml version="1.0"?>
<svg xmlns:xlink="http://www.w3.org/1999/xlink" xmlns="http://www.w3.org/2000/svg" width="9pt" height="9pt"
 viewBox="0 0 9 9" version="1.1">
 <metadata>who and when</metadata>
 <defs><style type="text/css">*{stroke-linecap: butt}</style></defs>
 <g id="axes_1"><g id="line_1">
  <defs><path id="m0123456789" d="M 0 0
L 0 3.123456
" style="stroke: #0000ff; stroke-width: 0.8"/></defs>
  <g clip-path="url(#p0123456789)">
   <use xlink:href="#m0123456789" x="1.234567" y="2" style="stroke: #0000ff; stroke-width: 0.8"/>
   <use xlink:href="#m0123456789" x="5" y="6.5" style="stroke: #0000ff; stroke-width: 0.8"/>
  </g>
  <text style="font-family: 'DejaVu Sans', sans-serif" transform="rotate(-0 1 2)">a &amp; &lt;b&gt;</text>
  <text transform="rotate(-90 1.23456 2)" style="font-family: 'DejaVu Sans', sans-serif">c</text>
 </g></g>
 <defs><clipPath id="p0123456789"><rect x="0" y="0" width="9" height="9"/></clipPath></defs>
</svg>"""


def test_shapes_places_and_texts_stay():
    root = ET.fromstring(PageDrawings().element(DOCUMENT, "latency-0", 'about "a" & <b>'))
    assert (root.get("aria-label"), root.get("viewBox"), root.get("width")) == (
        'about "a" & <b>',
        "0 0 9 9",
        None,
    )
    (path,) = root.iter("path")
    assert path.get("d") == "M 0 0 L 0 3.12"
    uses = list(root.iter("use"))
    assert [(use.get("x"), use.get("y")) for use in uses] == [("1.23", "2"), ("5", "6.5")]
    assert {use.get("href") for use in uses} == {f"#{path.get('id')}"}
    (clip,) = root.iter("clipPath")
    assert [group.get("clip-path") for group in root.iter("g")] == [f"url(#{clip.get('id')})"]
    assert [(text.text, text.get("transform")) for text in root.iter("text")] == [
        ("a & <b>", None),
        ("c", "rotate(-90 1.23 2)"),
    ]
    assert not list(root.iter("metadata"))
    assert not list(root.iter("style"))


def test_drawings_of_a_page_share_looks_and_nothing_else():
    drawings = PageDrawings()
    first, second = (drawings.element(DOCUMENT, name, "") for name in ("a-0", "b-0"))
    assert re.findall(r'class="([^"]*)"', first) == re.findall(r'class="([^"]*)"', second)
    assert drawings.css() == (
        "svg .d0 { stroke: #0000ff; stroke-width: 0.8 }\nsvg .d1 { font-family: inherit }"
    )
    ids = [re.findall(r'id="([^"]*)"', drawing) for drawing in (first, second)]
    assert not set(ids[0]) & set(ids[1])
    assert len(first) < len(DOCUMENT) * 0.7
