"""PyTorch's ``scaled_dot_product_attention``, as it chooses and with each backend forced, made to keep the
contract.

Guards around PyTorch's own behaviour: ``is_causal`` is aligned top-left, so it is used for square problems
only; a row that sees no key gives NaN in some backends; NaN in a masked slot reaches the output. Where every
pair is visible no mask is passed at all.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attnbench.contract.cost import (
    Cost,
    compulsory_bytes,
    from_cache,
    matmul_flops,
    tensor_bytes,
    useful_flops,
)
from attnbench.contract.hidden import visible_matrix, zero_hidden
from attnbench.contract.implementation import AttentionOutput, Complexity, Implementation
from attnbench.contract.masks import Causal
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import SOFTMAX

from ._sdpa_cuda import cuda_attention

BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
OPERATORS = {
    "_scaled_dot_product_flash_attention_for_cpu": "flash (CPU)",
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_efficient_attention": "efficient",
    "_scaled_dot_product_cudnn_attention": "cudnn",
    "_scaled_dot_product_fused_attention_overrideable": "overrideable",
}


def _square_causal(problem: Problem) -> bool:
    """Whether the mask is what ``is_causal=True`` means.

    One diagonal from the first query and key, for all rows.
    """
    p = problem
    return (
        isinstance(p.mask, Causal)
        and p.key_lengths is None
        and p.seqlen_q == p.seqlen_k
        and set(p.query_starts) <= {0}
    )


def _needs_mask(problem: Problem) -> bool:
    """Whether a mask tensor has to be passed."""
    all_pairs = problem.batch * problem.num_heads * problem.seqlen_q * problem.seqlen_k
    return problem.pairs() < all_pairs and not _square_causal(problem)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    problem: Problem,
    params: Mapping[str, Tensor] | None = None,
    backend: SDPBackend | None = None,
) -> AttentionOutput:
    """``softmax(q kᵀ · scale + mask) v`` by PyTorch; ``backend`` forces one and raises where it cannot run.

    q ``[B, H, Sq, D]``, k ``[B, G, Sk, D]``, v ``[B, G, Sk, Dv]`` → out ``[B, H, Sq, Dv]``; no ``lse``. Rows
    that see nothing give 0.

    Raises:
        RuntimeError: the forced backend refuses the problem.
    """
    p = problem
    k, v = zero_hidden(k, v, p)
    visible = empty = None
    if _needs_mask(p):
        visible = visible_matrix(p, q.device)
        if p.queries_seeing() < p.batch * p.num_heads * p.seqlen_q:
            empty = ~visible.any(dim=-1, keepdim=True)
            visible = visible | empty
    causal = visible is None and p.pairs() < p.batch * p.num_heads * p.seqlen_q * p.seqlen_k
    stands_for_cuda = p.device == "cuda" and not q.is_cuda
    if stands_for_cuda and backend is None:
        backend = _chosen_on_cuda(p)

    def run() -> Tensor:
        if stands_for_cuda and backend is not None and backend is not SDPBackend.MATH:
            return cuda_attention(backend, q, k, v, visible=visible, is_causal=causal, scale=p.softmax_scale)
        return scaled_dot_product_attention(
            q, k, v, attn_mask=visible, is_causal=causal, scale=p.softmax_scale, enable_gqa=p.group_size > 1
        )

    if backend is None:
        out = run()
    else:
        if backend is not SDPBackend.MATH:
            # The fused kernels refuse another stride in the last dimension; unforced, PyTorch would quietly
            # take another backend.
            q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
        with sdpa_kernel(backend):
            out = run()
    return AttentionOutput(out if empty is None else out.masked_fill(empty, 0))


def backend_that_ran(operators: Sequence[str]) -> str | None:
    """Name the SDPA backend by the operators that were seen; ``math`` is the one made of plain products."""
    for operator in operators:
        name = operator.removeprefix("aten.").removeprefix("aten::").split(".")[0].removesuffix("_backward")
        if name in OPERATORS:
            return OPERATORS[name]
    return "math" if any("bmm" in operator for operator in operators) else None


def _unsupported(name: str | None, problem: Problem) -> list[str]:
    """Limits of the forced backends, as PyTorch states them."""
    p, reasons = problem, []
    if name in ("efficient", "cudnn") and p.device == "cpu":
        reasons.append(f"the {name} backend is for CUDA only")
    if name == "flash":
        if p.head_dim != p.head_dim_v:
            reasons.append("the flash backend wants head_dim == head_dim_v")
        if p.device == "cuda" and _needs_mask(p):
            reasons.append("the flash backend takes no mask but full and square causal")
        if p.head_dim > 256 and p.device == "cuda":
            reasons.append("the flash backend wants head_dim <= 256")
    if name in ("flash", "cudnn") and p.device == "cuda" and p.dtype not in ("float16", "bfloat16"):
        reasons.append(f"the {name} backend wants float16 or bfloat16 on CUDA")
    if name == "efficient" and p.dtype == "float64":
        reasons.append("the efficient backend has no float64")
    if name in ("efficient", "cudnn") and p.device == "cuda":
        step = 4 if p.dtype == "float32" else 8
        if p.head_dim % step or p.head_dim_v % step:
            reasons.append(f"the {name} backend wants heads in multiples of {step}")
    if name == "cudnn" and p.seqlen_k == 1:
        reasons.append("the cudnn backend wants more than one key")
    if (
        name is not None
        and name != "math"
        and 0 in (p.batch, p.seqlen_q, p.seqlen_k, p.head_dim, p.head_dim_v)
    ):
        reasons.append(f"the {name} backend wants no empty dimension")
    return reasons


def _chosen_on_cuda(problem: Problem) -> SDPBackend:
    """The backend that PyTorch takes on CUDA, where there is no CUDA to ask.

    Which of the fused ones comes first differs by GPU and version, what they hold in memory hardly; the one
    that holds the scores comes last.
    """
    fused = ("flash", "efficient", "cudnn")
    fitting = [BACKENDS[name] for name in fused if not _unsupported(name, problem)]
    return fitting[0] if fitting else SDPBackend.MATH


@from_cache
def cost(problem: Problem) -> Cost:
    """Useful FLOPs exact for every mask; bytes for the fused operators: q, k, v in, out and lse out, all of
    which a backward pass needs again.

    ``executed_flops`` counts every pair: the fused kernels skip hidden blocks only where they say so (square
    causal on CUDA), and what they skip cannot be seen from outside; the record's own count says what an
    operator counter sees.
    """
    p = problem
    size = tensor_bytes(p)
    dense_pairs = p.batch * p.num_heads * p.seqlen_q * p.seqlen_k
    grouped = p.group_size == 1 or p.device == "cpu" or not _unsupported("flash", p)
    fused = p.head_dim == p.head_dim_v and not _needs_mask(p) and grouped
    forward = fused and p.mode in ("fwd", "decode")
    results = size["out"] + size["lse"]
    inputs = size["q"] + size["k"] + size["v"]
    peaks = {"fwd": results, "decode": results, "fwd_bwd": results + inputs}  # a gradient is as large
    return Cost(
        flops=useful_flops(p),
        executed_flops=matmul_flops(p, dense_pairs),
        exponentials=None,
        compulsory_bytes=compulsory_bytes(p),
        operand_bytes=inputs + results if forward else None,
        peak_bytes=peaks.get(p.mode) if fused else None,
        saved_bytes=inputs + results if fused and p.needs_gradients else None,
        leading={
            "flops": "2*B*H*n*m*(d+e)",
            "executed_flops": "2*B*H*n*m*(d+e)",
            "operand_bytes": "B*H*n*(d+e) + B*G*m*(d+e)",
            "peak_bytes": "B*H*n*e",
        },
    )


def _math_cost(problem: Problem) -> Cost:
    """The math backend materialises the scores.

    Its chain is PyTorch's own and changes with it, so bytes are counted, not stated.
    """
    fused = cost(problem)
    return Cost(
        flops=fused.flops,
        executed_flops=fused.executed_flops,
        compulsory_bytes=fused.compulsory_bytes,
        leading={**fused.leading, "operand_bytes": "B*H*n*m", "peak_bytes": "B*H*n*m"},
    )


SUPPORTS = frozenset(
    {
        *("device:cpu", "device:cuda", "mask:*"),
        *("dtype:bfloat16", "dtype:float16", "dtype:float32", "dtype:float64"),
        *("backward", "decode", "scale", "value-dim", "grouped-heads"),
        *("cross-lengths", "key-lengths", "query-start"),
    }
)


def _limits(name: str | None) -> Callable[[Problem], list[str]]:
    return partial(_unsupported, name)


def _forced(name: str, summary: str, paper: str) -> Implementation:
    fused = name != "math"
    return Implementation(
        name=f"sdpa-{name}",
        summary=summary,
        paper=paper,
        semantics=SOFTMAX,
        supports=SUPPORTS,
        complexity=Complexity(time="O(n²·d)", memory="O(n·d)" if fused else "O(n²)"),
        attention=partial(attention, backend=BACKENDS[name]),
        cost=cost if fused else _math_cost,
        unsupported=_limits(name),
        backend=backend_that_ran,
    )


IMPLEMENTATIONS = (
    Implementation(
        name="sdpa",
        summary="PyTorch's fused attention, backend of its own choice",
        paper="FlashAttention-2, arXiv 2307.08691",
        semantics=SOFTMAX,
        supports=SUPPORTS,
        complexity=Complexity(time="O(n²·d)", memory="O(n·d)"),
        attention=attention,
        cost=cost,
        backend=backend_that_ran,
    ),
    _forced("math", "SDPA, plain products forced", "arXiv 1706.03762"),
    _forced("flash", "SDPA, FlashAttention forced", "FlashAttention-2, arXiv 2307.08691"),
    _forced("efficient", "SDPA, memory-efficient attention forced", "arXiv 2112.05682"),
    _forced("cudnn", "SDPA, cuDNN forced", "FlashAttention-3, arXiv 2407.08608"),
)
