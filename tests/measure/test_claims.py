"""What claims rest on is measured: closed forms that the numbers must meet, and subjects that turn verdicts.

A verdict that stays when the thing measured is another one would be hard-coded.
"""

import inspect
from math import isclose, log
from pathlib import Path

import pytest
import torch

from attnbench.analysis.claim_runs import QUANTITIES
from attnbench.analysis.claims import judge, load_claims
from attnbench.contract.discovery import get_implementation
from attnbench.contract.errors import UsageError
from attnbench.contract.masks import Full
from attnbench.contract.problem import Problem
from attnbench.measure.claims import gpt2_traffic, scores
from attnbench.measure.claims.checks import CHECKS, measure_claim
from attnbench.measure.claims.paths import longest_chain, shortest_way
from attnbench.measure.claims.tiles import requested_bytes

TOYS = Path(__file__).parents[1] / "toys" / "wrong_attentions.py"
CLAIMS = {claim.id: claim for claim in load_claims()}


def toy(name: str) -> str:
    return f"{TOYS}#{name}"


def verdict(claim_id: str, **changed) -> str:
    """The verdict with other keywords for every measurement of the claim that has them."""
    claim = CLAIMS[claim_id]
    measure = [{name: changed.get(name, value) for name, value in one.items()} for one in claim.measure]
    assert measure != claim.measure or not changed
    return judge(claim, measure_claim(measure)).verdict


@pytest.mark.parametrize(
    ("claim_id", "other", "becomes"),
    [
        ("attention-time", {"implementation": "linear", "n": [512, 1024]}, "fails"),
        ("attention-memory", {"implementation": "triton-flash"}, "fails"),
        ("attention-memory", {"implementation": toy("products-kept")}, "fails"),
        ("attention-memory-width", {"implementation": toy("products-kept")}, "holds"),
        ("flash-memory", {"implementation": "naive"}, "fails"),
        ("plain-accesses", {"implementation": "sdpa"}, "fails"),
        ("plain-accesses-width", {"implementation": toy("products-kept")}, "holds"),
        ("gpt2-traffic", {"block_k": 64}, "fails"),
        ("gpt2-traffic", {"implementation": "naive"}, "fails"),
        ("gpt2-flops-printed", {"batch": 81, "num_heads": 1}, "holds"),
        ("gpt2-flops-corrected", {"tiled": "naive"}, "fails"),
        ("rows-sum-to-1", {"implementations": ["naive", toy("unnormalised")]}, "fails"),
        ("output-rows", {"implementations": ["naive", toy("row-of-each-key")]}, "fails"),
        ("permutation-equivariance", {"implementations": ["naive", toy("by-distance")]}, "fails"),
        ("causal-mask", {"implementations": [toy("sees-the-next")]}, "fails"),
        ("padding-mask", {"implementations": [toy("sees-the-next")]}, "fails"),
        ("heads-cost", {"num_heads": 4}, "fails"),
        ("path-length", {"implementation": toy("one-key-after-the-other")}, "fails"),
        ("matrix-at-128k", {"implementation": "sdpa"}, "fails"),
        ("layer-at-128k", {"seqlen": 32768}, "holds"),
        ("window-time", {"implementation": "naive"}, "fails"),
        ("linear-time", {"implementation": "naive", "options": {}}, "fails"),
        ("decoded-token", {"implementation": "linear", "n": [512, 1024]}, "fails"),
    ],
)
def test_another_subject_turns_the_verdict(claim_id: str, other: dict[str, object], becomes: str) -> None:
    assert verdict(claim_id, **other) == becomes


def test_scores_of_another_size_turn_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict("softmax-saturates", n=256) == "holds"
    assert verdict("softmax-saturates", d=[1, 2]) == "fails"
    normal = scores._normal
    monkeypatch.setattr(scores, "_normal", lambda *args: 2 * normal(*args))
    assert verdict("score-variance") == "fails"


def test_a_scale_keeps_softmax_soft() -> None:
    found = CHECKS["score-statistics"](d=[64, 512], n=256, scale_power=0.0)
    assert found["scaled_entropy"] == found["raw_entropy"]
    assert found["scaled_gradient"] == found["raw_gradient"]


def test_requested_bytes_are_the_closed_form(checked_integers: None) -> None:
    """256 queries of 32 in tiles of 64: q, out and lse of a tile, all keys and values, 8 bytes of bounds."""
    of_tile = 64 * 32 * 4 * 2 + 64 * 4 + 256 * 32 * 4 * 2 + 8
    assert requested_bytes("triton-flash", 256, 32, 64, "float32") == 4 * of_tile


