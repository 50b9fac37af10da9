"""The L2 model: by hand, against a cache that is played through, and of the flash kernel at both ends."""

from collections import OrderedDict
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnbench.contract.cost import compulsory_bytes
from attnbench.contract.discovery import get_implementation
from attnbench.contract.masks import Causal, Full, SlidingWindow
from attnbench.contract.problem import Problem
from attnbench.measure.accesses import Access, byte_ranges
from attnbench.measure.inputs import make_inputs
from attnbench.measure.interpreter import trace_kernels
from attnbench.measure.kernel_trace import KernelTrace
from attnbench.measure.l2_model import DramCurve, Touches, dram_curve, stack_distances

FLASH = get_implementation("triton-flash")
LARGE = 1 << 40


def load(*ranges: tuple[int, int]) -> Access:
    return Access(np.array(ranges, dtype=np.int64).reshape(-1, 2), True, False)


def store(*ranges: tuple[int, int]) -> Access:
    return load(*ranges)._replace(loads=False, stores=True)


def traffic(curve: DramCurve, capacity_bytes: int) -> tuple[int, int]:
    return curve.read_bytes(capacity_bytes), curve.write_bytes(capacity_bytes)


def test_three_tiles_by_hand():
    """Tiles of two sectors. Where two fit: a, b, a hits, c evicts b, b evicts a, c hits, is written last."""
    a, b, c = (0, 64), (64, 128), (4096, 4160)
    curve = dram_curve([load(a), load(b), load(a), store(c), load(b), store(c)])
    assert traffic(curve, 3 * 64) == (2 * 64, 64)
    assert traffic(curve, 2 * 64) == (3 * 64, 64)
    assert traffic(curve, 1 * 64) == (4 * 64, 2 * 64)
    assert traffic(curve, 0) == traffic(curve, 63) == (4 * 64, 2 * 64)
    assert curve.capacities() == [2 * 64, 3 * 64]


def test_a_dirty_sector_is_written_once_for_each_stay():
    """Two writes to a, a third after it has left a cache of one sector; reads do not make it dirty."""
    a, b = (0, 32), (32, 64)
    curve = dram_curve([store(a), store(a), load(a), load(b), load(a), store(a)])
    assert traffic(curve, 32) == (2 * 32, 2 * 32)
    assert traffic(curve, 64) == (1 * 32, 1 * 32)


def test_a_store_fetches_what_it_covers_in_part():
    assert traffic(dram_curve([store((0, 32))]), LARGE) == (0, 32)
    assert traffic(dram_curve([store((0, 8))]), LARGE) == (32, 32)
    assert traffic(dram_curve([store((8, 72))]), LARGE) == (2 * 32, 3 * 32)
    assert traffic(dram_curve([store((0, 8), (16, 24))]), LARGE) == (32, 32)  # two ranges in one sector
    assert traffic(dram_curve([store((0, 16)), store((16, 32))]), LARGE) == (32, 32)
    assert traffic(dram_curve([load((0, 4), (28, 36))]), LARGE) == (2 * 32, 0)
    atomic = load((0, 32))._replace(stores=True)
    assert traffic(dram_curve([atomic]), LARGE) == (32, 32)


def test_nothing_is_accessed():
    for accesses in ([], [load()]):
        curve = dram_curve(accesses)
        assert traffic(curve, 0) == (0, 0)
        assert curve.capacities() == []


def test_stack_distances_by_hand():
    """Touches a b b c a: b again after nothing but itself, a again after b and c; sizes 1, 10 and 100."""
    never = np.iinfo(np.int64).max
    previous, sizes = np.array([-1, -1, 1, -1, 0]), np.array([1, 10, 10, 100, 1])
    assert stack_distances(previous, sizes).tolist() == [never, never, 10, never, 111]


