"""Verdicts follow from what is expected, what was measured and the tolerance; a run may tell some of it."""

import math
from itertools import product
from typing import Any

import msgspec
import pytest

from attnbench.analysis.claim_runs import measured_in
from attnbench.analysis.claims import Claim, Estimate, Expectation, judge, load_claims
from attnbench.contract.errors import UsageError
from attnbench.render.claims import WIDTH, claim_lines, expected_words, measured_words
from tests.analysis.synthetic import make_record, make_run

CLAIMS = load_claims()
SEQLENS = [256 * 2**power for power in range(8)]


def inside(expectation: Expectation) -> float:
    """A number that meets it."""
    low, high = expectation.accepted
    return low if math.isfinite(low) else high


def beyond(expectation: Expectation) -> list[float]:
    """Numbers that just don't, above and below."""
    low, high = expectation.accepted
    return [
        *([math.nextafter(low, -math.inf)] if math.isfinite(low) else []),
        *([math.nextafter(high, math.inf)] if math.isfinite(high) else []),
        math.nan,
    ]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_what_is_measured_decides(claim: Claim) -> None:
    """Each quantity alone turns the verdict, each way."""
    met = {one.quantity: inside(one) for one in claim.expected}
    assert judge(claim, met).verdict == "holds"
    for one in claim.expected:
        for value in beyond(one):
            row = judge(claim, {**met, one.quantity: value})
            assert row.verdict == "fails"
            assert [part.expectation.quantity for part in row.parts if not part.holds] == [one.quantity]
        assert judge(claim, {one.quantity: met[one.quantity]}).verdict == "holds"
    assert judge(claim, {}).verdict == "needs a GPU"


def test_ids_are_unique_and_said_to_be_unknown() -> None:
    ids = [claim.id for claim in CLAIMS]
    assert len(ids) == len(set(ids))
    assert [claim.id for claim in load_claims(["path-length", "attention-time"])] == [
        "attention-time",
        "path-length",
    ]
    with pytest.raises(UsageError, match=r"unknown claim 'path-lenght' \(did you mean 'path-length'\?\)"):
        load_claims(["path-lenght"])


def test_only_claims_of_a_gpu_measure_nothing() -> None:
    for claim in CLAIMS:
        assert bool(claim.measure) != (claim.needs == "a GPU"), claim.id


@pytest.mark.parametrize(("low", "high", "met"), [(1.7, 2.3, True), (2.3, 2.6, False), (1.2, 1.74, False)])
def test_an_estimate_is_met_anywhere_in_its_interval(low: float, high: float, met: bool) -> None:
    one = Expectation(quantity="x", text="x", equals=2, tolerance=0.25)
    assert one.met_by(Estimate((low + high) / 2, low, high)) is met


@pytest.mark.parametrize("limits", [{}, {"equals": 1, "at_least": 0}])
def test_an_expectation_is_of_one_kind(limits: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="x: give equals, or at_least, at_most or both"):
        Expectation(quantity="x", text="x", **limits)
    with pytest.raises(msgspec.ValidationError, match="x: give equals"):
        msgspec.convert({"quantity": "x", "text": "x", **limits}, Expectation)


def claim_of(claim_id: str) -> Claim:
    return load_claims([claim_id])[0]


def test_exponents_of_a_run() -> None:
    """An overhead of 1 ms does not lower them; what could not be timed does not count."""
    records = [
        make_record(name, n, latency_ms=1 + (n / 2048) ** power)
        for (name, power), n in product((("naive", 2.0), ("linear", 1.6)), SEQLENS)
    ]
    records.append(make_record("naive", 65536, latency_ms=1e-3, verdict=["implausible"]))
    found = measured_in(make_run(records), CLAIMS)
    assert set(found) == {"attention-time", "linear-time"}
    power = found["attention-time"]["latency_power_of_n"]
    assert power == pytest.approx((2, 2, 2), abs=0.01)
    counted = {"power_of_n": 1.0, "power_of_d": 2.0}
    row = judge(claim_of("linear-time"), counted | found["linear-time"])
    assert row.verdict == "fails"
    assert [part.holds for part in row.parts] == [True, True, False]


@pytest.mark.parametrize(
    ("times", "device", "verdict"),
    [
        ((2.5, 3.5), "cuda", "holds"),
        ((2.5, 9.0), "cuda", "fails"),
        ((1.2, 3.5), "cuda", "fails"),
        ((2.5, 3.5), "cpu", "needs a GPU"),
    ],
)
def test_speedups_of_a_run_on_a_gpu(times: tuple[float, float], device: str, verdict: str) -> None:
    """From 1k on, at lengths that both have, under one mask."""
    lengths, full = {256: 40.0, 1024: times[0], 4096: times[1]}, {"name": "full"}
    records = [
        make_record(name, n, latency_ms=n * (faster if name == "naive" else 1), device=device, mode=mode)
        for name, (n, faster), mode in product(("naive", "triton-flash"), lengths.items(), ("fwd", "fwd_bwd"))
    ]
    records.append(make_record("naive", 16384, latency_ms=1e9, device=device))
    records.append(make_record("naive", 4096, latency_ms=1e9, device=device, mask=full))
    found = measured_in(make_run(records), CLAIMS).get("flash-speed", {})
    assert judge(claim_of("flash-speed"), found).verdict == verdict
    if found:
        assert (found["least_speedup"].value, found["largest_speedup"].value) == pytest.approx(times)


