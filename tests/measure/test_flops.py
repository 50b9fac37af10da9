"""FLOPs: closed forms, PyTorch's counter as the oracle, and the cases where that counter is wrong."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from attnbench.contract.cost import Cost, compulsory_bytes, useful_flops
from attnbench.contract.implementation import AttentionOutput, Complexity, Implementation
from attnbench.contract.semantics import SOFTMAX
from attnbench.measure.counting import count_call
from attnbench.measure.flop_counter import FlopCounter
from attnbench.measure.flops import NOT_STATED, NothingCountedError, counted_flops, measure_flops
from attnbench.measure.memory import predict_counts
from attnbench.measure.workload import build_workload
from attnbench.model.losses import next_token_loss
from attnbench.plan.case import Case


def elementwise(q, k, v, *, problem, params=None) -> AttentionOutput:
    """Attend without a single matmul: no counter of matmuls sees it."""
    scores = (q.unsqueeze(3) * k.unsqueeze(2)).sum(-1) * problem.softmax_scale
    return AttentionOutput((scores.softmax(-1).unsqueeze(-1) * v.unsqueeze(2)).sum(3))


ELEMENTWISE = Implementation(
    name="elementwise",
    summary="for these tests",
    paper="",
    semantics=SOFTMAX,
    supports=frozenset({"mask:full", "dtype:float32", "device:cpu"}),
    complexity=Complexity(time="O(n²·d)", memory="O(n²·d)"),
    attention=elementwise,
    cost=lambda problem: Cost(flops=useful_flops(problem), compulsory_bytes=compulsory_bytes(problem)),
)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("forced", [None, SDPBackend.MATH])
def test_sdpa_never_counts_nothing(causal, device, forced):
    """B01: 4 · B · H · Lq · Lk · D, on the CPU too, where PyTorch's counter says 0
    (pytorch/pytorch#195460).
    """
    q = torch.ones(1, 12, 64, 64, device=device)
    with FlopCounter() as counter, sdpa_kernel(forced) if forced else nullcontext():
        scaled_dot_product_attention(q, q, q, is_causal=causal)
    assert counter.flops == 12_582_912


def test_sdpa_backward_is_five_matmuls():
    case = Case(implementation="sdpa", seqlen_q=64, head_dim=32, mode="bwd")
    assert predict_counts(case).flops == 5 * 2 * 8 * 64 * 64 * 32
    both = predict_counts(Case(implementation="sdpa", seqlen_q=64, head_dim=32, mode="fwd_bwd"))
    assert both.flops == 7 * 2 * 8 * 64 * 64 * 32


@pytest.mark.parametrize("mode", ["fwd", "fwd_bwd"])
def test_equals_pytorchs_counter_where_that_one_works(mode):
    workload = build_workload(
        Case(implementation="sdpa-math", level="model", preset="tiny", seqlen_q=32, batch=2, mode=mode)
    )
    theirs, tokens = FlopCounterMode(display=False), workload.inputs["tokens"]
    assert workload.module is not None
    with workload.environment(), theirs:
        logits = workload.module(tokens)
        if mode == "fwd_bwd":  # PyTorch's counter does not bear torch.autograd.grad
            next_token_loss(logits, tokens).backward()
    assert count_call(workload).flops == theirs.get_total_flops() > 0


def test_a_model_is_its_matmuls():
    """tiny: per layer q, k, v, out projections and three of the feed-forward, attention; then the head."""
    case = Case(implementation="naive", level="model", preset="tiny", seqlen_q=32)
    dim, ffn, vocab, n = 32, 64, 256, 32
    projections = dim * dim + 2 * dim * 16 + dim * dim + 3 * dim * ffn
    attention = 2 * n * n * dim
    assert predict_counts(case).flops == 2 * (2 * (n * projections + attention) + n * dim * vocab)


def test_a_window_counts_the_pairs_it_has():
    """B03: W·L - W(W-1)/2 pairs, the own one included; not full causal, not half a window
    (NVIDIA/Megatron-LM#1725).
    """
    window = {"name": "sliding-window", "window_size": 512}
    case = Case(implementation="naive", seqlen_q=2048, mask=window)
    section = measure_flops(build_workload(case, fake=True), predict_counts(case), {})
    per_pair = 2 * 8 * (64 + 64)
    assert section.useful == 917_760 * per_pair
    assert section.executed == section.dense == 2048 * 2048 * per_pair
    for size, pairs in ((1, 2048), (2048, 2_098_176), (9999, 2_098_176)):
        limited = Case(implementation="naive", seqlen_q=2048, mask={**window, "window_size": size})
        assert (
            measure_flops(build_workload(limited, fake=True), predict_counts(limited), {}).useful
            == pairs * per_pair
        )


def test_a_count_of_zero_is_an_error_and_no_value():
    """B01: what the counter does not know is not reported as nothing."""
    case = Case(implementation=f"{__name__}:ELEMENTWISE", seqlen_q=8, mask={"name": "full"})
    workload = build_workload(case)
    counted = count_call(workload)
    assert counted.flops == 0
    with pytest.raises(NothingCountedError):
        counted_flops(workload, counted)
    unavailable: dict[str, str] = {}
    section = measure_flops(workload, counted, unavailable)
    assert section.executed is None
    assert section.useful == section.dense == 2 * 8 * 64 * 128
    assert "no operator" in unavailable["flops.executed"]


def test_nothing_to_see_is_nothing_to_count():
    case = Case(implementation="naive", seqlen_q=4, key_lengths=(0,))
    workload = build_workload(case)
    counted = count_call(workload)
    assert workload.problem.pairs() == 0
    assert counted_flops(workload, counted) == counted.flops
    assert measure_flops(workload, counted, {}).useful == 0


@pytest.mark.parametrize("implementation", ["naive", "sdpa", "linear", "sliding-window", "triton-flash"])
def test_every_implementation_executes_at_least_something(implementation):
    case = Case(
        implementation=implementation, seqlen_q=256, mask={"name": "sliding-window", "window_size": 64}
    )
    if implementation == "linear":
        case = Case(implementation=implementation, seqlen_q=256)
    unavailable: dict[str, str] = {}
    section = measure_flops(build_workload(case, fake=True), predict_counts(case), unavailable)
    assert unavailable == ({"flops.exponentials": NOT_STATED} if implementation == "sdpa" else {})
    assert section.executed is not None
    assert section.useful is not None
    assert section.executed >= section.useful or implementation == "linear"


@pytest.mark.parametrize("mode", ["fwd", "fwd_bwd"])
def test_a_kernel_in_a_model_is_counted_once(mode):
    """Two layers of what its operators state, which is its closed form, on top of the matmuls of the rest."""
    case = Case(implementation="triton-flash", level="model", preset="tiny", seqlen_q=64, mode=mode)
    counted = predict_counts(case)
    workload = build_workload(case, fake=True)
    cost = workload.implementation.cost(case.problem())
    assert cost.executed_flops is not None
    assert counted.kernel_flops == 2 * cost.executed_flops
    assert measure_flops(workload, counted, {}).executed == counted.flops


def test_a_kernel_that_is_no_operator_is_counted_by_its_closed_form():
    """What no counter sees comes on top of what it sees."""
    case = Case(implementation="triton-flash", level="model", preset="tiny", seqlen_q=64)
    counted = replace(predict_counts(case), kernel_flops=0)
    workload = build_workload(case, fake=True)
    cost = workload.implementation.cost(case.problem())
    assert cost.executed_flops is not None
    assert measure_flops(workload, counted, {}).executed == counted.flops + 2 * cost.executed_flops
