"""Flash decoding as operators of PyTorch: their promises, on fake tensors, behind a state."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from attnbench.contract.discovery import get_implementation
from attnbench.contract.problem import Problem
from attnbench.contract.state import append, extend, new_state
from attnbench.implementations._flash import decode as _decode  # noqa: F401  registers the operators
from attnbench.measure.inputs import make_inputs
from attnbench.measure.interpreter import trace_kernels
from attnbench.measure.operators import OperandBytes

FLASH = get_implementation("triton-flash")


@pytest.mark.parametrize("splits", [1, 3])
def test_the_operators_keep_their_promises_to_torch(splits):
    q, k, v = (torch.randn(1, 2, n, 16) for n in (2, 40, 40))
    arguments = (q, k, v, [38], [40], None, 0, 0.25, [16, 16, 4, 1], splits)
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    operators = torch.ops.attnbench
    found = torch.library.opcheck(operators.flash_decode.default, arguments, test_utils=tests)
    assert found == dict.fromkeys(tests, "SUCCESS")
    if splits > 1:
        parts, statistics = operators.flash_decode(*arguments)
        merged = (parts, statistics, 0.25, torch.float16)
        found = torch.library.opcheck(operators.flash_merge.default, merged, test_utils=tests)
        assert found == dict.fromkeys(tests, "SUCCESS")


def test_fake_tensors_see_two_operators():
    problem = Problem(
        seqlen_q=1, seqlen_k=1 << 20, num_heads=8, num_kv_heads=2, dtype="bfloat16", device="cuda"
    )
    with FakeTensorMode(), OperandBytes() as counter:
        q, k, v = (
            torch.empty(1, heads, n, 64, dtype=torch.bfloat16)
            for heads, n in ((8, 1), (2, 1 << 20), (2, 1 << 20))
        )
        out, lse = FLASH.attention(q, k, v, problem=problem)
    assert counter.operators == ["attnbench.flash_decode", "attnbench.flash_merge"]
    assert counter.total_bytes == FLASH.cost(problem).operand_bytes
    assert (out.shape, out.dtype) == ((1, 8, 1, 64), torch.bfloat16)
    assert lse is not None
    assert (lse.shape, lse.dtype) == ((1, 8, 1), torch.float32)


def test_a_state_is_decoded_by_the_kernel_and_gives_what_one_pass_gives():
    problem = Problem(
        seqlen_q=1, seqlen_k=40, batch=2, num_heads=4, num_kv_heads=2, head_dim=16, mode="decode"
    )
    whole = problem.replace(seqlen_q=40, mode="fwd")
    q, k, v = (make_inputs(whole, seed=0)[name] for name in "qkv")
    state = new_state(FLASH, problem, 64)
    state = append(FLASH, state, k[:, :, :30], v[:, :, :30], problem=whole.replace(seqlen_q=30, seqlen_k=30))
    expected = FLASH.attention(q, k, v, problem=whole).out
    for first, last in ((30, 31), (31, 38), (38, 40)):
        chunk = slice(first, last)
        with trace_kernels() as trace:
            (out, _), state = extend(
                FLASH, state, q[:, :, chunk], k[:, :, chunk], v[:, :, chunk], problem=problem
            )
        assert {launch.kernel for launch in trace.launches} == {"flash_decode_kernel"}
        torch.testing.assert_close(out, expected[:, :, chunk], rtol=1e-5, atol=1e-5)
