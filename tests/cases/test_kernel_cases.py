"""Faults that public bug reports describe of kernels, with the right value: strides, ends, empty problems,
64-bit offsets, shared memory. Backward passes included.
"""

import itertools
import json
import math
import mmap
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench.contract.discovery import get_implementation
from attnbench.contract.implementation import AttentionOutput
from attnbench.contract.masks import Causal, Full, Mask, SlidingWindow
from attnbench.contract.problem import Problem
from attnbench.device.targets import find_target
from attnbench.implementations._flash import tiles
from attnbench.implementations._flash.memory import least_shared_bytes
from attnbench.implementations._flash.tiles import Tile, tile_for, tile_table
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings
from attnbench.run.executor import ExecutorSettings, InProcessExecutor

NAMES = ("naive", "sdpa", "triton-flash", "sliding-window")
EXACT = ("naive", "triton-flash", "sliding-window")
"""sdpa picks another kernel for other strides, and with it other roundings."""
SMALL_TILES = {"block_q": 32, "block_k": 32}
UNCOMMITTED = 0x4000
"""MAP_NORESERVE on Linux, which Python names from 3.13 on: pages that nobody touches cost nothing."""


def attend(name: str, inputs: Sequence[Tensor], mask: Mask, **fields: Any) -> AttentionOutput:
    """Attend with tiles so small that 33 tokens have several, and one with a tail."""
    q, k, v = inputs
    if name == "sliding-window" and not isinstance(mask, SlidingWindow):
        mask = SlidingWindow(1 << 20, causal=isinstance(mask, Causal))
    problem = Problem(
        batch=q.shape[0],
        num_heads=q.shape[1],
        num_kv_heads=k.shape[1],
        seqlen_q=q.shape[2],
        seqlen_k=k.shape[2],
        head_dim=q.shape[3],
        head_dim_v=v.shape[3],
        dtype=str(q.dtype).removeprefix("torch."),
        mask=mask,
        mode="fwd_bwd" if q.requires_grad else "fwd",
        options=SMALL_TILES if name == "triton-flash" else {},
        **fields,
    )
    return get_implementation(name).attention(q, k, v, problem=problem)


