"""Runs of whole models with known contents: the shares of three architectures, decoding, and a trained model
whose attention is exchanged.
"""

from collections.abc import Iterator
from typing import Any

from attnbench.measure.record import Record
from attnbench.run.store import Run
from tests.analysis.synthetic import make_record, make_run

SEQLENS = (128, 256, 512, 1024)
PRESETS = {
    "small-decoder": {"name": "causal"},
    "bert-base": {"name": "full"},
    "transformer-base": {"name": "causal"},
}
"""Each preset and the mask of its architecture."""
SLOPES = {"naive": 2.0, "sdpa": 1.6, "linear": 1.0}


def share_of(n: int, slope: float) -> float:
    """The attention's share of a model in which it grows with ``slope`` and the rest with 1, equal at 512."""
    attention, rest = (n / 512) ** slope, n / 512
    return attention / (attention + rest)


def transformers_run() -> Run:
    """Block and model, three architectures, three modes: shares that follow from `SLOPES`, and decoding."""
    return make_run(_model_records(), suite={"name": "transformers"})


def _model_records() -> Iterator[Record]:
    for level in ("block", "model"):
        for preset, mask in PRESETS.items():
            for mode in ("fwd", "fwd_bwd", "decode"):
                if mode == "decode" and preset == "bert-base":
                    continue
                for name, slope in SLOPES.items():
                    for n in SEQLENS:
                        yield _model_record(name, slope, n, level=level, preset=preset, mask=mask, mode=mode)


def _model_record(name: str, slope: float, n: int, **keys: Any) -> Record:
    share, decode = share_of(n, slope), keys["mode"] == "decode"
    constant = decode and name == "linear"
    return make_record(
        name,
        n,
        latency_ms=(n / 512) + (n / 512) ** slope,
        peak_bytes=2**20 * n,
        operand_bytes=2**21 * n,
        error=1e-6,
        shares=(share, share / 2, 0.0 if n == 128 else share),
        state_bytes=(2**16 if constant else 2**12 * n) if decode else None,
        semantics="linear-elu" if name == "linear" else "softmax",
        **(keys | ({"seqlen_q": 1} if decode else {})),
    )


def approximation_run() -> Run:
    """A trained decoder with exact attention (loss 1), windows (loss 1 + 8 / window) and linear (loss 4)."""
    keys: dict[str, Any] = {"level": "model", "preset": "small-decoder", "inputs": "text"}
    records = []
    for n in (256, 1024):
        records.append(make_record("sdpa", n, loss=1.0, latency_ms=n / 100, peak_bytes=n * 2**14, **keys))
        for window in (16, 64):
            mask = {"name": "sliding-window", "window_size": window, "causal": True}
            records.append(
                make_record("sliding-window", n, loss=1 + 8 / window, latency_ms=n / 200, mask=mask, **keys)
            )
        records.append(make_record("linear", n, loss=4.0, latency_ms=n / 300, semantics="linear-elu", **keys))
    return make_run(records, suite={"name": "approximation"})
