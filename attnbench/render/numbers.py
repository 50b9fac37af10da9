"""Numbers as people read them. In: a value and its unit. Out: a short text; what is absent is a dash, never a
zero.
"""

import math
import re

from attnbench.analysis.facets import DECODE
from attnbench.analysis.metrics import Unit

ABSENT = "–"
LARGE_BYTES = re.compile(r"\b(\d{5,}) bytes\b")
BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def format_value(value: float | None, unit: Unit) -> str:
    """Return a value in its unit."""
    if value is None:
        return ABSENT
    if unit == "ms":
        return format_ms(value)
    if unit == "fraction":
        return format_percent(value)
    return format_bytes(value) if unit == "bytes" else format_number(value)


def format_ms(value: float) -> str:
    """Return a duration with three significant digits: ``412 µs``, ``3.14 ms``, ``1.20 s``."""
    for limit, factor, unit in ((1.0, 1e3, "µs"), (1e3, 1.0, "ms"), (float("inf"), 1e-3, "s")):
        if value < limit:
            return f"{three_digits(value * factor)} {unit}"
    return ABSENT


def format_bytes(value: float) -> str:
    """Return a byte count in binary units with three significant digits; below 1 KiB it is exact."""
    size, unit = float(value), 0
    while size >= 1024 and unit < len(BINARY_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} B" if unit == 0 else f"{three_digits(size)} {BINARY_UNITS[unit]}"


def with_units(text: str) -> str:
    """Return a sentence in which large byte counts also have a unit: ``2147483648 bytes (2.00 GiB)``."""
    return LARGE_BYTES.sub(lambda match: f"{match[0]} ({format_bytes(int(match[1]))})", text)


def format_number(value: float) -> str:
    """Return a plain number with two significant digits: ``0.012``, ``3.1e-7``."""
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e4:
        return f"{value:.2g}" if abs(value) < 100 else f"{value:.0f}"
    return shorten_exponent(f"{value:.1e}")


def format_perplexity(value: float | None) -> str:
    """Return a perplexity with at least four significant digits: close ones must stay apart."""
    if value is None:
        return ABSENT
    if value >= 1e5:
        return shorten_exponent(f"{value:.1e}")
    return f"{value:.{max(0, 3 - max(0, math.floor(math.log10(value))))}f}"


def format_loss(value: float | None, *, signed: bool = False) -> str:
    """Return a loss, or a difference of two with its sign, in nats: ``1.234``, ``+0.012``."""
    if value is None:
        return ABSENT
    text = f"{value:{'+' if signed else ''}.3f}"
    return "0.000" if float(text) == 0 else text.replace("-", "−")


def format_seqlen(seqlen: int) -> str:
    """Return a length as people write it: ``512``, ``4k`` for 4096."""
    return f"{seqlen // 1024}k" if seqlen >= 1024 and seqlen % 1024 == 0 else str(seqlen)


def format_length(seqlen: float | None) -> str:
    """Return a length that was computed, two significant digits: ``490``, ``12k``; a whole one as it is."""
    if seqlen is None:
        return ABSENT
    if seqlen == round(seqlen):
        return format_seqlen(round(seqlen))
    value, suffix = (seqlen / 1024, "k") if seqlen >= 1024 else (seqlen, "")
    return f"{float(f'{value:.2g}'):g}{suffix}"


def length_words(mode: str) -> str:
    """Return what the lengths of a mode are: in ``decode`` one token meets a context."""
    return "context length" if mode == DECODE else "sequence length"


def format_seqlens(seqlens: tuple[int, ...]) -> str:
    """Return several lengths: up to three of them one by one, more as a range."""
    if len(seqlens) > 3:
        return f"{format_seqlen(min(seqlens))} to {format_seqlen(max(seqlens))}"
    return ", ".join(format_seqlen(seqlen) for seqlen in seqlens)


def format_ratio(ratio: float) -> str:
    """Return how many times: ``1.04``, ``3.2``, ``47``."""
    if ratio < 1.1:
        return f"{ratio:.2f}"
    return f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}"


def format_percent(fraction: float | None) -> str:
    """Return a share in percent."""
    if fraction is None:
        return ABSENT
    percent = 100 * fraction
    return f"{percent:.0f} %" if percent >= 1 or percent == 0 else f"{percent:.1g} %"


def format_count(count: int) -> str:
    """Return a count with a decimal prefix: ``34.4 G``."""
    value, prefix = float(count), ""
    for larger in "kMGTPE":
        if value < 1000:
            break
        value, prefix = value / 1000, larger
    return f"{three_digits(value)} {prefix}".rstrip()


def three_digits(value: float) -> str:
    """Return at least three significant digits without an exponent: ``0.412``, ``31.4``, ``1234``."""
    if value == 0:
        return "0"
    decimals = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{decimals}f}" if value >= 1 else f"{value:.3g}"


def shorten_exponent(text: str) -> str:
    """Return ``1e-07`` as ``1e-7``."""
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}" if exponent else text


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Return ``1 case``, ``2 cases``; ``nouns`` where an s is not enough."""
    return f"{count} {noun}" if count == 1 else f"{count} {nouns or noun + 's'}"
