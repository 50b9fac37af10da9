"""Matplotlib's SVG made fit for a page. In: standalone documents. Out: ``<svg>`` elements whose colours
follow the page's theme, and the style rules that they share.

A page holds a hundred drawings of the same few looks. What Matplotlib says at every marker (its style, the
long name of its shape, six decimals) is said once: drawings take less than half of the bytes.
"""

import re
from functools import cache
from xml.etree import ElementTree as ET

from attnbench.render.styles import style_data

_NAMESPACE = re.compile(r"^\{[^}]*\}")
_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_REFERENCE = re.compile(r"#([\w.-]+)")
_FONT_FAMILY = re.compile(r"font-family: [^;\"]*")
_UNTURNED = re.compile(r"^rotate\(-?0 ")
_DROPPED = ("metadata", "style")
_DECIMALS = 2
"""Of a point, a seventy-second of an inch."""


class PageDrawings:
    """The drawings of one page, which share their styles."""

    def __init__(self) -> None:
        """Begin a page without drawings."""
        self._classes: dict[str, str] = {}

    def element(self, document: str, name: str, description: str) -> str:
        """Return the drawing as an element for an HTML page.

        ``name`` keeps its ids apart from those of other drawings; ``description`` is what a screen reader
        says, empty where the drawing only repeats what stands beside it.
        """
        root = ET.fromstring(document)
        for attribute in ("width", "height", "version"):
            root.attrib.pop(attribute, None)
        self._simplify(root, _Ids(name))
        spoken = {"role": "img", "aria-label": description} if description else {"aria-hidden": "true"}
        root.attrib = spoken | root.attrib
        return ET.tostring(root, encoding="unicode", short_empty_elements=True)

    def css(self) -> str:
        """Return the rules of the drawings made until now; they outrank rules of the page before them."""
        return "\n".join(f"svg .{name} {{ {style} }}" for style, name in self._classes.items())

    def _simplify(self, element: ET.Element, ids: "_Ids") -> None:
        element.tag = _NAMESPACE.sub("", element.tag)
        element.attrib = {
            name: value
            for raw, text in element.items()
            for name, value in self._attribute(element, raw, text, ids)
        }
        if element.tag != "text":
            element.text = None
        kept: list[ET.Element] = []
        for child in element:
            child.tail = None
            self._simplify(child, ids)
            if child.tag == "g" and not child.attrib:
                kept += child
            elif child.tag not in _DROPPED and (len(child) or child.attrib or child.text):
                kept.append(child)
        element[:] = kept

    def _attribute(self, element: ET.Element, raw: str, text: str, ids: "_Ids") -> list[tuple[str, str]]:
        name = _NAMESPACE.sub("", raw)
        if name == "id":
            return [] if element.tag == "g" else [(name, ids.of(text))]
        if name == "style":
            return [("class", self._class(themed(text)))]
        if name == "transform" and _UNTURNED.match(text):
            return []
        if "#" in text:
            text = _REFERENCE.sub(lambda match: "#" + ids.of(match[1]), text)
        elif name in ("d", "x", "y", "transform", "points"):
            text = _NUMBER.sub(lambda match: f"{float(match[0]):.{_DECIMALS}f}", " ".join(text.split()))
        return [(name, text)]

    def _class(self, style: str) -> str:
        return self._classes.setdefault(style, f"d{len(self._classes)}")


class _Ids:
    """Short names for what a drawing refers to, unlike those of other drawings."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._known: dict[str, str] = {}

    def of(self, name: str) -> str:
        return self._known.setdefault(name, f"{self._prefix}-{len(self._known)}")


def themed(style: str) -> str:
    """Return a style attribute whose known colours are variables of the page and whose text has the page's
    font.
    """
    for value, variable in _variables().items():
        style = style.replace(value, variable)
    return _FONT_FAMILY.sub("font-family: inherit", style)


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
