"""What a preset would take at a length, by formulas alone. In: a preset, a length, an implementation. Out:
`Estimate`: bytes of scores, cache and activations, FLOPs, and the least time on a device.

No tensor is made, no kernel compiled: attention's part is what implementations state (`Implementation.cost`),
the rest closed forms of the config (`model/sizes.py`).
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from attnbench.contract.errors import UsageError, nearest
from attnbench.contract.implementation import Implementation
from attnbench.contract.masks import SlidingWindow
from attnbench.contract.problem import DTYPE_BYTES
from attnbench.contract.state import state_bytes
from attnbench.device.datasheets import Datasheet, datasheets
from attnbench.device.rates import product_rate
from attnbench.model import sizes
from attnbench.model.presets import load_preset
from attnbench.model.sizes import Tokens
from attnbench.plan.case import Case, Mode

from .attentions import Attention, attentions_of, case_refusals

THE_FIVE = ("naive", "sdpa", "triton-flash", "sliding-window", "linear")
WINDOW = 4096
"""Keys that a query sees where an implementation takes a window alone (Mistral 7B, arXiv 2310.06825)."""
MOST_TOKENS = 1 << 24
"""Of a row: costs that are sums over tiles take seconds there."""
MODES: tuple[Mode, ...] = ("fwd", "fwd_bwd", "decode")
TOKEN_BYTES = 8
SQUARE = re.compile(r"n(²|\^2|\*\*2)")
"""How an implementation says that its memory grows with the score matrix."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What one call cannot do without."""

    attention_flops: int
    attention_compulsory_bytes: int
    """Of the attention cores of all layers, each by itself."""
    flops: int
    compulsory_bytes: int
    """Of the whole model: weights, tokens and state read once; logits, gradients, new state written once."""


class LowerBound(msgspec.Struct, frozen=True, kw_only=True):
    """The least time of a call on a device: the longer of two times, by the maker's peaks."""

    device: str
    mode: Mode
    part: str
    """``model`` or ``attention``."""
    matmul_ms: float
    memory_ms: float
    lower_bound_ms: float
    limit: str
    """``matmul`` or ``memory``, whichever takes longer."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one implementation at one length; None where it does not state them."""

    implementation: str
    seqlen: int
    mask: str
    unsupported: list[str] = []
    score_bytes_per_head: int | None = None
    """Of one head of one layer, as far as they are ever held."""
    score_bytes_per_layer: int | None = None
    score_bytes: int | None = None
    """Of all heads and layers: what a training step keeps at once."""
    cache_bytes: int | None = None
    """What decoding keeps of a context of this length: keys and values, or the implementation's own state."""
    inference_activation_bytes: int | None = None
    """Alive at the peak of a forward pass, beyond weights."""
    training_activation_bytes: int | None = None
    """What a forward pass keeps for its backward."""
    work: dict[Mode, Work] = {}
    bounds: list[LowerBound] = []


def estimate(
    preset: str,
    seqlen: int,
    implementation: str,
    *,
    dtype: str = "bfloat16",
    batch: int = 1,
    window: int = WINDOW,
    devices: tuple[str, ...] | None = None,
) -> Estimate:
    """Return what one implementation would take; nothing is computed.

    Args:
        preset: a name of ``presets.toml``.
        seqlen: tokens of a row; of a translation both of the source and of the target.
        implementation: a name, ``./file.py`` or ``package.module:ATTRIBUTE``.
        dtype: of weights and activations.
        batch: rows.
        window: of the mask, for an implementation that takes no other.
        devices: keys of ``devices.toml``; None: all of them.

    Raises:
        UsageError: an unknown preset, implementation, dtype or device, or an impossible shape.
    """
    if dtype not in DTYPE_BYTES:
        raise UsageError(
            f"unknown dtype {dtype!r}{nearest(dtype, DTYPE_BYTES)}; use {', '.join(DTYPE_BYTES)}"
        )
    for name, value in (("seqlen", seqlen), ("batch", batch), ("window", window)):
        if value < 1:
            raise UsageError(f"{name}: at least 1 is needed, not {value}")
    if seqlen > MOST_TOKENS:
        raise UsageError(f"seqlen: at most {MOST_TOKENS // 1024}k tokens, not {seqlen}")
    cases = _cases(preset, seqlen, implementation, dtype, batch, window)
    attentions = {mode: attentions_of(case) for mode, case in cases.items()}
    problem = attentions["fwd"][0].problem
    told: dict[str, Any] = {"implementation": implementation, "seqlen": seqlen, "mask": problem.mask.slug}
    refused = case_refusals(cases["fwd"], attentions["fwd"])
    if refused:
        return Estimate(**told, unsupported=refused)
    able = {mode: found for mode, found in attentions.items() if not case_refusals(cases[mode], found)}
    work = {mode: _work(cases[mode], found) for mode, found in able.items()}
    scores, heads = [_score_bytes(one) for one in able["fwd"]], problem.batch * problem.num_heads
    sheets = {key: datasheets()[key] for key in devices} if devices is not None else datasheets()
    return Estimate(
        **told,
        score_bytes_per_head=max(scores),
        score_bytes_per_layer=max(scores) * heads,
        score_bytes=sum(one.layers * heads * held for one, held in zip(able["fwd"], scores, strict=True)),
        cache_bytes=_cache_bytes(able.get("decode", ()), seqlen),
        inference_activation_bytes=_inference_bytes(cases["fwd"], able["fwd"]),
        training_activation_bytes=_training_bytes(cases["fwd_bwd"], able.get("fwd_bwd", ())),
        work=work,
        bounds=[
            bound
            for sheet in sheets.values()
            for mode, one in work.items()
            for bound in _bounds(sheet, mode, one, dtype)
        ],
    )


