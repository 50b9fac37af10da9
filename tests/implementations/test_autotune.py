"""The search for tiles, with times that are made up: what is tried, what wins, what is printed, and when."""

import tomllib
from functools import partial

import pytest
import torch

from attnbench.contract.discovery import get_implementation
from attnbench.contract.masks import SlidingWindow
from attnbench.contract.problem import Problem
from attnbench.implementations._flash import autotune as flash_autotune
from attnbench.implementations._flash import tiles as flash_tiles
from attnbench.implementations._flash.memory import least_shared_bytes
from attnbench.implementations._flash.tiles import Tile, table_tile, tile_for
from attnbench.implementations._linear import autotune as linear_autotune
from attnbench.implementations._linear import tiles as linear_tiles
from attnbench.implementations._linear.tiles import LinearTile, linear_tile_for
from attnbench.implementations._shared import autotune, autotune_gpu
from attnbench.implementations._shared.autotune import LEAST_GAIN, Trial, fastest, search, with_neighbours
from attnbench.implementations._shared.autotune_gpu import alike
from attnbench.implementations._shared.operators import launched

ENTRY, WIDE, DEEP = Tile(64, 64, 4, 2), Tile(128, 64, 4, 2), Tile(64, 64, 4, 3)
ON_GPU = Problem(seqlen_q=4096, head_dim=128, dtype="bfloat16", device="cuda", mode="fwd_bwd")
SHARED_BYTES = {"sm_80": 166_912, "sm_86": 101_376, "sm_90": 232_448, "sm_100": 232_448, "sm_120": 101_376}
KERNELS = ("forward", "dq", "dkdv", "decode")
FLASH, LINEAR = get_implementation("triton-flash"), get_implementation("linear")


def attempts(trials):
    """An attempt that knows its answers; a tile without one does not compile."""

    def attempt(tile):
        if tile not in trials:
            raise RuntimeError("PassManager::run failed")
        return Trial(*trials[tile])

    return attempt


def test_neighbours_differ_in_one_number():
    found = with_neighbours([ENTRY, WIDE], flash_autotune.STEPS)
    assert found[:2] == [ENTRY, WIDE]
    assert len(found) == len(set(found))
    for tile in found[2:]:
        assert min(sum(a != b for a, b in zip(tile, entry, strict=True)) for entry in (ENTRY, WIDE)) == 1
    assert {Tile(32, 64, 4, 2), Tile(64, 128, 4, 2), Tile(64, 64, 8, 2), DEEP, Tile(64, 64, 4, 2, 1)} <= {
        *found
    }


