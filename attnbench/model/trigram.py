"""The model that counting gives: what a trained decoder has to be better than. In: bytes. Out: nats per byte.

``p(c | a, b) = w3 n(abc) / n(ab·) + w2 n(bc) / n(b·) + w1 (n(c) + 1) / (n + 256)``. The weights depend on how
often the context ``ab`` was seen (one set for each power of two) and are fitted by expectation-maximisation
on a tenth of the text that was kept out of the counts (Jelinek and Mercer 1980); then all of it is counted.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from attnbench.contract.errors import UsageError

_KEPT_OUT = 10
_BUCKETS = 64
_ITERATIONS = 30

Counts = NDArray[np.int64]
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class TrigramModel:
    """Counts ``[256]``, ``[256, 256]`` and ``[65536, 256]`` of one, two and three bytes, and the weights
    ``[buckets, 3]`` of their estimates.
    """

    ones: Counts
    twos: Counts
    threes: Counts
    weights: Numbers

    @classmethod
    def fit(cls, text: bytes) -> "TrigramModel":
        """Count and weigh.

        Raises:
            UsageError: ``text`` has fewer than 100 bytes.
        """
        if len(text) < 100:
            raise UsageError(f"text: a trigram model needs 100 bytes at least, not {len(text)}")
        cut = len(text) - len(text) // _KEPT_OUT
        counted = _counted(text[:cut], np.full((_BUCKETS, 3), 1 / 3))
        estimates, buckets = counted._estimates(text[cut:])
        weights = counted.weights.copy()
        for _ in range(_ITERATIONS):
            shares = weights[buckets] * estimates
            shares /= shares.sum(axis=1, keepdims=True)
            for bucket in np.unique(buckets):
                weights[bucket] = shares[buckets == bucket].mean(axis=0)
        return _counted(text, weights)

    def loss(self, text: bytes) -> float:
        """Mean of ``-ln p`` over the bytes of ``text`` from the third on, in nats."""
        estimates, buckets = self._estimates(text)
        return float(-np.log((self.weights[buckets] * estimates).sum(axis=1)).mean())

    @cached_property
    def _contexts(self) -> Counts:
        """How often each two bytes were followed by a third."""
        followed: Counts = self.threes.sum(axis=1)
        return followed

    def _estimates(self, text: bytes) -> tuple[Numbers, Counts]:
        """The three estimates ``[n, 3]`` of each byte from the third on, and the bucket of its context."""
        a, b, c = _triples(text)
        seen = self._contexts[256 * a + b]
        estimates = np.stack(
            [
                (self.ones[c] + 1) / (self.ones.sum() + 256),
                self.twos[b, c] / np.maximum(self.twos.sum(axis=1)[b], 1),
                self.threes[256 * a + b, c] / np.maximum(seen, 1),
            ],
            axis=1,
        )
        return estimates, np.log2(seen + 1).astype(np.int64)


def _triples(text: bytes) -> tuple[Counts, Counts, Counts]:
    codes = np.frombuffer(text, dtype=np.uint8).astype(np.int64)
    return codes[:-2], codes[1:-1], codes[2:]


def _counted(text: bytes, weights: Numbers) -> TrigramModel:
    a, b, c = _triples(text)
    return TrigramModel(
        ones=np.bincount(c, minlength=256),
        twos=np.bincount(256 * b + c, minlength=256**2).reshape(256, 256),
        threes=np.bincount(65536 * a + 256 * b + c, minlength=256**3).reshape(256**2, 256),
        weights=weights,
    )