def device_keys(name: str) -> list[str]:
    """Return the keys of ``devices.toml`` that a name stands for: ``h100`` for each ``h100-…``.

    Raises:
        UsageError: none, with the nearest one and all there are.
    """
    known, wanted = datasheets(), " ".join(name.casefold().split())
    found = [
        key
        for key, sheet in known.items()
        if wanted in (key, sheet.title.casefold(), *(one.casefold() for one in sheet.names))
        or key.startswith(f"{wanted}-")
    ]
    if not found:
        families = dict.fromkeys(key.partition("-")[0] for key in known)
        close = nearest(wanted, [*known, *families])
        raise UsageError(f"unknown device {name!r}{close}; there are {', '.join(known)}")
    return found


def _cases(
    preset: str, seqlen: int, implementation: str, dtype: str, batch: int, window: int
) -> dict[Mode, Case]:
    """Return a case a mode, under the preset's own mask where the implementation takes it."""
    config = load_preset(preset)
    core = attentions_of(Case(implementation=implementation, seqlen_q=1))[0].implementation
    mask = config.self_mask.to_dict()
    if not _takes(core, mask["name"]) and _takes(core, "sliding-window"):
        mask = SlidingWindow(window, causal=mask["name"] == "causal").to_dict()
    return {
        mode: Case(
            implementation=implementation,
            level="model",
            preset=preset,
            mode=mode,
            mask=mask,
            seqlen_q=1 if mode == "decode" else seqlen,
            seqlen_k=seqlen,
            batch=batch,
            dtype=dtype,  # type: ignore[arg-type]  # one of DTYPE_BYTES
            device="cuda",
        )
        for mode in MODES
    }


def _takes(core: Implementation, mask: str) -> bool:
    return bool({"mask:*", f"mask:{mask}"} & core.supports)


def _score_bytes(attention: Attention) -> int:
    """Bytes of a head's scores, 0 where they are never held as a whole."""
    p = attention.problem
    held = SQUARE.search(attention.implementation.complexity.memory)
    return p.seqlen_q * p.seqlen_k * p.dtype_bytes if held else 0


def _tokens(case: Case) -> Tokens:
    translates = case.config().architecture == "encoder-decoder"
    source = case.batch * case.seqlen_k if translates and case.mode != "decode" else 0
    return Tokens(own=case.batch * case.seqlen_q, source=source, positions=case.seqlen_k)


def _work(case: Case, attentions: tuple[Attention, ...]) -> Work:
    config, tokens, w = case.config(), _tokens(case), DTYPE_BYTES[case.dtype]
    passes = 3 if case.mode == "fwd_bwd" else 1
    attention_flops = sum(one.layers * one.least_flops for one in attentions)
    weights = sizes.read_parameters(config, tokens) * w
    moved = weights + (tokens.own + tokens.source) * TOKEN_BYTES
    if case.mode == "fwd_bwd":
        moved += sizes.num_parameters(config) * w  # their gradients; logits need not leave the chip
    else:
        moved += sizes.logits_bytes(config, tokens, w)
    if case.mode == "decode":
        moved += sum(one.layers * _state_traffic(one) for one in attentions)
    return Work(
        attention_flops=attention_flops,
        attention_compulsory_bytes=sum(one.layers * one.least_bytes for one in attentions),
        flops=attention_flops + passes * sizes.dense_flops(config, tokens),
        compulsory_bytes=moved,
    )


def _state_traffic(attention: Attention) -> int:
    """Bytes of a state that a step reads and writes: of a step's compulsory bytes all but queries and out."""
    p = attention.problem
    queries = p.batch * p.num_heads * p.seqlen_q * (p.head_dim + p.head_dim_v) * p.dtype_bytes
    return max(0, attention.least_bytes - queries)


def _cache_bytes(attentions: tuple[Attention, ...], seqlen: int) -> int | None:
    states = [one.layers * state_bytes(one.implementation, one.problem, seqlen) for one in attentions]
    return sum(states) if states else None


def _inference_bytes(case: Case, attentions: tuple[Attention, ...]) -> int | None:
    cores = {one.place: one.cost.peak_bytes for one in attentions}
    known = {place: peak for place, peak in cores.items() if peak is not None}
    if len(known) < len(cores):
        return None
    return sizes.peak_bytes(case.config(), _tokens(case), DTYPE_BYTES[case.dtype], known)


def _training_bytes(case: Case, attentions: tuple[Attention, ...]) -> int | None:
    saved = [one.cost.saved_bytes for one in attentions]
    if not saved or None in saved:
        return None
    cores = sum(one.layers * (one.cost.saved_bytes or 0) for one in attentions)
    return cores + sizes.saved_bytes(case.config(), _tokens(case), DTYPE_BYTES[case.dtype])


def _bounds(sheet: Datasheet, mode: Mode, work: Work, dtype: str) -> Iterator[LowerBound]:
    rate = product_rate(sheet.matmul_flops_per_s, dtype)
    if rate is None:
        return
    parts = {
        "model": (work.flops, work.compulsory_bytes),
        "attention": (work.attention_flops, work.attention_compulsory_bytes),
    }
    for part, (flops, moved) in parts.items():
        matmul_ms, memory_ms = 1e3 * flops / rate[1], 1e3 * moved / sheet.memory_bytes_per_s
        yield LowerBound(
            device=sheet.key,
            mode=mode,
            part=part,
            matmul_ms=matmul_ms,
            memory_ms=memory_ms,
            lower_bound_ms=max(matmul_ms, memory_ms),
            limit="matmul" if matmul_ms >= memory_ms else "memory",
        )
