"""Tables of positions: values by hand, rotation, casts that leave them exact, copies."""

import copy
import math
import pickle
from typing import Any

import pytest
import torch

from attnbench.model.builder import build_model
from attnbench.model.positions import PositionTable, rotary_table, rotate, sinusoidal_table


@pytest.mark.parametrize("dim", [1, 2, 5, 6])
def test_sinusoids_of_odd_and_even_width(dim):
    table = sinusoidal_table(4, dim)
    assert table.shape == (4, dim)
    assert table[0].tolist() == [0.0, 1.0, 0.0, 1.0, 0.0, 1.0][:dim]
    for p in range(4):
        for column in range(dim):
            angle = p / 10000 ** ((column - column % 2) / dim)
            wanted = math.cos(angle) if column % 2 else math.sin(angle)
            assert table[p, column] == pytest.approx(wanted, abs=1e-15)


def test_rotary_phase_of_a_known_pair():
    cos, sin = rotary_table(1858, 32, 10000.0)[1857].chunk(2)
    phase = 1857 * 10000 ** (-2 / 32)
    assert phase == pytest.approx(1044.2678, abs=1e-4)
    assert cos[1] == pytest.approx(math.cos(phase), abs=1e-12)
    assert sin[1] == pytest.approx(math.sin(phase), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_casting_a_model_leaves_its_rotary_table_exact(dtype):
    model = build_model("tiny", "sdpa", head_dim=32, num_layers=1).to(dtype)
    mixer: Any = model.decoder.layers[0].mixer
    rows = mixer.table.rows((0,), 4096, like=torch.zeros(1, dtype=dtype))
    assert rows.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    positions = torch.arange(4096, dtype=torch.float64)
    exact = torch.outer(positions, 10000 ** (-torch.arange(0, 32, 2, dtype=torch.float64) / 32)).cos()
    assert (rows[:, :16].double() - exact).abs().max() < 1e-7
    assert not list(model.buffers())


def test_rotation_keeps_lengths_and_depends_on_distance_alone():
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64, generator=generator)
    table = rotary_table(200, 16, 10000.0)

    def score(at_q, at_k):
        return (rotate(q, table[at_q : at_q + 1]) * rotate(k, table[at_k : at_k + 1])).sum().item()

    assert rotate(q, table[150:151]).norm().item() == pytest.approx(q.norm().item(), rel=1e-14)
    assert score(7, 3) == pytest.approx(score(187, 183), abs=1e-12)
    assert score(7, 3) != pytest.approx(score(7, 4), abs=1e-3)


def test_rotation_turns_pairs_half_a_head_apart():
    x = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64).view(1, 1, 1, 4)
    turned = rotate(x, rotary_table(3, 4, 100.0)[2:]).flatten().tolist()
    assert turned == pytest.approx([math.cos(2), 0.0, math.sin(2), 0.0], abs=1e-15)


def test_rows_start_where_each_batch_row_stands():
    table = PositionTable(lambda n, device: torch.arange(n, dtype=torch.float64, device=device)[:, None])
    like = torch.zeros(1)
    assert table.rows((2, 2), 3, like=like).flatten().tolist() == [2, 3, 4]
    assert table.rows((0, 5), 2, like=like)[..., 0].tolist() == [[0, 1], [5, 6]]
    assert table.rows((100,), 1, like=like).item() == 100
    assert table.rows((), 2, like=like).flatten().tolist() == [0, 1]


def test_a_table_made_in_inference_mode_serves_a_later_backward_pass():
    model = build_model("tiny", "sdpa")
    tokens = torch.arange(8)[None]
    with torch.inference_mode():
        model(tokens)
    model(tokens).sum().backward()
    gradients = [weight.grad for weight in model.parameters()]
    assert all(gradient is not None and torch.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("position", ["rope", "sinusoidal", "learned"])
def test_a_model_can_be_copied_and_pickled(position):
    model = build_model("tiny", "naive", position=position)
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        expected = model(tokens)
        assert torch.equal(copy.deepcopy(model)(tokens), expected)
        assert torch.equal(pickle.loads(pickle.dumps(model))(tokens), expected)
