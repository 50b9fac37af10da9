"""Values as parts of case ids. In: plain data. Out: text in which different values differ."""

import json
import re
from functools import lru_cache
from urllib.parse import quote

_JSON_WORDS = ("true", "false", "null", "NaN", "Infinity")


@lru_cache(maxsize=1024)
def quoted(text: str, safe: str = "") -> str:
    """Percent-encode everything that an id gives a meaning to, but for the characters in ``safe``."""
    return quote(text, safe=safe)


def value_text(value: bool | int | float | str) -> str:
    """Return the value so that ``1``, ``1.0``, ``true`` and ``"1"`` differ; plain words stay bare."""
    if (
        isinstance(value, str)
        and re.fullmatch(r"[A-Za-z_][\w.-]*", value, re.ASCII)
        and value not in _JSON_WORDS
    ):
        return value
    return quoted(json.dumps(value))
