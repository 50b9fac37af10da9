"""The table of tiles: every target has every width, an unlisted GPU takes an older one's."""

import pytest

from attnbench.contract.problem import Problem
from attnbench.implementations._flash.tiles import (
    Tile,
    padded_width,
    table_target,
    table_tile,
    tile_for,
    tile_table,
)


@pytest.mark.parametrize(("width", "padded"), [(0, 16), (8, 16), (16, 16), (17, 32), (80, 128), (256, 256)])
def test_heads_are_padded_to_a_power_of_two(width, padded):
    assert padded_width(width) == padded


@pytest.mark.parametrize(
    ("capability", "target"),
    [
        (70, "sm_80"),
        (80, "sm_80"),
        (87, "sm_86"),
        (89, "sm_86"),
        (90, "sm_90"),
        (103, "sm_100"),
        (121, "sm_120"),
    ],
)
def test_a_gpu_that_is_not_listed_takes_the_nearest_older_entry(capability, target):
    assert table_target(capability) == target


@pytest.mark.parametrize(
    ("kernel", "target"),
    [
        (kernel, target)
        for kernel in ("forward", "dq", "dkdv", "decode")
        for target in sorted(tile_table()[kernel])
    ],
)
@pytest.mark.parametrize("dtype_bytes", [2, 4])
@pytest.mark.parametrize("width", [0, 16, 64, 80, 128, 256])
def test_every_target_has_every_width(kernel, target, dtype_bytes, width):
    block_q, block_k, num_warps, num_stages, tma = table_tile(kernel, target, dtype_bytes, width)
    for size, smallest in ((block_q, 16), (block_k, 16), (num_warps, 1)):
        assert size >= smallest
        assert size & (size - 1) == 0
    assert num_stages >= 1
    assert tma in ((0, 1) if target in ("sm_90", "sm_100") else (0,))


def test_a_short_query_side_takes_a_short_tile_on_a_gpu():
    decoding = Problem(seqlen_q=1, seqlen_k=4096, device="cuda", dtype="bfloat16", mode="decode")
    assert tile_for(decoding).block_q == 16
    assert tile_for(decoding.replace(seqlen_q=50)).block_q == 64
    assert tile_for(decoding.replace(device="cpu")).block_q == 128


def test_a_head_that_is_padded_has_a_tile_of_its_own():
    assert table_tile("forward", "sm_80", 2, 80) != table_tile("forward", "sm_80", 2, 128)
    assert table_tile("forward", "sm_80", 2, 40) == table_tile("forward", "sm_80", 2, 64)


def test_options_override_the_table():
    problem = Problem(seqlen_q=64, options={"block_q": 32, "num_stages": 3})
    assert tile_for(problem) == Tile(32, 256, 4, 3)