def test_accesses_fall_with_the_memory_on_chip() -> None:
    """The exact secants of n·d·(1 + n/B) elements twice, 4 bytes a row of lse, with B = M / 4d."""

    def moved(n: int, d: int, m: int) -> float:
        tiles = n * 4 * d / m
        return 8 * n * d * (1 + tiles) + 4 * n + 8 * tiles

    found = CHECKS["requested-growth"](
        implementation="triton-flash", n=[512, 1024], d=[32, 64], m=[8192, 16384]
    )
    begin = moved(512, 32, 8192)
    for letter, other in (("n", (1024, 32, 8192)), ("d", (512, 64, 8192)), ("m", (512, 32, 16384))):
        assert isclose(found[f"power_of_{letter}"], log(moved(*other) / begin) / log(2), rel_tol=1e-12)
    assert judge(CLAIMS["flash-accesses"], found).verdict == "fails"  # 512 is not n ≫ M / 4d


def test_training_bytes_of_the_plain_chain_by_hand() -> None:
    """Passes over the scores: forward 1 + 2 + 2 + 2½ + 1, backward 2 + 2½ + 3 + 2; over q: 4 + 8 + 4.

    The product writes, mask and softmax read and write, dropout also writes a byte an element, the product
    reads; backward mirrors it. Of q's size: inputs and results of six products, dq and dk scaled.
    """
    heads, n, d, size = 3, 128, 16, 2
    scores, rows, mask = heads * n * n * size, heads * n * d * size, n * n * size
    expected = 18 * scores + 16 * rows + mask
    assert gpt2_traffic.plain_training_bytes(heads, n, d, torch.float16) == expected


def test_training_bytes_of_tiles_by_hand() -> None:
    """Four tiles of keys; tensors of n·d: forward 2 + 4·2 + 3, backward 4 + 4·3 + 1 + 3; rows of 4 bytes:
    forward 4·2 + 3·2, backward 4·2.
    """
    tensor, row = 1024 * 64 * 2, 1024 * 4
    assert gpt2_traffic.tiled_training_bytes(1024, 64, 256, 2) == 33 * tensor + 22 * row
    # Keys that no tile divides are moved once all the same.
    assert gpt2_traffic.tiled_training_bytes(100, 8, 64, 2) == (6 + 2 * 2 + 1 + 2 * 3 + 2) * 1600 + 10 * 400


def test_chains_and_ways_of_a_small_graph() -> None:
    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    end = (x.exp().exp() + y).sum().grad_fn
    assert longest_chain(end) == 5  # sum, add, exp, exp, x
    assert (shortest_way(end, x), shortest_way(end, y)) == (5, 3)
    with pytest.raises(ValueError, match="does not depend"):
        shortest_way(end, torch.ones(3, requires_grad=True))


def test_every_measurement_is_one_that_there_is_and_every_quantity_is_known() -> None:
    for claim in CLAIMS.values():
        for one in claim.measure:
            keywords = {name: value for name, value in one.items() if name not in ("check", "name")}
            inspect.signature(CHECKS[one["check"]]).bind(**keywords)
        for expectation in claim.expected:
            from_run = bool(expectation.needs) or claim.needs == "a GPU"
            assert from_run == (expectation.quantity in QUANTITIES) == bool(expectation.of)


def test_unknown_check_and_names_of_quantities() -> None:
    with pytest.raises(UsageError, match=r"unknown check 'row-sum' \(did you mean 'row-sums'\?\)"):
        measure_claim([{"check": "row-sum"}])
    rows = {"check": "output-rows", "implementations": ["naive"], "lengths": [[2, 3]]}
    assert measure_claim([rows, {**rows, "name": "x"}]) == dict.fromkeys(
        ("least", "most", "x.least", "x.most"), 1.0
    )
    assert measure_claim([]) == {}


def test_toys_are_wrong_in_one_way_only() -> None:
    """The two whose result is right agree with naive."""
    problem = Problem(seqlen_q=8, num_heads=2, head_dim=4, dtype="float64", mask=Full())
    q, k, v = torch.randn(3, 1, 2, 8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    outs = [
        get_implementation(name).attention(q, k, v, problem=problem).out
        for name in ("naive", toy("one-key-after-the-other"), toy("products-kept"))
    ]
    for out in outs[1:]:
        torch.testing.assert_close(out, outs[0])


def test_what_an_implementation_refuses_is_said() -> None:
    with pytest.raises(UsageError, match="linear does not support mask:sliding-window"):
        verdict("window-time", implementation="linear")
