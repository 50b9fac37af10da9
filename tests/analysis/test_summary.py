import pytest

from attnbench.analysis.metrics import LATENCY, PEAK_MEMORY
from attnbench.analysis.rows import rows_of
from attnbench.analysis.series import series_of
from attnbench.analysis.summary import common_length, summarize
from tests.analysis.synthetic import make_record, make_run, quick_run


def summary(*records):
    return summarize(rows_of({"run": make_run(records)}))


def test_known_powers_come_out_as_local_exponents():
    found = summarize(rows_of({"run": quick_run()}))
    exponents = {
        (one.facet.mode, one.label): one.exponent
        for one in found.growth
        if one.metric is LATENCY and one.facet.level == "attention"
    }
    assert exponents == {
        ("fwd", "naive"): pytest.approx(2.0),
        ("fwd", "sdpa"): pytest.approx(1.9),
        ("fwd", "linear"): pytest.approx(1.0),
        ("fwd", "sliding-window (window 256)"): pytest.approx(1.0),
        ("fwd_bwd", "naive"): pytest.approx(2.0),
        ("fwd_bwd", "sdpa"): pytest.approx(1.9),
        ("fwd_bwd", "linear"): pytest.approx(1.0),
        ("fwd_bwd", "sliding-window (window 256)"): pytest.approx(1.0),
    }
    assert {(one.seqlen_from, one.seqlen_to) for one in found.growth if one.facet.mode == "fwd_bwd"} == {
        (1024, 2048)
    }


def test_the_fastest_at_the_longest_common_length_with_ratios():
    records = [make_record("naive", n, latency_ms=n * n / 1e4) for n in (256, 512)]
    records += [make_record("linear", n, latency_ms=n / 100) for n in (256, 512, 1024)]
    (ranking,) = summary(*records).latency
    assert ranking.seqlen == 512
    assert [(one.label, one.value, one.ratio) for one in ranking.standings] == [
        ("linear", 5.12, 1.0),
        ("naive", 26.2144, pytest.approx(5.12)),
    ]
    assert ranking.tied == ranking.missing == ranking.doubts == ()


def test_overlapping_intervals_are_a_tie_and_verdicts_are_passed_on():
    first = make_record("a", latency_ms=1.0, noise=0.05, verdict=("noisy", "shared"))
    second, third = (
        make_record("b", latency_ms=1.08, noise=0.05),
        make_record("c", latency_ms=2.0, noise=0.05),
    )
    (ranking,) = summary(first, second, third).latency
    assert ranking.tied == ("a", "b")
    assert ranking.doubts == ("noisy", "shared")


def test_one_implementation_alone_stands_alone():
    found = summary(make_record("naive", latency_ms=2.0), make_record("sdpa", status="error"))
    (ranking,) = found.latency
    assert [(one.label, one.value) for one in ranking.standings] == [("naive", 2.0)]
    assert ranking.tied == ()
    assert ranking.missing == ("sdpa",)
    assert found.memory == ()


def test_lowest_and_highest_peak_memory():
    found = summary(
        make_record("a", peak_bytes=400), make_record("b", peak_bytes=100), make_record("c", peak_bytes=100)
    )
    (ranking,) = found.memory
    assert ranking.metric is PEAK_MEMORY
    assert [(one.label, one.ratio) for one in ranking.standings] == [("b", 1.0), ("c", 1.0), ("a", 4.0)]


def test_the_common_length_is_where_most_have_a_value():
    records = [make_record("a", 256, latency_ms=1.0), make_record("b", 512, latency_ms=1.0)]
    records += [make_record("c", n, latency_ms=1.0) for n in (256, 512, 1024)]
    assert common_length(series_of(rows_of({"run": make_run(records)}), LATENCY)) == 512
    assert common_length([]) is None


@pytest.mark.parametrize(
    ("seqlens", "latencies", "noise"),
    [((256, 383), (1.0, 9.0), 0.05), ((256, 512), (1.0, 1.1), 0.1)],
)
def test_lengths_too_close_and_overlapping_intervals_have_no_exponent(seqlens, latencies, noise):
    records = [
        make_record("a", n, latency_ms=value, noise=noise)
        for n, value in zip(seqlens, latencies, strict=True)
    ]
    assert summary(*records).growth == ()


def test_what_is_counted_together_adds_up():
    """An output that is not finite has no error; a latency that was withdrawn leaves no doubt behind."""
    wrong = make_record("a", status="incorrect", reason="not finite")
    unsaid = make_record("c", latency_ms=1.0, verdict=("shared",))
    assert unsaid.latency is not None
    unsaid.latency.median_ms = None
    found = summary(wrong, unsaid, make_record("b", error=1e-6, latency_ms=1.0))
    assert (found.accuracy.checked, found.accuracy.incorrect) == (2, 1)
    assert (found.timed, found.doubts) == (1, {})


def test_failures_are_grouped_by_status_with_their_lengths_and_prediction():
    records = [make_record("naive", 256, peak_bytes=1)]
    records += [
        make_record("naive", n, status="oom", reason=f"over by {n}", predicted_peak_bytes=n)
        for n in (1024, 512)
    ]
    records.append(make_record("sdpa", 256, status="crashed", reason="signal 9"))
    oom, crashed = summary(*records).failures
    assert (oom.label, oom.status, oom.seqlens, oom.reason, oom.expected_bytes) == (
        "naive",
        "oom",
        (512, 1024),
        "over by 512",
        512,
    )
    assert (crashed.label, crashed.status) == ("sdpa", "crashed")


def test_accuracy_counts_every_check_and_names_the_closest_call():
    records = [make_record("a", error=1e-6), make_record("b", error=3e-6)]
    records.append(make_record("c", status="incorrect", reason="8e-6 over 4e-6", error=8e-6))
    accuracy = summary(*records).accuracy
    assert (accuracy.checked, accuracy.incorrect) == (3, 1)
    assert accuracy.closest is not None
    assert (accuracy.closest.implementation, accuracy.closest.budget_used) == ("b", pytest.approx(0.75))


def test_tally_doubts_absences_and_other_functions():
    found = summarize(rows_of({"run": quick_run()}))
    assert found.tally == {"ok": 81, "unsupported": 8, "oom": 1}
    assert found.doubts == {"shared": 4}
    assert found.timed == 71
    assert found.other_functions == ("linear",)
    (absence,) = found.absences
    assert (absence.field, absence.implementations, absence.count) == ("latency", ("triton-flash",), 10)


def test_fields_that_are_missing_alike_are_one_absence():
    """Whoever reads wants each reason once, not once a field."""
    on_a_cpu = {
        "telemetry.power_w": "no GPU",
        "telemetry.temperature_c": "no GPU",
        "memory.peak_bytes": "unseen",
    }
    records = [make_record("a", unavailable=on_a_cpu), make_record("a", 512, unavailable=on_a_cpu)]
    records.append(make_record("b", unavailable={"memory.peak_bytes": "unseen"}))
    found = [(one.field, one.reason, one.implementations, one.count) for one in summary(*records).absences]
    assert found == [
        ("telemetry.power_w, telemetry.temperature_c", "no GPU", ("a",), 2),
        ("memory.peak_bytes", "unseen", ("a", "b"), 3),
    ]


def test_nothing_at_all_is_an_empty_summary():
    found = summary()
    assert found.tally == {}
    assert (found.latency, found.growth, found.failures, found.absences) == ((), (), (), ())
    assert found.accuracy.checked == 0
