"""Facets: what must be equal for two cases to be comparable, and how that is said. In: `CaseRow`s. Out: rows
by facet, and titles without what goes without saying.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

from attnbench.analysis.rows import CaseRow

DECODE = "decode"
NUMBERS = re.compile(r"(\d+)")
ORDER = {
    "level": ("attention", "block", "model"),
    "architecture": ("decoder-only", "encoder-only", "encoder-decoder"),
    "mode": ("fwd", "bwd", "fwd_bwd", "decode"),
    "mask": ("causal", "full"),
}
MODE_WORDS = {"fwd": "forward", "bwd": "backward", "fwd_bwd": "forward + backward", "decode": "decode"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facet:
    """What must be equal for cases to be comparable: everything but implementation and length."""

    level: str
    """With the preset: ``block gpt2``."""
    architecture: str
    mode: str
    mask: str
    dtype: str
    device: str
    shape: str
    extras: str

    def sort_key(self) -> tuple[object, ...]:
        """Known words in their natural order, others after them by name."""
        return tuple(_rank(field.name, getattr(self, field.name)) for field in fields(self))


def facets_of(rows: Iterable[CaseRow]) -> dict[Facet, list[CaseRow]]:
    """Group rows by facet, facets in reading order.

    Suites may hold the tokens of a batch constant (``batch = tokens // seqlen``); then the tokens are the
    shape, not the batch.
    """
    groups: dict[Facet, list[CaseRow]] = defaultdict(list)
    for row in rows:
        groups[_facet(row)].append(row)
    facets: dict[Facet, list[CaseRow]] = {}
    for facet, members in groups.items():
        for batch_words, part in _by_batch(members).items():
            shape = ", ".join(word for word in (facet.shape, batch_words) if word)
            facets[replace(facet, shape=shape)] = part
    return dict(sorted(facets.items(), key=lambda item: item[0].sort_key()))


def constants_of(facets: Iterable[Facet]) -> dict[str, str]:
    """Return the facet fields that have the same value everywhere, with that value: said once instead of in
    every title.
    """
    known = list(facets)
    return {
        field.name: getattr(known[0], field.name)
        for field in fields(Facet)
        if known and len({getattr(facet, field.name) for facet in known}) == 1
    }


def untold_of(facets: Iterable[Facet]) -> set[str]:
    """Return the facet fields that a title does not need: constants, and shape or extras that follow from the
    rest.
    """
    known = list(facets)
    untold = set(constants_of(known))
    for name in ("extras", "shape"):
        titles = {facet_title(facet, untold | {name}) for facet in known}
        if len(titles) == len({facet_title(facet, untold) for facet in known}):
            untold.add(name)
    return untold


def facet_title(facet: Facet, without: Iterable[str] = ()) -> str:
    """Return what a facet is, leaving out the named fields."""
    left_out = set(without)
    parts = [
        MODE_WORDS.get(facet.mode, facet.mode) if field.name == "mode" else getattr(facet, field.name)
        for field in fields(facet)
        if field.name not in left_out
    ]
    return ", ".join(part for part in parts if part)


def group_title(facet: Facet, untold: Iterable[str]) -> str:
    """Return what tells a facet from the others, or its level, mode and mask if only a mask does."""
    title = facet_title(facet, untold)
    says_little = title in ("", facet.mask)
    return facet_title(facet, ("dtype", "device", "shape", "extras")) if says_little else title


def level_words(row: CaseRow) -> str:
    """Return a row's level, with its preset: ``block gpt2``."""
    return f"{row.level} {row.preset}".strip()


def _facet(row: CaseRow) -> Facet:
    heads = f"{row.num_heads} head{'' if row.num_heads == 1 else 's'}" if row.num_heads else ""
    if row.num_kv_heads != row.num_heads:
        heads += f" on {row.num_kv_heads}"
    width = f" × {row.head_dim}" if row.head_dim else ""
    if row.head_dim_v != row.head_dim:
        width += f"/{row.head_dim_v}"
    return Facet(
        level=level_words(row),
        architecture=row.architecture,
        mode=row.mode,
        mask=row.mask,
        dtype=row.dtype,
        device=row.device,
        shape=heads + width,
        extras=row.extras,
    )


def _by_batch(rows: Sequence[CaseRow]) -> dict[str, list[CaseRow]]:
    """Split rows by batch, unless batch × seqlen is the same throughout."""
    batches = {row.batch for row in rows}
    tokens = {row.batch * row.seqlen_q for row in rows}
    if len(batches) > 1 and len(tokens) == 1:
        return {f"{tokens.pop()} tokens": list(rows)}
    parts: dict[str, list[CaseRow]] = defaultdict(list)
    for row in rows:
        parts[f"batch {row.batch}" if row.batch else ""].append(row)
    return parts


def _rank(name: str, value: str) -> tuple[object, ...]:
    known = ORDER.get(name, ())
    first_word = value.split(" ")[0]
    numbers_as_such = [int(part) if part.isdecimal() else part for part in NUMBERS.split(value)]
    return known.index(first_word) if first_word in known else len(known), numbers_as_such