@pytest.mark.parametrize(
    ("factor", "longest", "verdict"),
    [
        (4.0, 32768, "fails"),  # meets at 8k
        (128.0, 32768, "holds"),  # meets at 256k, a guess
        (0.01, 32768, "fails"),  # was faster from the first length on
        (1e5, 32768, "needs a GPU"),  # never met, and 32k is not 100k
        (1e5, 131072, "holds"),
    ],
)
def test_where_a_run_on_a_gpu_has_one_overtake_the_other(factor: float, longest: int, verdict: str) -> None:
    records = [
        make_record(
            name, n, latency_ms=factor * n / 2048 if name == "linear" else (n / 2048) ** 2, device="cuda"
        )
        for name, n in product(
            ("linear", "triton-flash"), [n for n in [*SEQLENS, 65536, 131072] if n <= longest]
        )
    ]
    found = measured_in(make_run(records), CLAIMS).get("exact-to-100k", {})
    assert judge(claim_of("exact-to-100k"), found).verdict == verdict


def test_an_exponent_that_could_be_two_is_left_out() -> None:
    """Four lengths that lie half off a line: the interval holds n as well as n²."""
    off = (0.7, 1.4, 0.7, 1.4)
    records = [
        make_record("naive", n, latency_ms=n * by) for n, by in zip((256, 512, 1024, 2048), off, strict=True)
    ]
    assert measured_in(make_run(records), CLAIMS) == {}


def test_runs_that_can_tell_nothing() -> None:
    assert measured_in(make_run([]), CLAIMS) == {}
    records = [make_record("naive", n, latency_ms=math.nan) for n in SEQLENS]
    records += [make_record("naive", n, status="oom", reason="16 GiB", device="cuda") for n in SEQLENS]
    assert measured_in(make_run(records), CLAIMS) == {}


def test_lines_fit_and_say_what_failed() -> None:
    wide = Estimate(123456.78, 98765.43, math.inf)
    rows = [
        judge(claim, {one.quantity: wide if one.of else -1.23456e-17 for one in claim.expected})
        for claim in CLAIMS
    ]
    rows += [judge(claim, {}) for claim in CLAIMS]
    lines = list(claim_lines(rows))
    assert max(map(len, lines)) <= WIDTH
    row = judge(claim_of("attention-time"), {"power_of_n": 2.0, "power_of_d": 1.4999})
    assert list(claim_lines([row])) == [
        "attention-time: fails",
        "  Self-attention costs O(n²·d) time",
        "  [arXiv 1706.03762, table 1]",
        "                                        expected           measured",
        "  ✓ FLOPs, power of n                   2 ± 0.05           2",
        "  ✗ FLOPs, power of d                   1 ± 0.05           1.5",
        "  · latency, power of n                 2 ± 0.25           needs a run",
        "",
        "1 claim: 1 fails",
    ]


@pytest.mark.parametrize(
    ("limits", "unit", "words"),
    [
        ({"equals": 2, "tolerance": 0.05}, "", "2 ± 0.05"),
        ({"equals": 0}, "", "0"),
        ({"equals": 40.3e9, "tolerance": 2.015e9}, "B", "40.3 GB ± 5 %"),
        ({"equals": 963e9, "tolerance": 1e9}, "FLOP", "963 GFLOP ± 0.1 %"),
        ({"at_least": 10e9, "at_most": 100e9}, "B", "10.0 GB to 100 GB"),
        ({"at_least": 0.8}, "", "≥ 0.8"),
        ({"at_most": 1e-12}, "", "≤ 1e-12"),
        ({"at_most": 0}, "", "≤ 0"),
    ],
)
def test_words_of_an_expectation(limits: dict[str, Any], unit: str, words: str) -> None:
    assert expected_words(Expectation(quantity="x", text="x", unit=unit, **limits)) == words


def test_words_of_a_measurement() -> None:
    claim = claim_of("attention-time")
    row = judge(
        claim, {"power_of_n": 1.98, "power_of_d": 5.4e-16, "latency_power_of_n": Estimate(2.03, 1.9, 2.2)}
    )
    assert [measured_words(part) for part in row.parts] == ["1.98", "5.4e-16", "2.03 (1.9 to 2.2)"]
    failed = judge(claim, {"power_of_n": -math.inf, "power_of_d": math.nan})
    assert [measured_words(part) for part in failed.parts] == ["−∞", "not a number", "needs a run"]


def test_plain_rows_are_json_whatever_was_measured() -> None:
    row = judge(claim_of("exact-to-100k"), {"overtaken_at": Estimate(5e5, 1e5, math.inf)}).to_dict()
    assert row["expected"] == {"overtaken_at": {"at_least": 100e3, "tolerance": 0.0}}
    assert row["measured"] == {"overtaken_at": {"value": 5e5, "low": 1e5, "high": None}}
    assert (row["verdict"], row["met"]) == ("holds", {"overtaken_at": True})
    assert judge(claim_of("exact-to-100k"), {}).to_dict()["measured"] == {"overtaken_at": None}
