"""What joins later moves nothing: three toys, each one file that no other file knows of."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attnbench.contract.api import attend
from attnbench.contract.discovery import get_implementation
from attnbench.contract.errors import UsageError
from attnbench.contract.evaluation import baseline, truth
from attnbench.contract.implementation import refusals
from attnbench.contract.masks import Full
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import SOFTMAX
from attnbench.measure.agreement import grade
from attnbench.model.builder import build_block, build_model
from attnbench.model.text import stdlib_tokens
from tests.toys.global_mask import GlobalWindow

TOYS = Path(__file__).parents[1] / "toys"
LOW_RANK = str(TOYS / "low_rank.py")
LSTM = str(TOYS / "lstm_mixer.py")


def draw(problem: Problem) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    p, generator = problem, torch.Generator().manual_seed(0)
    dtype = getattr(torch, p.dtype)
    q = torch.randn(p.batch, p.num_heads, p.seqlen_q, p.head_dim, generator=generator)
    k = torch.randn(p.batch, p.num_kv_heads, p.seqlen_k, p.head_dim, generator=generator)
    v = torch.randn(p.batch, p.num_kv_heads, p.seqlen_k, p.head_dim_v, generator=generator)
    return q.to(dtype), k.to(dtype), v.to(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("key_lengths", [None, (50, 0)], ids=["whole", "key-lengths"])
def test_low_rank_agrees_with_its_own_truth(dtype, key_lengths):
    toy = get_implementation(LOW_RANK)
    problem = Problem(
        seqlen_q=65,
        batch=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        head_dim_v=8,
        dtype=dtype,
        mask=Full(),
        key_lengths=key_lengths,
    )
    assert refusals(toy, problem) == []
    q, k, v = draw(problem)
    if key_lengths:
        k[0, :, 50:], v[1] = torch.nan, torch.nan
    assert toy.init_params is not None
    params = toy.init_params(problem, torch.Generator().manual_seed(1))
    params = {name: value.to(q.dtype) for name, value in params.items()}
    out = attend(q, k, v, implementation=LOW_RANK, mask="full", key_lengths=key_lengths, params=params).out
    reference = truth(toy.semantics, q, k, v, problem=problem, params=params)
    plain = baseline(toy.semantics, q, k, v, problem=problem, params=params)
    assert grade(out, reference.out, plain.out).verdict == "ok"


def test_low_rank_gradients_agree_with_its_own_truth():
    toy = get_implementation(LOW_RANK)
    problem = Problem(seqlen_q=33, num_heads=2, head_dim=16, dtype="float64", mask=Full(), mode="fwd_bwd")
    q, k, v = (x.requires_grad_() for x in draw(problem))
    assert toy.init_params is not None
    params = {n: x.double() for n, x in toy.init_params(problem, torch.Generator().manual_seed(1)).items()}
    out = toy.attention(q, k, v, problem=problem, params=params).out
    grad_out = torch.ones_like(out)
    out.backward(grad_out)
    reference = truth(toy.semantics, q, k, v, problem=problem, params=params, grad_out=grad_out)
    for actual, wanted in ((q.grad, reference.dq), (k.grad, reference.dk), (v.grad, reference.dv)):
        torch.testing.assert_close(actual, wanted, rtol=1e-12, atol=1e-12)


def test_low_rank_is_an_approximation_of_softmax_and_not_an_error():
    toy = get_implementation(LOW_RANK)
    assert toy.semantics.approximates is SOFTMAX
    problem = Problem(seqlen_q=64, num_heads=2, head_dim=16, mask=Full())
    q, k, v = draw(problem)
    # With a projection that keeps every position, low rank is no approximation at all.
    whole = {"project_k": torch.eye(64), "project_v": torch.eye(64)}
    exact = truth(SOFTMAX, q, k, v, problem=problem).out
    out = toy.attention(q, k, v, problem=problem, params=whole).out
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=2e-6)
    assert toy.init_params is not None
    few = toy.init_params(problem, torch.Generator().manual_seed(1))
    assert few["project_k"].shape == (16, 64)
    assert (toy.attention(q, k, v, problem=problem, params=few).out.double() - exact).abs().max() > 0.1


def test_low_rank_is_refused_what_it_does_not_list():
    toy = get_implementation(LOW_RANK)
    with pytest.raises(UsageError, match="low-rank does not support mask:causal"):
        build_model("tiny", toy)
    with pytest.raises(UsageError, match=r"low-rank has no option 'rnak' \(did you mean 'rank'\?\)"):
        build_model("tiny", toy, mask="full", options={"rnak": 8})


def test_low_rank_learns_its_projections_in_a_model():
    model = build_model("tiny", LOW_RANK, mask="full", options={"rank": 8}, max_seqlen=48)
    core = {name: p for name, p in model.named_parameters() if ".core." in name}
    assert sorted(core) == [
        f"decoder.layers.{i}.mixer.core.project_{x}" for i in range(2) for x in ("k", "v")
    ]
    assert all(p.shape == (8, 48) for p in core.values())
    plain = build_model("tiny", "naive", mask="full", max_seqlen=48)
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)), name
    model(stdlib_tokens(2, 48)).square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in core.values())


def test_lstm_is_what_torch_computes():
    block = build_block("tiny", LSTM, dtype="float64")
    x = torch.randn(2, 9, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mixed, state = block.mixer(x)
    assert state is None
    hidden = cell = x.new_zeros(2, 32)
    p = {name.rpartition(".")[2]: parameter for name, parameter in block.mixer.named_parameters()}
    for t in range(9):
        gates = (
            x[:, t] @ p["weight_ih_l0"].T + p["bias_ih_l0"] + hidden @ p["weight_hh_l0"].T + p["bias_hh_l0"]
        )
        i, f, g, o = gates.chunk(4, dim=1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
        torch.testing.assert_close(mixed[:, t], hidden, rtol=0, atol=1e-14)


def test_lstm_decodes_in_pieces_and_ignores_padding():
    model = build_model("tiny", LSTM, dtype="float64")
    tokens = stdlib_tokens(2, 20)
    with torch.no_grad():
        whole = model(tokens)
        state = model.new_state(2, 20)
        pieces = [model(tokens[:, a:b], state=state) for a, b in ((0, 7), (7, 8), (8, 20))]
        torch.testing.assert_close(torch.cat(pieces, dim=1), whole, rtol=0, atol=1e-12)
        padded = tokens.clone()
        padded[1, 5:] = 0
        state = model.new_state(2, 21)
        first = model(padded, lengths=[20, 5], state=state)
        torch.testing.assert_close(first[1, :5], whole[1, :5], rtol=0, atol=1e-12)
        step = model(torch.stack([tokens[0, :1], tokens[1, 5:6]]), state=state)
        torch.testing.assert_close(step[1, 0], whole[1, 5], rtol=0, atol=1e-12)
        assert model.generate(padded, 3, lengths=[20, 5]).shape == (2, 3)


def test_lstm_leaves_the_rest_of_the_model_and_the_callers_random_numbers_alone():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    model, again = build_model("tiny", LSTM), build_model("tiny", LSTM)
    assert torch.equal(torch.rand(3), expected)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name)), name
    plain = dict(build_model("tiny", "naive").named_parameters())
    shared = [name for name, _ in model.named_parameters() if ".mixer." not in name]
    assert len(shared) > 10
    assert all(torch.equal(plain[name], model.get_parameter(name)) for name in shared)


def test_lstm_is_refused_what_it_cannot_do():
    with pytest.raises(UsageError, match="lstm does not support mask:full"):
        build_model("tiny", LSTM, mask="full")
    x = torch.zeros(1, 1, 4, 8)
    with pytest.raises(UsageError, match="no q/k/v core"):
        attend(x, x, x, implementation=LSTM)


def test_global_mask_is_counted_by_its_predicate_alone():
    mask = GlobalWindow(window_size=3, num_global=2)
    n = 12
    by_hand = sum(abs(i - j) < 3 or i < 2 or j < 2 for i in range(n) for j in range(n))
    assert mask.pairs(n, n) == by_hand == 144 - (100 - (10 + 2 * 9 + 2 * 8))
    assert mask.row_intervals(8, n) == ((0, 2), (6, 11))
    assert mask.tiles(4, 4, n, n).visited == 9
    assert mask.tiles(2, 2, n, n).full < mask.tiles(2, 2, n, n).visited < 36
    assert mask.slug == "global-window-windowsize3-numglobal2"
    problem = Problem(seqlen_q=n, num_heads=4, batch=2, mask=mask)
    assert "mask:global-window" in problem.needs()
    assert problem.pairs() == 8 * by_hand


@pytest.mark.parametrize("name", ["naive", "sdpa"])
def test_global_mask_runs_through_implementations_that_take_every_mask(name):
    mask = GlobalWindow(window_size=5, num_global=3)
    problem = Problem(seqlen_q=65, batch=2, num_heads=4, num_kv_heads=2, head_dim=16, mask=mask)
    q, k, v = draw(problem)
    out = attend(q, k, v, implementation=name, mask=mask).out
    reference = truth(SOFTMAX, q, k, v, problem=problem)
    plain = baseline(SOFTMAX, q, k, v, problem=problem)
    assert grade(out, reference.out, plain.out).verdict == "ok"
    visible = torch.tensor([[mask.visible(0, 0, i, j) for j in range(65)] for i in range(65)])
    wide_k, wide_v = (x.double().repeat_interleave(2, dim=1) for x in (k, v))
    logits = (q.double() @ wide_k.transpose(-1, -2) / 4).masked_fill(~visible, -torch.inf)
    torch.testing.assert_close(reference.out, logits.softmax(-1) @ wide_v, rtol=0, atol=1e-12)


def test_global_mask_is_refused_by_implementations_that_do_not_list_it():
    mask = GlobalWindow(window_size=5, num_global=3)
    problem = Problem(seqlen_q=64, mask=mask)
    assert refusals(get_implementation("triton-flash"), problem) == [
        "triton-flash does not support mask:global-window"
    ]
    with pytest.raises(UsageError, match="mask:global-window"):
        build_model("tiny", "triton-flash", mask=mask)


def test_global_mask_is_a_models_mask_too():
    tokens = stdlib_tokens(1, 40)
    model = build_model("tiny", "naive", mask=GlobalWindow(window_size=64, num_global=1))
    full = build_model("tiny", "naive", mask="full")
    narrow = build_model("tiny", "naive", mask=GlobalWindow(window_size=2, num_global=1))
    with torch.no_grad():
        assert torch.equal(model(tokens), full(tokens))
        assert (narrow(tokens) - full(tokens)).abs().max() > 0.1


ENTRY_POINTS = """
[attnbench.implementations]
low-rank = toy_low_rank:IMPLEMENTATION
lstm = toy_lstm_mixer:IMPLEMENTATION