@pytest.mark.parametrize(
    ("trials", "winner"),
    [
        ({ENTRY: (1.0, 0), WIDE: (0.7, 0), DEEP: (0.8, 0)}, WIDE),
        ({ENTRY: (1.0, 0), WIDE: (1.0, 0), DEEP: (1.1, 0)}, ENTRY),
        ({ENTRY: (1.0, 0), WIDE: (1 - LEAST_GAIN / 2, 0)}, ENTRY),
        ({ENTRY: (1.0, 0), WIDE: (0.5, 8), DEEP: (0.8, 0)}, DEEP),
        ({ENTRY: (1.0, 8), WIDE: (0.5, 8)}, WIDE),
        ({ENTRY: (1.0, 0), DEEP: (0.8, 0)}, DEEP),
        ({DEEP: (2.0, 0), WIDE: (3.0, 0)}, DEEP),
        ({}, ENTRY),
    ],
    ids=[
        "the fastest",
        "equal times",
        "a gain that may be noise",
        "one that spills",
        "spills as the table's does",
        "one that does not compile",
        "the table's does not fit",
        "none runs",
    ],
)
def test_the_fastest_tile_that_runs_and_spills_no_more_than_the_table_s(trials, winner):
    found = fastest([ENTRY, WIDE, DEEP], attempts(trials))
    assert found.tile == winner
    assert (found.tried, found.failed) == (3, 3 - len(trials))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("target", SHARED_BYTES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_is_tried_fits_the_gpu(kernel, target, dtype):
    p = ON_GPU.replace(dtype=dtype)
    entry, *others = flash_autotune.candidates(p, kernel, target, SHARED_BYTES[target])
    assert entry == tile_for(p, target, kernel)
    assert len(others) >= 5
    for tile in (entry, *others):
        needed = least_shared_bytes(kernel, tile, (p.head_dim, p.head_dim_v), p.dtype_bytes)
        assert needed <= SHARED_BYTES[target]
    assert any(tile.tma for tile in others) is (kernel != "decode" and target in ("sm_90", "sm_100"))


def test_a_gpu_with_less_shared_memory_tries_fewer_tiles():
    tiles = [
        flash_autotune.candidates(ON_GPU, "forward", "sm_80", shared_bytes)
        for shared_bytes in (166_912, 101_376, 0)
    ]
    assert len(tiles[0]) > len(tiles[1]) > len(tiles[2])
    assert tiles[2] == [tile_for(ON_GPU, "sm_80")]


def test_no_tile_is_longer_than_few_queries():
    few = ON_GPU.replace(seqlen_q=16, num_kv_heads=4)
    for kernel, longest in (("forward", 16), ("decode", 32)):
        tiles = flash_autotune.candidates(few, kernel, "sm_90", SHARED_BYTES["sm_90"])
        assert max(tile.block_q for tile in tiles) == longest


def test_blocks_of_linear_attention_are_no_longer_than_chunks():
    entry, *others = linear_autotune.candidates(ON_GPU, "forward", "sm_90")
    assert entry == linear_tile_for(ON_GPU, "forward", "sm_90")
    assert len(others) >= 5
    assert all(tile.block <= tile.chunk_size for tile in others)


def made_up_time(tile):
    """Any order that is no accident: the last of the tiles by their numbers is the fastest."""
    return Trial(1 / sum(number * 7**place for place, number in enumerate(tile)), 0)


def parsed(text):
    comment, *_ = text.splitlines()
    assert comment.startswith("# ")
    return tomllib.loads(text)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("widths", [(80, 80), (64, 256)])
def test_the_row_that_is_printed_can_be_put_into_the_table(
    kernel, target, dtype, widths, capsys, monkeypatch
):
    p = ON_GPU.replace(dtype=dtype, head_dim=widths[0], head_dim_v=widths[1])
    tiles = flash_autotune.candidates(p, kernel, target, SHARED_BYTES["sm_90"])
    row = partial(flash_autotune.row, p, kernel, target, "a GPU")
    winner = search(tiles, made_up_time, row)
    assert winner == max(tiles, key=lambda tile: 1 / made_up_time(tile).median_ms)
    assert winner != tiles[0]
    table = parsed(capsys.readouterr().err)
    assert list(table) == [kernel]
    assert list(table[kernel]) == [target]
    monkeypatch.setattr(flash_tiles, "tile_table", lambda: table)
    assert table_tile.__wrapped__(kernel, target, p.dtype_bytes, max(widths)) == winner


def test_a_tile_cut_to_few_queries_is_printed_uncut(capsys):
    few = ON_GPU.replace(seqlen_q=16, mode="fwd")
    tiles = flash_autotune.candidates(few, "forward", "sm_90", SHARED_BYTES["sm_90"])
    winner = search(tiles, made_up_time, partial(flash_autotune.row, few, "forward", "sm_90", "a GPU"))
    block_q, *rest = parsed(capsys.readouterr().err)["forward"]["sm_90"]["16"]["128"]
    assert winner.block_q == 16
    assert block_q == table_tile("forward", "sm_90", 2, 128).block_q
    assert Tile(16, *rest) == winner


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_so_can_a_row_of_linear_attention(direction, capsys, monkeypatch):
    tiles = linear_autotune.candidates(ON_GPU, direction, "sm_89")
    row = partial(linear_autotune.row, ON_GPU, direction, "sm_89", "a GPU")
    winner = search(tiles, made_up_time, row)
    assert winner != tiles[0]
    table = parsed(capsys.readouterr().err)
    monkeypatch.setattr(linear_tiles, "linear_tile_table", lambda: table)
    assert linear_tile_for(ON_GPU, direction, "sm_89") == winner


def test_the_comment_of_a_row_says_what_was_compared():
    found = fastest([ENTRY, WIDE, DEEP], attempts({ENTRY: (1.25, 0), WIDE: (1.0, 0)}))
    comment, *_ = autotune.table_row("forward.sm_90", "16", 64, WIDE, found, "a GPU").splitlines()
    assert comment == "# a GPU: 1 ms, the table's tile 1.25 ms; 3 tiles, 1 of which did not run"


SMALL = Problem(seqlen_q=40, num_heads=2, num_kv_heads=1, head_dim=16, mode="fwd_bwd")


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_tile_is_tried_on_the_kernel_itself(kernel):
    """Interpreted: what is timed are launches of the kernel, and their results don't depend on the tile."""
    p = SMALL.replace(seqlen_q=12, mask=SlidingWindow(20))
    calls = flash_autotune.calls_of(p, kernel, "cpu", torch.device("cpu"))
    results = []
    for tile in (Tile(16, 32, 4, 1), Tile(32, 16, 4, 1)):
        with launched() as seen:
            results.append([x for x in calls(tile)() if x.numel()])
        assert len(seen) >= 1
    for first, second in zip(*results, strict=True):
        assert first.isfinite().all()
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("direction", "launches"), [("forward", 3), ("backward", 7)])
def test_both_passes_of_linear_attention_are_tried_whole(direction, launches):
    calls = linear_autotune.calls_of(SMALL, direction, "cpu", torch.device("cpu"))
    results = []
    for tile in (LinearTile(16, 16, 16, 4, 1), LinearTile(32, 16, 16, 4, 1)):
        with launched() as seen:
            results.append(calls(tile)())
        assert len(seen) == launches
    for first, second in zip(*results, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)


