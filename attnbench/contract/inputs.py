"""Whether tensors are those of a problem. In: q, k, v and the problem. Out: nothing, or an error.

For implementations that read memory by themselves: a kernel given another shape reads what is not its own.
"""

from typing import TYPE_CHECKING

from .errors import UsageError
from .problem import Problem

if TYPE_CHECKING:
    from torch import Tensor


def check_inputs(q: "Tensor", k: "Tensor", v: "Tensor", problem: Problem) -> None:
    """Refuse tensors that are not q ``[B, H, Sq, D]``, k ``[B, G, Sk, D]`` and v ``[B, G, Sk, Dv]`` of the
    problem, in its dtype, on one device. Any strides are accepted.

    Raises:
        UsageError: with the argument, what it is, and what is accepted.
    """
    import torch

    p, dtype = problem, getattr(torch, problem.dtype)
    kv_rows = (p.batch, p.num_kv_heads, p.seqlen_k)
    for name, tensor, shape in (
        ("q", q, (p.batch, p.num_heads, p.seqlen_q, p.head_dim)),
        ("k", k, (*kv_rows, p.head_dim)),
        ("v", v, (*kv_rows, p.head_dim_v)),
    ):
        if not isinstance(tensor, torch.Tensor):
            raise UsageError(f"{name} is a {type(tensor).__name__}; a torch.Tensor is accepted")
        if tuple(tensor.shape) != shape:
            raise UsageError(f"{name} is {list(tensor.shape)}, the problem's is {list(shape)}")
        if tensor.dtype != dtype:
            found = str(tensor.dtype).removeprefix("torch.")
            raise UsageError(f"{name} is {found}, the problem's is {p.dtype}")
        if tensor.layout != torch.strided:
            raise UsageError(f"{name} has the layout {tensor.layout}, and torch.strided alone is accepted")
        if tensor.device != q.device:
            raise UsageError(f"{name} is on {tensor.device}, q on {q.device}; one device is accepted")