[attnbench.masks]
global-window = toy_global_mask:GlobalWindow
"""

USER = """
import torch, attnbench
from attnbench.contract.masks import mask_from
found = attnbench.find_implementations()
assert {"low-rank", "lstm", "naive"} <= set(found), sorted(found)
mask = mask_from({"name": "global-window", "window_size": 4, "num_global": 1})
x = torch.randn(1, 2, 32, 8)
assert attnbench.attend(x, x, x, mask=mask).out.shape == x.shape
params = found["low-rank"].init_params(attnbench.Problem(seqlen_q=32), torch.Generator())
assert attnbench.attend(x, x, x, implementation="low-rank", mask="full", params=params).out.shape == x.shape
tokens = torch.arange(16)[None]
assert attnbench.build_model("tiny", "lstm")(tokens).shape == (1, 16, 256)
assert attnbench.build_model("tiny", "low-rank", mask="full")(tokens).shape == (1, 16, 256)
print("joined")
"""


def test_all_three_join_through_entry_points_of_another_package(tmp_path):
    for toy in TOYS.glob("*.py"):
        (tmp_path / f"toy_{toy.name}").write_text(toy.read_text(encoding="utf-8"), encoding="utf-8")
    metadata = tmp_path / "toys-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-c", USER],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "joined\n", done.stderr
