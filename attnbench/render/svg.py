"""Matplotlib's SVG made fit for a page. In: a standalone document. Out: an ``<svg>`` element whose colours
follow the page's theme.
"""

import re
from functools import cache
from html import escape

from attnbench.render.styles import style_data

PROLOG = re.compile(r"^.*?(?=<svg)", re.DOTALL)
STYLE_SHEET = re.compile(r"<defs>\s*<style.*?</style>\s*</defs>", re.DOTALL)
METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
GROUP_ID = re.compile(r'<g id="[^"]*">')
ID = re.compile(r'(\bid="|xlink:href="#|url\(#)')
SIZE = re.compile(r'<svg ([^>]*?)width="[^"]*" height="[^"]*"')
STYLE = re.compile(r'style="[^"]*"')
FONT_FAMILY = re.compile(r"font-family: [^;\"]*")


def inline_svg(document: str, name: str, description: str) -> str:
    """Return the drawing as an element for an HTML page.

    ``name`` keeps its ids apart from those of other drawings; ``description`` is what a screen reader says.
    """
    body = METADATA.sub("", STYLE_SHEET.sub("", PROLOG.sub("", document)))
    body = ID.sub(rf"\g<1>{name}-", GROUP_ID.sub("<g>", body))
    body = STYLE.sub(lambda match: themed(match[0]), body)
    label = escape(description, quote=True).replace("\\", "\\\\")
    return SIZE.sub(rf'<svg role="img" aria-label="{label}" \g<1>', body, count=1).strip()


def themed(style: str) -> str:
    """Return a style attribute whose known colours are variables of the page and whose text has the page's
    font.
    """
    for value, variable in _variables().items():
        style = style.replace(value, variable)
    return FONT_FAMILY.sub("font-family: inherit", style)


def color_variables(scheme: str) -> str:
    """Return the CSS declarations of every colour of the style file for a ``light`` or ``dark`` page."""
    data = style_data()
    return " ".join(
        f"--{name}: {forms[scheme]};" for name, forms in {**data["colors"], **data["neutral"]}.items()
    )


@cache
def _variables() -> dict[str, str]:
    data = style_data()
    return {forms["light"]: f"var(--{name})" for name, forms in {**data["colors"], **data["neutral"]}.items()}
