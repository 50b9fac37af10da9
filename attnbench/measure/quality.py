"""How well a trained model predicts text that it was never trained on. In: a workload. Out: the section.

The text comes along with the weights, and its passages are the same for every seed, machine and
implementation: two losses differ by what was exchanged in the model, and by nothing else.
"""

import hashlib
import math

import torch

from attnbench.model.losses import next_token_loss
from attnbench.model.presets import preset_weights
from attnbench.model.text import even_passages, sample_bytes

from .record import Quality
from .workload import Workload

TOKENS_READ = 2**16
"""As much as an implementation reads in seconds on one CPU core."""
STRETCH = 4096
"""Bytes that are read on end: whatever a case's length, up to this, the same bytes are predicted."""


def measure_quality(workload: Workload, unavailable: dict[str, str]) -> Quality | None:
    """Return the loss in nats per token, and ``exp`` of it, over passages as long as the case's sequences.

    Stretches of the text at even distances are cut into them. Each passage is whole, whatever ``key_lengths``
    the case has, and as many are read at once as the case has rows. What cannot be had goes to
    ``unavailable``, with the reason; below level ``model`` there is nothing to predict.
    """
    if workload.level != "model" or workload.module is None:
        return None
    reason = _why_not(workload)
    if reason is not None:
        unavailable["quality"] = reason
        return None
    text, seqlen = sample_bytes(), workload.case.seqlen_q
    count = max(min(TOKENS_READ, len(text)) // max(STRETCH, seqlen), 1)
    stretches = even_passages(text, count, max(STRETCH // seqlen, 1) * seqlen)
    passages = stretches.reshape(-1, seqlen).to(workload.device)
    with torch.no_grad():
        losses = [
            float(next_token_loss(workload.module(piece), piece)) * len(piece)
            for piece in passages.split(workload.case.batch)
        ]
    loss = math.fsum(losses) / len(passages)
    return Quality(
        loss=loss,
        perplexity=math.exp(loss),
        tokens=len(passages) * (seqlen - 1),
        text_hash=hashlib.sha256(text).hexdigest()[:16],
    )


def _why_not(workload: Workload) -> str | None:
    case = workload.case
    if preset_weights(case.preset or "") is None:
        return f"the weights of preset {case.preset!r} are drawn, not trained"
    if case.inputs != "text":
        return "inputs are random: a text is predicted where the case has inputs = 'text'"
    if case.mode != "fwd":
        return "measured in mode fwd: gradients and steps predict nothing else"
    if workload.implementation.execution(workload.problem) == "interpreted":
        return "runs under Triton's interpreter on the CPU: too slow for a text"
    longest = len(sample_bytes())
    if not 2 <= case.seqlen_q <= longest or case.batch < 1:
        return f"passages are of 2 to {longest} bytes, in batches of 1 or more"
    return None
