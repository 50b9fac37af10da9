"""Operand bytes: chains counted by hand, the rules one by one, and real equal to fake."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attnbench.measure.counting import count_call
from attnbench.measure.memory import predict_counts
from attnbench.measure.operators import OperandBytes, touched_bytes
from attnbench.measure.traffic import measure_traffic
from attnbench.measure.workload import build_workload
from attnbench.plan.case import Case

T = 1024
"""Bytes of one 16 × 16 float32 tensor."""


def square() -> Tensor:
    return torch.ones(16, 16)


def counted(function, *tensors: Tensor) -> OperandBytes:
    with OperandBytes() as counter:
        function(*tensors)
    return counter


@pytest.mark.parametrize(
    ("function", "read", "written"),
    [
        (lambda a, b: a + b, 2, 1),
        (lambda a, b: a * a, 1, 1),
        (lambda a, b: a @ b, 2, 1),
        (lambda a, b: torch.addmm(a, a, b), 2, 1),
        (lambda a, b: torch.addmm(a.clone(), a, b, beta=0), 1 + 2, 1 + 1),
        (lambda a, b: a.add_(b), 2, 1),
        (lambda a, b: a.copy_(b), 1, 1),
        (lambda a, b: a.zero_(), 0, 1),
        (lambda a, b: torch.add(a, b, out=torch.empty(16, 16)), 2, 1),
        (lambda a, b: torch.zeros_like(a), 1, 1),
        (lambda a, b: torch.empty_like(a), 0, 0),
        (lambda a, b: a.view(4, 64).t().unsqueeze(0).expand(3, 64, 4).detach(), 0, 0),
        (lambda a, b: a.t().reshape(-1), 1, 1),
        (lambda a, b: torch.cat([a, b]), 2, 2),
        (lambda a, b: a + b[:1], 1 + 1 / 16, 1),
        (lambda a, b: a + b[:1].expand(16, 16), 1 + 1 / 16, 1),
        (lambda a, b: a.unfold(0, 4, 1) * 2, 1, 13 * 64 / 256),
        (lambda a, b: a.sum(), 1, 1 / 256),
        (lambda a, b: (a.sum().item(), b.shape), 1, 1 / 256),
    ],
)
def test_each_rule(function, read, written):
    counter = counted(function, square(), square())
    assert counter.read_bytes == read * T
    assert counter.written_bytes == written * T


def test_a_gather_reads_the_rows_it_returns():
    table, rows = torch.ones(1000, 16), torch.tensor([1, 7, 7, 999])
    counter = counted(lambda table, rows: F.embedding(rows, table), table, rows)
    assert counter.read_bytes == 4 * 16 * 4 + 4 * 8
    assert counter.written_bytes == 4 * 16 * 4


def test_touched_bytes():
    assert touched_bytes(torch.ones(4, 4).expand(8, 4, 4)) == 64
    assert touched_bytes(torch.ones(10).as_strided((8, 3), (1, 1))) == 40
    assert touched_bytes(torch.ones(4, 6)[:, ::2]) == 48
    assert touched_bytes(torch.ones(0, 4)) == 0
    assert touched_bytes(torch.ones((), dtype=torch.float16)) == 2


def test_a_chain_by_hand():
    """mul: 2 T; bmm: 3 T; softmax: 2 T; sum of rows: T + 64 bytes."""
    counter = counted(lambda a, b: ((a * 2) @ b).softmax(-1).sum(-1), square(), square())
    assert counter.total_bytes == 8 * T + 64
    assert counter.operators == ["aten.mul", "aten.mm", "aten._softmax", "aten.sum"]


def test_backward_passes_are_counted():
    """Forward reads 2 T, writes T; so do both products of backward: gradient and operand in, gradient out."""
    a, b = square().requires_grad_(), square().requires_grad_()
    upstream = square()
    with OperandBytes() as counter:
        torch.autograd.grad(a @ b, (a, b), upstream)
    assert counter.operators == ["aten.mm"] * 3
    assert counter.total_bytes == 3 * 3 * T


def test_composite_operators_are_counted_by_their_parts_in_inference_mode():
    def attention(a: Tensor, b: Tensor) -> Tensor:
        return torch.matmul(a.view(1, 1, 16, 16), b.view(1, 1, 16, 16))

    plain = counted(attention, square(), square())
    with torch.inference_mode():
        inference = counted(attention, square(), square())
    assert plain.operators == inference.operators == ["aten.bmm"]
    assert plain.total_bytes == inference.total_bytes == 3 * T


def test_a_higher_order_operator_is_one_operator():
    from torch._higher_order_ops.out_dtype import out_dtype

    a = torch.ones(16, 16, dtype=torch.int8)
    counter = counted(lambda a: out_dtype(torch.ops.aten.mm.default, torch.int32, a, a.t()), a)
    assert counter.operators == ["out_dtype"]
    assert counter.read_bytes == 2 * T / 4
    assert counter.written_bytes == T


def test_naive_is_the_chain_counted_by_hand():
    """Causal, n = 128, H = 8, D = 64: what ``implementations/naive.py`` does, operator by operator."""
    n, heads, width, size = 128, 8, 64, 4
    tensor, scores, pairs = heads * n * width * size, heads * n * n * size, n * n
    row, one = 8 * n, 8  # positions are int64
    chain = {
        "q * scale": 2 * tensor,
        "q kᵀ": 2 * tensor + scores,
        "arange of queries, keys, batch rows, heads": 2 * row + 2 * one,
        "start + query": one + 2 * row,
        "q_pos + right": 2 * row,
        "k_pos <= q_pos": 2 * row + pairs,
        "invert": 2 * pairs,
        "fill": 2 * scores + pairs,
        "softmax": 2 * scores,
        "p v": scores + 2 * tensor,
    }
    counts = count_call(build_workload(Case(implementation="naive", seqlen_q=n)))
    assert counts.operand_bytes == sum(chain.values())


@pytest.mark.parametrize(
    ("implementation", "mode"),
    [("naive", "fwd"), *itertools.product(["sdpa", "sdpa-math", "linear"], ["fwd", "bwd", "fwd_bwd"])],
)
def test_real_and_fake_bytes_are_equal(implementation, mode):
    case = Case(implementation=implementation, seqlen_q=96, batch=2, mode=mode)
    real, fake = count_call(build_workload(case)), predict_counts(case)
    assert real.operators == fake.operators
    assert real.operand_bytes == fake.operand_bytes


def test_a_kernel_registered_with_torch_is_one_operator():
    """The kernel reads q, k, v once as operands and writes out and lse, whatever its loads ask for."""
    case = Case(implementation="triton-flash", seqlen_q=256)
    counts = predict_counts(case)
    tensor = 8 * 256 * 64 * 4
    assert counts.operators == ("attnbench.flash_forward",)
    assert counts.operand_bytes == 4 * tensor + 8 * 256 * 4


def test_the_operators_tell_which_sdpa_ran():
    def backend(implementation: str) -> str | None:
        workload = build_workload(Case(implementation=implementation, seqlen_q=64))
        return workload.implementation.backend(count_call(workload).operators)

    assert backend("sdpa") == "flash (CPU)"
    assert backend("sdpa-math") == "math"


def test_the_section_never_mixes_its_kinds():
    workload = build_workload(Case(implementation="naive", seqlen_q=64))
    unavailable: dict[str, str] = {}
    section = measure_traffic(workload, count_call(workload), unavailable)
    assert section.compulsory_bytes == 4 * 8 * 64 * 64 * 4
    assert section.operand_bytes is not None
    assert section.operand_bytes > section.compulsory_bytes
    assert section.operand_backend == "operators"
    assert section.requested_bytes is section.dram_bytes is None
    assert unavailable == {}


def test_a_block_has_no_compulsory_bytes_and_says_so():
    workload = build_workload(Case(implementation="sdpa", level="block", preset="tiny", seqlen_q=16))
    unavailable: dict[str, str] = {}
    section = measure_traffic(workload, count_call(workload), unavailable)
    assert section.compulsory_bytes is None
    assert "closed form" in unavailable["traffic.compulsory_bytes"]


def test_compulsory_is_a_floor_for_operand():
    for mode in ("fwd", "fwd_bwd"):
        for implementation in ("naive", "sdpa", "linear"):
            case = Case(implementation=implementation, seqlen_q=128, mode=mode)
            cost = build_workload(case, fake=True).implementation.cost(case.problem())
            assert predict_counts(case).operand_bytes >= cost.compulsory_bytes
