"""Training a model: a loss of one step in, the model's weights changed. AdamW, warm-up, cosine, clipping."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


def learning_rate(step: int, steps: int, peak: float) -> float:
    """The rate of ``step`` (from 0) of ``steps``: linear up to ``peak`` over a twentieth, then a cosine down
    to a twentieth of it.
    """
    warmup = max(steps // 20, 1)
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(steps - warmup, 1)
    return peak * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress)))


def train(
    model: nn.Module,
    loss_of: Callable[[int], Tensor],
    *,
    steps: int,
    peak_rate: float,
    report: Callable[[int, float], None],
) -> None:
    """Take ``steps`` steps of AdamW (arXiv 1711.05101) along the gradient of ``loss_of(step)``.

    Gradients are clipped to norm 1; ``report(step, loss)`` is told every loss, before its step is taken.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_rate, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, peak_rate)
        loss = loss_of(step)
        report(step, float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
