"""The training loop: its schedule, its clipping, and that it goes where the loss falls."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from attnbench.model.training import learning_rate, train


def test_the_rate_rises_to_its_peak_and_falls_to_a_twentieth():
    rates = [learning_rate(step, 400, 2.0) for step in range(400)]
    assert rates[:20] == [2.0 * (step + 1) / 20 for step in range(20)]
    assert max(rates) == rates[19] == rates[20] == 2.0
    assert all(a > b for a, b in pairwise(rates[20:]))
    assert rates[210] == pytest.approx(0.1 + 1.9 * 0.5)
    assert rates[-1] == pytest.approx(0.1, rel=1e-3)
    assert learning_rate(0, 1, 2.0) == 2.0


def test_the_first_step_is_adams_and_of_the_clipped_gradient():
    """AdamW's first step has the length of its rate, whatever the gradient; weights decay by rate / 10."""
    model = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, -2.0]]))
    norms, losses = [], []

    def loss_of(step: int) -> torch.Tensor:
        return (1000 * model.weight * torch.tensor([1.0, -1.0])).sum()

    def report(step: int, loss: float) -> None:
        losses.append((step, loss))

    handle = model.weight.register_post_accumulate_grad_hook(lambda weight: norms.append(weight.grad.norm()))
    train(model, loss_of, steps=1, peak_rate=0.5, report=report)
    handle.remove()
    assert losses == [(0, 5000.0)]
    assert norms[0] == pytest.approx(1000 * math.sqrt(2))
    assert model.weight.grad.norm() == pytest.approx(1, rel=1e-5)
    expected = torch.tensor([[3.0 * 0.95 - 0.5, -2.0 * 0.95 + 0.5]], dtype=torch.float64)
    assert torch.allclose(model.weight, expected, atol=1e-7)


def test_it_goes_where_the_loss_falls():
    torch.manual_seed(0)
    model, x = nn.Linear(4, 1), torch.randn(64, 4)
    wanted = x @ torch.tensor([[1.0], [-2.0], [0.5], [0.0]])
    losses: list[float] = []
    train(
        model,
        lambda step: (model(x) - wanted).square().mean(),
        steps=200,
        peak_rate=0.1,
        report=lambda step, loss: losses.append(loss),
    )
    assert len(losses) == 200
    assert losses[-1] < 0.01 < losses[0]