def played_through(accesses: list[Access], capacity_bytes: int, sector_bytes: int) -> tuple[int, int]:
    """Sector by sector through a cache that holds what was used last; bytes read and written."""
    cache: OrderedDict[int, bool] = OrderedDict()  # is it dirty?
    read = written = 0
    for access in accesses:
        covered: dict[int, set[int]] = {}
        for first, end in access.ranges.tolist():
            for byte in range(first, end):
                covered.setdefault(byte // sector_bytes, set()).add(byte)
        for sector, touched in sorted(covered.items()):
            if sector not in cache:
                read += sector_bytes * (access.loads or len(touched) < sector_bytes)
            cache[sector] = cache.pop(sector, False) or access.stores
            while len(cache) * sector_bytes > capacity_bytes:
                written += sector_bytes * cache.popitem(last=False)[1]
    return read, written + sector_bytes * sum(cache.values())


@st.composite
def any_access(draw: st.DrawFn) -> Access:
    """Of up to 12 elements anywhere or in a row, or of none."""
    size_bytes = draw(st.sampled_from([1, 2, 4]))
    elements = st.lists(st.integers(0, 40), max_size=12) | st.builds(
        lambda first, count, step: list(range(first, first + count * step, step)),
        st.integers(0, 40),
        st.integers(0, 12),
        st.integers(1, 3),
    )
    addresses = np.array(draw(elements), dtype=np.int64) * size_bytes
    loads, stores = draw(st.sampled_from([(True, False), (False, True), (True, True)]))
    return Access(byte_ranges(addresses, size_bytes), loads, stores)


@given(st.lists(any_access(), max_size=25), st.sampled_from([1, 2, 4, 8]), st.integers(0, 20))
def test_one_pass_gives_what_playing_it_through_gives(accesses, sector_bytes, sectors):
    curve = dram_curve(accesses, sector_bytes=sector_bytes)
    for capacity_bytes in (sectors * sector_bytes, (sectors + 1) * sector_bytes - 1, LARGE):
        assert traffic(curve, capacity_bytes) == played_through(accesses, capacity_bytes, sector_bytes)


def small(**given: Any) -> Problem:
    """Two heads, four tiles of queries, two of keys."""
    shape = {"num_heads": 2, "head_dim": 16, "seqlen_q": 64, "options": {"block_q": 16, "block_k": 32}}
    return Problem(**{**shape, **given})


@cache
def traced(problem: Problem) -> tuple[KernelTrace, dict[str, torch.Tensor]]:
    """Return the trace of a forward pass, and its tensors by name."""
    tensors = make_inputs(problem, seed=0)
    with trace_kernels(keep_accesses=True) as trace:
        result = FLASH.attention(tensors["q"], tensors["k"], tensors["v"], problem=problem)
    return trace, {**tensors, "out": result.out, "lse": result.lse}


def inside(accesses: list[Access], *tensors: torch.Tensor) -> list[Access]:
    """Return the accesses to memory of these tensors."""
    ends = [(x.data_ptr(), x.data_ptr() + x.numel() * x.element_size()) for x in tensors]
    return [
        access
        for access in accesses
        if any(first <= begin < end for begin, _ in access.ranges for first, end in ends)
    ]


KINDS: list[dict[str, Any]] = [
    {"mask": Full()},
    {"mask": Causal()},
    {"mask": Causal(), "dtype": "float16"},
    {"mask": SlidingWindow(20)},
    {"mask": Causal(), "num_heads": 4, "num_kv_heads": 2},
    {"mask": Full(), "batch": 2, "key_lengths": (20, 64)},
    {"mask": Causal(), "seqlen_q": 40, "seqlen_k": 64, "head_dim_v": 32},
]


@pytest.mark.parametrize("given", KINDS, ids=str)
@pytest.mark.parametrize("resident_programs", [1, 3, 64])
def test_a_cache_that_holds_everything_leaves_the_compulsory_bytes(given, resident_programs):
    """To the byte, of q, k, v and out; beside them the kernel writes lse and reads its bounds."""
    problem = Problem(
        **{
            "num_heads": 2,
            "head_dim": 16,
            "seqlen_q": 128,
            "options": {"block_q": 16, "block_k": 32},
            **given,
        }
    )
    trace, tensors = traced(problem)
    accesses = trace.accesses(resident_programs)
    held = inside(accesses, *(tensors[name] for name in ("q", "k", "v", "out")))
    assert dram_curve(held).dram_bytes(LARGE) == compulsory_bytes(problem)
    lse_bytes, bounds_bytes = 4 * tensors["lse"].numel(), 32
    curve = dram_curve(accesses)
    assert curve.dram_bytes(LARGE) == compulsory_bytes(problem) + lse_bytes + bounds_bytes
    assert curve.write_bytes(LARGE) == problem.dtype_bytes * tensors["out"].numel() + lse_bytes


@pytest.mark.parametrize("given", KINDS, ids=str)
def test_without_a_cache_every_requested_byte_crosses(given):
    """One program after the other, sectors as small as the elements."""
    problem = Problem(
        **{
            "num_heads": 2,
            "head_dim": 16,
            "seqlen_q": 128,
            "options": {"block_q": 16, "block_k": 32},
            **given,
        }
    )
    trace, _ = traced(problem)
    curve = dram_curve(trace.accesses(1), sector_bytes=problem.dtype_bytes)
    assert curve.dram_bytes(0) == trace.requested_bytes == FLASH.cost(problem).requested_bytes
    assert traffic(curve, 0) == (trace.load_bytes, trace.store_bytes)


@pytest.mark.parametrize("resident_programs", [1, 3])
@pytest.mark.parametrize("mask", [Full(), Causal()], ids=lambda mask: mask.slug)
def test_between_them_traffic_falls_as_the_cache_grows(mask, resident_programs):
    problem = small(mask=mask)
    trace, _ = traced(problem)
    curve = dram_curve(trace.accesses(resident_programs), sector_bytes=4)
    steps = [0, *curve.capacities()]
    assert len(steps) > 1
    assert all(curve.dram_bytes(less) > curve.dram_bytes(more) for less, more in pairwise(steps))
    assert all(curve.dram_bytes(more - 1) == curve.dram_bytes(less) for less, more in pairwise(steps))
    assert curve.dram_bytes(steps[-1]) == curve.dram_bytes(LARGE)


def test_the_cliff_is_where_k_and_v_of_a_head_fit():
    """Full mask, one program at a time: between two visits of a tile lie K, V, a tile of q, out and lse, and
    the bounds. A cache of K and V alone saves nothing, one that holds the rest too saves all that can be.
    """
    problem = small(mask=Full())
    trace, tensors = traced(problem)
    curve = dram_curve(trace.accesses(1), sector_bytes=4)
    keys_and_values, tile, bounds = 2 * 64 * 16 * 4, 16 * (16 + 16 + 1) * 4, 2 * 4
    assert curve.dram_bytes(keys_and_values) == trace.requested_bytes
    left = compulsory_bytes(problem) + 4 * tensors["lse"].numel() + bounds
    assert curve.dram_bytes(keys_and_values + tile + bounds) == left


def test_programs_side_by_side_share_the_tiles_that_they_read():
    """All tiles of queries of two heads in step: a cache of much less than K and V serves them all."""
    problem = small(mask=Full())
    trace, _ = traced(problem)
    alone, together = (dram_curve(trace.accesses(programs)) for programs in (1, 8))
    assert alone.dram_bytes(LARGE) == together.dram_bytes(LARGE)
    one_step = 2 * 32 * 16 * 4
    assert together.read_bytes(one_step) == together.read_bytes(LARGE)
    assert alone.read_bytes(one_step) > 2 * alone.read_bytes(LARGE)


@pytest.mark.long
def test_a_million_touches_take_seconds():
    """No time is asserted: quadratic work would not end."""
    piece = np.random.default_rng(0).integers(0, 5000, 1_000_000)
    ones = np.ones(piece.size, dtype=np.bool_)
    curve = DramCurve(Touches(piece, np.full(piece.size, 32), ones, piece % 2 == 0))
    assert traffic(curve, LARGE) == (32 * 5000, 32 * 2500)
    assert traffic(curve, 0) == (32 * 1_000_000, 32 * int(np.count_nonzero(piece % 2 == 0)))