def leaves(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [x.detach().requires_grad_() for x in tensors]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


UPSTREAM = {
    "stride 0": torch.ones(1).expand(1, 2, 33, 16),
    "transposed": draw(1, 33, 2, 16).transpose(1, 2),
    "slice": draw(1, 2, 33, 40)[..., 5:21],
    "columns": draw(1, 2, 16, 33).transpose(2, 3),
}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("upstream", UPSTREAM.values(), ids=UPSTREAM)
def test_a09_no_stride_changes_a_bit_of_a_gradient(name: str, upstream: Tensor) -> None:
    """Dao-AILab/flash-attention#355, fla-org/flash-linear-attention#1138: strides of one tensor were taken
    for those of another, or for 1.
    """
    packed = draw(1, 33, 2, 48, seed=1).transpose(1, 2)
    views, copies = leaves(packed.chunk(3, dim=-1)), leaves([x.contiguous() for x in packed.chunk(3, dim=-1)])
    out, expected = (attend(name, inputs, Causal()).out for inputs in (views, copies))
    assert torch.equal(out, expected)
    found = torch.autograd.grad(out, views, upstream)
    wanted = torch.autograd.grad(expected, copies, upstream.contiguous())
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", EXACT)
def test_a09_expanded_heads_receive_the_sum_of_their_copies(name: str) -> None:
    q, k, v = leaves([draw(1, 3, 33, 16), draw(1, 1, 33, 16, seed=1), draw(1, 1, 33, 16, seed=2)])
    attend(name, (q, *(x.expand(1, 3, 33, 16) for x in (k, v))), Causal()).out.sum().backward()
    copies = leaves([x.detach().repeat(1, 3, 1, 1) for x in (k, v)])
    attend(name, (q.detach().requires_grad_(), *copies), Causal()).out.sum().backward()
    for shared, spread in zip((k, v), copies, strict=True):
        assert torch.equal(shared.grad, spread.grad.sum(1, keepdim=True))


def carved(value: float, seqlen: int, width: int) -> Tensor:
    """A constant in the middle of a buffer of NaN, so that whatever is read beyond the ends shows."""
    buffer = torch.full((3, 3, seqlen + 80, width + 24), math.nan)
    inner = buffer[1:2, 1:2, 40 : 40 + seqlen, 8 : 8 + width]
    inner.fill_(value)
    return inner


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seqlen_k", [8, 16, 33])
@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("width", [16, 24])
def test_a13_nothing_beyond_the_ends_reaches_a_gradient(
    name: str, seqlen_k: int, extra: int, width: int
) -> None:
    """openxla/tokamax#316: the backward pass read past the last row. Of ones: out 1, dq and dk 0, and each
    value serves Lq / Lk queries.
    """
    seqlen_q = seqlen_k + extra
    inputs = leaves([carved(1, n, width) for n in (seqlen_q, seqlen_k, seqlen_k)])
    out = attend(name, inputs, Full()).out
    torch.testing.assert_close(out, torch.ones_like(out), rtol=0, atol=1e-6)
    dq, dk, dv = torch.autograd.grad(out, inputs, carved(1, seqlen_q, width))
    torch.testing.assert_close(dq, torch.zeros_like(dq), rtol=0, atol=2e-6)
    torch.testing.assert_close(dk, torch.zeros_like(dk), rtol=0, atol=2e-5)
    torch.testing.assert_close(dv, torch.full_like(dv, seqlen_q / seqlen_k), rtol=1e-6, atol=0)


EMPTY = {"no queries": (0, 4, 1), "no keys": (3, 0, 1), "no batch": (3, 3, 0)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("seqlen_q", "seqlen_k", "batch"), EMPTY.values(), ids=EMPTY)
def test_a15_empty_problems_have_gradients_of_zeros(
    name: str, seqlen_q: int, seqlen_k: int, batch: int
) -> None:
    """Dao-AILab/flash-attention PR#2776: they crashed, or had None for a gradient."""
    inputs = leaves([draw(batch, 2, n, 16) for n in (seqlen_q, seqlen_k, seqlen_k)])
    out, lse = attend(name, inputs, Full())
    assert torch.equal(out, torch.zeros(batch, 2, seqlen_q, 16))
    assert lse is None or torch.equal(lse, torch.full((batch, 2, seqlen_q), -math.inf))
    for gradient, leaf in zip(torch.autograd.grad(out, inputs, torch.ones_like(out)), inputs, strict=True):
        assert torch.equal(gradient, torch.zeros_like(leaf))


@pytest.mark.parametrize("name", NAMES)
def test_a15_a_row_whose_keys_all_lie_behind_its_length_is_such_a_problem(name: str) -> None:
    inputs = leaves([draw(2, 2, 20, 16, seed=seed) for seed in range(3)])
    out = attend(name, inputs, Full(), key_lengths=(0, 20)).out
    gradients = torch.autograd.grad(out, inputs, torch.ones_like(out))
    assert not out[0].any()
    assert out[1].all()
    assert not any(gradient[0].any() for gradient in gradients)
    assert gradients[2][1].all()


@pytest.mark.usefixtures("checked_integers")
def test_a17_offsets_beyond_32_bits_in_both_passes() -> None:
    """fla-org/flash-linear-attention#1080: row 319 at a stride of 7,864,320 is element 2,508,718,080, which
    32 bits hold as -1,786,249,216.
    """
    rows, stride, width = 320, 7_864_320, 16
    assert 319 * stride == 2_508_718_080 > 2**31
    mapped = mmap.mmap(-1, 2 * rows * stride, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | UNCOMMITTED)
    buffer = torch.frombuffer(mapped, dtype=torch.float16)
    wide = buffer.as_strided((1, 1, rows, width), (rows * stride, rows * stride, stride, 1))
    wide.copy_(draw(1, 1, rows, width))
    last = slice(304, 320)
    near = wide.contiguous()
    results = []
    for whole in (wide, near):
        inputs = leaves([whole[:, :, last], whole, whole])
        out = attend("triton-flash", inputs, SlidingWindow(20)).out
        results.append((out, *torch.autograd.grad(out, inputs, whole[:, :, last])))
    for far, close in zip(*results, strict=True):
        assert close.any()
        assert torch.equal(far, close)


SHARED_MEMORY = """
import json, sys
from pathlib import Path
from attnbench.contract.discovery import get_implementation
from attnbench.contract.problem import Problem
from attnbench.device.compile import compile_launch
from attnbench.device.targets import find_target

kernels = {spec.name: spec for spec in get_implementation("triton-flash").kernels}
facts = Path(sys.argv[1])
for name, target, fields in json.loads(sys.argv[2]):
    spec, target = kernels[name], find_target(target)
    (launch,) = spec.variants(Problem(device="cuda", **fields), target.name)
    print(compile_launch(spec.function(), launch, target, facts).shared_memory_bytes)
"""


def compiled_shared_bytes(launches: Sequence[tuple[str, str, dict[str, Any]]], folder: Path) -> list[int]:
    """Compile kernels ahead of time, given as (kernel, target, fields of the problem)."""
    named = [(f"flash_{kernel}_kernel", target, fields) for kernel, target, fields in launches]
    variables = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", SHARED_MEMORY, str(folder), json.dumps(named)],
        env={**variables, "TRITON_DUMP_PTXAS_LOG": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.splitlines()]


def options(block_q: int, block_k: int, num_stages: int, **more: int) -> dict[str, Any]:
    return {"block_q": block_q, "block_k": block_k, "num_warps": 8, "num_stages": num_stages, **more}


HEADS_OF_128: dict[str, Any] = {"seqlen_q": 4096, "head_dim": 128, "dtype": "float16"}
LARGE, MIDDLING = options(128, 128, 3), options(128, 64, 2)
ON_SM_86 = 101_376


@pytest.mark.long
def test_e07_the_table_takes_a_tile_that_fits_where_a_larger_one_does_not(tmp_path: Path) -> None:
    """meta-pytorch/attention-gym#14: a tile of a data-centre GPU asked for more shared memory than a consumer
    card has. Heads of 128 in float16: 128 × 128 in three stages takes 160 KiB, 128 × 64 in two 64 KiB.
    """
    given: tuple[dict[str, Any], ...] = (LARGE, MIDDLING, {})
    launches = [("forward", "sm_86", {**HEADS_OF_128, "options": tile}) for tile in given]
    large, middling, listed = compiled_shared_bytes(launches, tmp_path)
    assert large >= 163_840 > ON_SM_86
    assert ON_SM_86 > middling >= 65_536
    assert listed <= ON_SM_86


def widths(problem: Problem) -> tuple[int, int]:
    return problem.head_dim, problem.head_dim_v


@pytest.mark.parametrize(
    ("kernel", "tile", "head_dim", "needed"),
    [
        ("forward", LARGE, 128, 163_840),
        ("forward", MIDDLING, 128, 65_536),
        ("forward", MIDDLING, 256, 131_072),
        ("forward", options(128, 64, 1), 128, 32_768),
        ("dq", LARGE, 128, 196_608),
        ("dkdv", options(64, 128, 2), 128, 98_304),
        ("decode", options(16, 64, 3), 80, 69_632),
    ],
)
def test_e07_bytes_that_a_tile_takes_at_least(
    kernel: str, tile: dict[str, Any], head_dim: int, needed: int
) -> None:
    assert least_shared_bytes(kernel, Tile(**tile), (head_dim, head_dim), 2) == needed


BACKWARD: dict[str, Any] = {"mode": "fwd_bwd"}
SPREAD = [
    ("forward", "sm_86", {**HEADS_OF_128, "options": options(64, 32, 4)}),
    ("decode", "sm_90", {**HEADS_OF_128, "seqlen_q": 1, "seqlen_k": 4096, "options": options(16, 64, 3)}),
]
WIDE_SPREAD = [
    ("forward", "sm_90", {**HEADS_OF_128, "options": options(128, 64, 2)}),
    ("dkdv", "sm_86", {**HEADS_OF_128, **BACKWARD, "options": options(64, 64, 1)}),
] + [
    (kernel, target, {**HEADS_OF_128, **BACKWARD, "head_dim": head_dim, "dtype": dtype, "options": tile})
    for kernel in ("forward", "dq", "dkdv")
    for target, tma in (("sm_80", 0), ("sm_90", 1), ("sm_120", 0))
    for head_dim, dtype, tile in (
        (64, "bfloat16", options(64, 64, 3, tma=tma)),
        (80, "float16", options(64, 32, 2, tma=tma)),
        (64, "float32", options(32, 32, 2)),
    )
]


def never_too_many(launches: Sequence[tuple[str, str, dict[str, Any]]], folder: Path) -> None:
    for (kernel, target, fields), taken in zip(
        launches, compiled_shared_bytes(launches, folder), strict=True
    ):
        p = Problem(device="cuda", **fields)
        tile = tile_for(p, target, kernel)
        assert least_shared_bytes(kernel, tile, widths(p), p.dtype_bytes) <= taken, (kernel, target, fields)


@pytest.mark.long
def test_e07_what_fits_is_never_refused(tmp_path: Path) -> None:
    """The compiler never takes less than what a tile is said to take at least."""
    never_too_many(SPREAD, tmp_path)


@pytest.mark.long
def test_e07_what_fits_is_never_refused_over_many_tiles(tmp_path: Path) -> None:
    never_too_many(WIDE_SPREAD, tmp_path)


@pytest.mark.parametrize("kernel", ["forward", "dq", "dkdv", "decode"])
def test_e07_no_entry_of_the_table_is_refused(kernel: str) -> None:
    for target in (name for name in tile_table()[kernel] if name.startswith("sm_")):
        for dtype, head_dim in itertools.product(("float16", "float32"), (16, 64, 128, 256)):
            p = Problem(seqlen_q=4096, head_dim=head_dim, dtype=dtype, device="cuda")
            needed = least_shared_bytes(kernel, tile_for(p, target, kernel), widths(p), p.dtype_bytes)
            assert needed <= find_target(target).shared_bytes_per_block


def on_a_gpu_of(capability: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "_capability_by_driver", lambda: capability)


def test_e07_a_tile_too_large_for_the_gpu_is_unsupported_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before anything is launched, with the bytes it needs and those there are."""
    on_a_gpu_of(86, monkeypatch)
    case = Case(implementation="triton-flash", device="cuda", **HEADS_OF_128, options=LARGE)
    with InProcessExecutor(ExecutorSettings(measure=MeasureSettings(metrics=("agreement",)))) as executor:
        record = executor.submit(case)
        after = executor.submit(Case(implementation="triton-flash", seqlen_q=16, head_dim=16))
    assert record.status == "unsupported"
    assert record.reason == (
        "a block of the forward kernel takes at least 163840 bytes of shared memory with 128 × 128 in "
        "3 stages; sm_86 has 101376"
    )
    assert after.status == "ok"


@pytest.mark.parametrize(
    ("capability", "fields", "faults"),
    [
        (86, {"options": MIDDLING}, 0),
        (80, {"options": LARGE}, 0),
        (80, {"options": LARGE, **BACKWARD}, 2),
        (86, {"options": MIDDLING, "head_dim": 256}, 1),
        (86, {"options": MIDDLING, "head_dim": 256, **BACKWARD}, 3),
        (86, {"head_dim": 256, **BACKWARD}, 0),
        (87, {"options": LARGE}, 0),
    ],
    ids=[
        "64 KiB",
        "160 KiB on an A100",
        "with gradients",
        "wide heads",
        "and theirs",
        "as listed",
        "unknown",
    ],
)
def test_e07_each_kernel_that_does_not_fit_is_named(
    capability: int, fields: dict[str, Any], faults: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a GPU whose shared memory is not listed nothing is said: there the launch itself decides."""
    on_a_gpu_of(capability, monkeypatch)
    problem = Problem(device="cuda", **{**HEADS_OF_128, **fields})
    assert len(get_implementation("triton-flash").unsupported(problem)) == faults


def test_e07_a_turing_gpu_is_refused_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """vllm-project/vllm#36802, of a T4: 64 KiB a block, and no tensor-core product for this kernel."""
    on_a_gpu_of(75, monkeypatch)
    problem = Problem(device="cuda", **HEADS_OF_128)
    assert get_implementation("triton-flash").unsupported(problem) == [
        "compute capability 7.5 is older than 8.0"
    ]
