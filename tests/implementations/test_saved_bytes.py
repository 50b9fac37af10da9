"""What a forward pass keeps for its backward is what autograd is seen to save."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from attnbench.contract.discovery import get_implementation
from attnbench.contract.masks import Causal, Full, Mask, SlidingWindow
from attnbench.contract.problem import Problem

WINDOW = SlidingWindow(window_size=9)


@contextmanager
def kept_storages() -> Iterator[dict[int, torch.UntypedStorage]]:
    """Yield the storages that autograd saves meanwhile, each once."""
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage  # held, so that no other takes its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


def saved_by_autograd(name: str, problem: Problem) -> int:
    p, generator = problem, torch.Generator().manual_seed(0)
    shapes = {
        "q": (p.num_heads, p.seqlen_q, p.head_dim),
        "k": (p.num_kv_heads, p.seqlen_k, p.head_dim),
        "v": (p.num_kv_heads, p.seqlen_k, p.head_dim_v),
    }
    q, k, v = (
        torch.randn(p.batch, *shape, generator=generator)
        .to(getattr(torch, p.dtype))
        .to(p.device)
        .requires_grad_()
        for shape in shapes.values()
    )
    with kept_storages() as kept:
        out = get_implementation(name).attention(q, k, v, problem=p).out
    assert out.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("num_kv_heads", [4, 2])
@pytest.mark.parametrize(
    ("name", "mask"),
    [
        *((name, mask) for name in ("naive", "sdpa", "linear") for mask in (Full(), Causal())),
        ("sliding-window", WINDOW),
    ],
    ids=lambda value: value if isinstance(value, str) else value.slug,
)
def test_saved_is_what_autograd_saves(name: str, mask: Mask, num_kv_heads: int, dtype: str) -> None:
    problem = Problem(
        batch=2,
        seqlen_q=48,
        num_heads=4,
        num_kv_heads=num_kv_heads,
        head_dim=16,
        dtype=dtype,
        mask=mask,
        mode="fwd_bwd",
    )
    assert get_implementation(name).cost(problem).saved_bytes == saved_by_autograd(name, problem)


@pytest.mark.parametrize("num_kv_heads", [2, 1])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_tiled_kernel_keeps_statistics_and_no_scores(dtype: str, num_kv_heads: int) -> None:
    problem = Problem(
        seqlen_q=32, num_heads=2, num_kv_heads=num_kv_heads, head_dim=16, dtype=dtype, mode="fwd_bwd"
    )
    cost = get_implementation("triton-flash").cost(problem)
    assert cost.saved_bytes == saved_by_autograd("triton-flash", problem)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["naive", "sdpa", "triton-flash", "sliding-window", "linear"])
def test_on_a_gpu_too(name: str) -> None:
    problem = Problem(
        seqlen_q=256,
        num_heads=8,
        num_kv_heads=2,
        head_dim=64,
        dtype="bfloat16",
        device="cuda",
        mask=SlidingWindow(window_size=64) if name == "sliding-window" else Causal(),
        mode="fwd_bwd",
    )
    # The fused operators of PyTorch also keep two numbers of their random generator.
    assert 0 <= saved_by_autograd(name, problem) - get_implementation(name).cost(problem).saved_bytes <= 64


@pytest.mark.parametrize("mode", ["fwd", "decode"])
def test_without_gradients_nothing_is_kept(mode: str) -> None:
    problem = Problem(seqlen_q=1 if mode == "decode" else 48, seqlen_k=48, mode=mode)
    for name in ("naive", "sdpa", "triton-flash", "linear"):
        assert get_implementation(name).cost(problem).saved_bytes is None


def test_it_is_no_part_of_a_record() -> None:
    cost = get_implementation("naive").cost(Problem(seqlen_q=8, mode="fwd_bwd"))
    assert cost.saved_bytes
    assert "saved_bytes" not in cost.theory()
