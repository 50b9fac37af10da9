"""What the interpreter's trace keeps of an access, and the order of programs that run side by side."""

from itertools import pairwise

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from attnbench.contract.sampling import Probe, ProgramSample, Progression
from attnbench.measure.accesses import Access, byte_ranges, side_by_side
from attnbench.measure.interpreter import trace_kernels


@pytest.mark.parametrize(
    ("addresses", "size_bytes", "ranges"),
    [
        ([], 4, []),
        ([8], 4, [[8, 12]]),
        ([0, 4, 8, 16, 20], 4, [[0, 12], [16, 24]]),
        ([20, 0, 16, 4, 0], 4, [[0, 8], [16, 24]]),  # in any order, twice
        ([[0, 64], [2, 66]], 2, [[0, 4], [64, 68]]),  # columns of two rows
        ([0, 2], 4, [[0, 6]]),  # elements that overlap
    ],
)
def test_ranges_of_bytes(addresses, size_bytes, ranges):
    found = byte_ranges(np.array(addresses, dtype=np.uint64), size_bytes)
    assert found.dtype == np.int64
    assert found.tolist() == ranges


def named(step: int) -> Access:
    return Access(np.array([[step, step + 1]]), True, False)


def order(steps: list[int], resident_programs: int) -> list[int]:
    """Programs that take so many steps; step s of program p is access 10 p + s."""
    programs = [[named(10 * program + step) for step in range(count)] for program, count in enumerate(steps)]
    return [int(access.ranges[0, 0]) for access in side_by_side(programs, resident_programs)]


def test_programs_take_turns_and_the_next_begins_where_one_ends():
    assert order([2, 1, 2, 1], 1) == [0, 1, 10, 20, 21, 30]
    assert order([2, 1, 2, 1], 2) == [0, 10, 1, 20, 30, 21]
    assert order([2, 1, 2, 1], 4) == order([2, 1, 2, 1], 99) == [0, 10, 20, 30, 1, 21]
    assert order([0, 2, 0, 0, 1], 2) == [10, 40, 11]
    assert order([], 2) == []


def test_somebody_has_to_run():
    with pytest.raises(ValueError, match="resident_programs: 1 or more is needed, not 0"):
        side_by_side([], 0)


@triton.jit
def copy_kernel(x_ptr, out_ptr, count_ptr, n, BLOCK: tl.constexpr):
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + columns, tl.load(x_ptr + columns, mask=columns < n, other=0.0), mask=columns < n)
    tl.atomic_add(count_ptr, 1)


def test_accesses_are_kept_on_demand_with_what_is_not_masked():
    x, out, count = torch.ones(40), torch.empty(40), torch.zeros(1, dtype=torch.int32)

    def launch(**how):
        with trace_kernels(**how) as trace:
            copy_kernel[(3,)](x, out, count, 40, BLOCK=16)
        return trace

    assert launch().launches[0].accesses == {}
    trace = launch(keep_accesses=True)
    for program, (first, last) in enumerate([(0, 16), (16, 32), (32, 40)]):
        loaded, stored, counted = trace.launches[0].accesses[program]
        for access, tensor in ((loaded, x), (stored, out)):
            begin = tensor.data_ptr()
            assert access.ranges.tolist() == [[begin + 4 * first, begin + 4 * last]]
        assert counted.ranges.tolist() == [[count.data_ptr(), count.data_ptr() + 4]]
        assert [access[1:] for access in (loaded, stored, counted)] == [
            (True, False),
            (False, True),
            (True, True),
        ]
    touched = sum(int(np.diff(a.ranges).sum()) * (a.loads + a.stores) for a in trace.accesses(1))
    assert touched == trace.requested_bytes == 2 * 160 + 3 * 8


def test_programs_side_by_side_are_those_of_one_launch():
    x, out, count = torch.ones(48), torch.empty(48), torch.zeros(1, dtype=torch.int32)
    with trace_kernels(keep_accesses=True) as trace:
        for _ in range(2):
            copy_kernel[(3,)](x, out, count, 48, BLOCK=16)
    turns = [access.ranges[0, 0] for access in trace.accesses(3)]
    assert turns[:9] == turns[9:]
    assert all(later - earlier == 64 for earlier, later in pairwise(turns[:3]))


def test_accesses_of_a_sample_stand_under_true_ids():
    x, out, count = torch.ones(48), torch.empty(48), torch.zeros(1, dtype=torch.int32)
    sample = ProgramSample((Progression(3, 1, (Probe(0, 0), Probe(2, 2))),), ())
    with trace_kernels({"copy_kernel": sample}, keep_accesses=True) as trace:
        copy_kernel[(3,)](x, out, count, 48, BLOCK=16)
    assert list(trace.launches[0].accesses) == [0, 2]