def test_the_random_numbers_of_a_process_stay_as_they_are():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    autotune_gpu.random_inputs(SMALL, torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.fixture
def no_search(monkeypatch):
    def refuse(*_):
        raise AssertionError("nothing is to be searched")

    for module in (flash_autotune, linear_autotune):
        monkeypatch.setattr(module, "fastest_tile", refuse)


@pytest.fixture
def gpu(monkeypatch):
    """A process that says it uses an H200."""
    for name, answer in {
        "is_initialized": True,
        "current_device": 0,
        "get_device_capability": (9, 0),
        "get_device_name": "NVIDIA H200",
        "empty_cache": None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    for module in (flash_autotune, linear_autotune):
        module._fastest_on.cache_clear()
    monkeypatch.setattr(flash_autotune, "shared_bytes_per_block", lambda index: SHARED_BYTES["sm_90"])
    monkeypatch.setenv(autotune.VARIABLE, "1")


@pytest.mark.parametrize("value", [None, "0", ""])
def test_without_the_variable_nothing_is_searched(value, gpu, no_search, monkeypatch):
    monkeypatch.delenv(autotune.VARIABLE)
    if value is not None:
        monkeypatch.setenv(autotune.VARIABLE, value)
    assert tile_for(ON_GPU) == table_tile("forward", "sm_90", 2, 128)
    assert linear_tile_for(ON_GPU, "forward") == linear_tile_for(ON_GPU, "forward", "sm_90")


def test_without_a_gpu_the_table_answers_and_one_line_says_so(no_search, monkeypatch, capsys):
    monkeypatch.setenv(autotune.VARIABLE, "1")
    monkeypatch.setattr("attnbench.device.hardware.cuda_devices", lambda: [])
    autotune._say_where_no_gpu_is.cache_clear()
    assert tile_for(ON_GPU) == tile_for(ON_GPU, "sm_80")
    assert tile_for(ON_GPU.replace(device="cpu", dtype="float32")).block_q == 128
    assert linear_tile_for(ON_GPU, "forward") == linear_tile_for(ON_GPU, "forward", "sm_80")
    assert capsys.readouterr().err == (
        "ATTNBENCH_AUTOTUNE=1, but there is no GPU: tiles are those of the table\n"
    )


def test_what_is_pinned_or_elsewhere_is_never_searched(gpu, no_search):
    assert tile_for(ON_GPU.replace(options={"num_stages": 1})).num_stages == 1
    assert tile_for(ON_GPU, "sm_80") == table_tile("forward", "sm_80", 2, 128)
    assert tile_for(ON_GPU.replace(device="cpu", dtype="float32")).block_q == 128
    assert linear_tile_for(ON_GPU.replace(options={"chunk_size": 64}), "forward").chunk_size == 64
    step = ON_GPU.replace(mode="decode", seqlen_q=1)
    assert LINEAR.configuration(step)["step"] == linear_tile_for(step, "forward", "sm_90")._asdict()


@pytest.fixture
def searches(gpu, monkeypatch):
    """A search whose calls are their tiles, with made-up times; tells what was searched for."""
    found = []

    def calls_of(problem, what, target, device):
        found.append((what, target, problem.seqlen_k))
        return lambda tile: tile

    for module in (flash_autotune, linear_autotune):
        monkeypatch.setattr(module, "calls_of", calls_of)
        monkeypatch.setattr(module, "time_on_gpu", made_up_time)
    return found


def test_a_search_is_made_once_for_problems_that_are_alike(searches, capsys):
    """A sequence that grows by a token is not tuned for each."""
    tiles = {tile_for(ON_GPU.replace(seqlen_q=n), kernel="dq") for n in (4096, 4000, 2049)}
    assert len(tiles) == 1
    assert searches == [("dq", "sm_90", 4096)]
    row = capsys.readouterr().err
    assert row.startswith("# NVIDIA H200, bfloat16, 1 × 8 heads of 128, 4096 × 4096, causal: ")
    tile_for(ON_GPU.replace(seqlen_q=8192, seqlen_k=8192), kernel="dq")
    assert searches[1:] == [("dq", "sm_90", 8192)]


def test_alike_are_problems_with_lengths_of_one_magnitude():
    p = ON_GPU.replace(seqlen_q=1, seqlen_k=4097, mode="decode", options={"return_lse": True})
    cache = p.replace(batch=2, key_lengths=(7, 4097), query_start=(6, 4096))
    assert alike(p) == alike(cache).replace(batch=1)
    assert (alike(p).seqlen_q, alike(p).seqlen_k) == (1, 8192)
    assert alike(ON_GPU) != alike(ON_GPU.replace(mode="fwd"))


def test_everything_takes_the_tile_that_was_found(searches):
    """The numbers of a record are of the tile that is launched."""
    before = FLASH.cost(ON_GPU.replace(options=tile_for(ON_GPU, "sm_90")._asdict()))
    chosen = FLASH.configuration(ON_GPU)
    assert list(chosen) == ["forward", "dq", "dkdv"]
    assert chosen["forward"] == tile_for(ON_GPU)._asdict() != tile_for(ON_GPU, "sm_90")._asdict()
    assert FLASH.cost(ON_GPU).requested_bytes != before.requested_bytes
    assert [what for what, *_ in searches] == ["forward", "dq", "dkdv"]
    assert LINEAR.configuration(ON_GPU.replace(mode="fwd")).keys() == {"forward"}


def test_where_memory_is_short_the_table_s_tile_is_taken(gpu, monkeypatch, capsys):
    monkeypatch.setattr(flash_autotune, "calls_of", out_of_memory_of)
    assert tile_for(ON_GPU) == tile_for(ON_GPU, "sm_90")
    assert capsys.readouterr().err == ("no memory left to search for tiles: that of the table is taken\n")


def out_of_memory_of(*_):
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_empty_problems_are_not_searched(searches):
    assert tile_for(ON_GPU.replace(seqlen_q=0, seqlen_k=8))
    assert FLASH.configuration(ON_GPU.replace(batch=0)) == {}
    assert LINEAR.configuration(ON_GPU.replace(batch=0)) == {}
    assert searches == []


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_search_on_the_gpu_that_is_here(kernel, monkeypatch, capsys):
    monkeypatch.setenv(autotune.VARIABLE, "1")
    torch.cuda.init()
    p = Problem(seqlen_q=512, seqlen_k=512, head_dim=64, dtype="float16", device="cuda", mode="fwd_bwd")
    tile = tile_for(p if kernel != "decode" else p.replace(seqlen_q=1, mode="decode"), kernel=kernel)
    rows = parsed(capsys.readouterr().err)
    assert tile.block_k == rows[kernel][flash_tiles.current_target("cuda")]["16"]["64"][1]
