import pytest

from attnbench.analysis.report import build_report
from attnbench.render.words import accuracy_sentence, answers, doubt_sentence, tally_words
from tests.analysis.synthetic import make_record, make_run


def said(*records):
    (answer,) = answers(build_report([make_run(records)]))
    return [f"{subject}: {text}" for subject, text in answer.lines]


def test_a_clear_winner():
    records = [make_record("a", 4096, latency_ms=2.0), make_record("b", 4096, latency_ms=7.0)]
    assert said(*records) == [
        "Speed: a is fastest at 4k tokens (2.00 ms): 3.5 times faster than b (7.00 ms)."
    ]


def test_a_tie_and_one_behind():
    records = [
        make_record(name, latency_ms=value, noise=0.1) for name, value in (("a", 1.0), ("b", 1.1), ("c", 3.0))
    ]
    assert said(*records) == [
        "Speed: a and b are fastest at 256 tokens (1.00 ms, their 95 % intervals overlap): "
        "3.0 times faster than c (3.00 ms)."
    ]


def test_all_tied():
    records = [make_record(name, latency_ms=1.0, verdict=("few_samples",)) for name in ("a", "b")]
    assert said(*records) == [
        "Speed: a and b can't be told apart at 256 tokens (1.00 ms, their 95 % intervals overlap) "
        "(take with care: few samples)."
    ]


def test_one_alone_and_those_without_a_value():
    records = [
        make_record("a", latency_ms=1.0, peak_bytes=2048),
        make_record("b", unavailable={"latency": "none"}),
    ]
    assert said(*records) == [
        "Speed: a takes 1.00 ms at 256 tokens. No latency there: b.",
        "Memory: a needs 2.00 KiB at 256 tokens. No peak memory there: b.",
    ]


def test_another_mask_is_compared_apart():
    window = {"name": "sliding-window", "window_size": 64, "causal": True}
    records = [make_record("a", latency_ms=2.0), make_record("a", latency_ms=1.0, mask=window)]
    assert said(*records) == [
        "Speed: a takes 2.00 ms at 256 tokens.",
        "Speed: a takes 1.00 ms with window 64 at 256 tokens.",
    ]
    both = [make_record("b", latency_ms=2.0, mask=window), make_record("b", latency_ms=4.0)]
    assert said(*records, *both)[1] == (
        "Speed: With window 64: a is fastest at 256 tokens (1.00 ms): 2.0 times faster than b (2.00 ms)."
    )


def test_one_implementation_under_many_masks_is_one_sentence():
    records = [make_record("a", n, latency_ms=2.0 * n) for n in (64, 256)]
    for size in (128, 16, 17):
        mask = {"name": "sliding-window", "window_size": size, "causal": True}
        records += [make_record("a", n, latency_ms=size // 16 * n / 16, mask=mask) for n in (64, 256)]
    assert said(*records) == [
        "Speed: a takes 512 ms at 256 tokens.",
        "Speed: a takes 16.0 ms with window 16 and window 17, 128 ms with window 128 at 256 tokens.",
        "Growth: latency, 64 to 256: "
        "a n^1.00, a (window 16) n^1.00, a (window 17) n^1.00, a (window 128) n^1.00",
    ]


def test_growth_and_failures():
    records = [make_record("a", n, peak_bytes=n * n) for n in (256, 512)]
    records.append(make_record("a", 1024, status="oom", reason="too large", predicted_peak_bytes=2**40))
    assert said(*records)[1:] == [
        "Growth: peak memory, 256 to 512: a n^2.00",
        "Failed: a: oom at 1k; predicted to need 1.00 TiB at 1k.",
    ]


def test_growth_of_doubtful_latencies_is_to_be_taken_with_care():
    records = [
        make_record("a", 256, latency_ms=1.0, verdict=("shared",)),
        make_record("a", 512, latency_ms=4.0),
    ]
    assert "Growth: latency, 256 to 512: a n^2.00 (take with care: shared)" in said(*records)


def test_totals():
    records = [make_record("a", error=2e-6, latency_ms=1.0, verdict=("noisy",))]
    records.append(make_record("b", status="incorrect", reason="wrong", error=1.0))
    summary = build_report([make_run(records)]).summary
    assert tally_words(summary) == "2 cases: 1 ok, 1 incorrect"
    assert accuracy_sentence(summary) == (
        "2 results compared with the float64 truth, 1 outside the budget; "
        "of those within, the closest used 50 % of it (a at 256, float32)."
    )
    assert doubt_sentence(summary) == "Of 1 latency, take with care: 1 noisy."


def test_intervals_of_one_launch_are_named():
    records = [make_record("a", latency_ms=1.0, launches=1), make_record("b", latency_ms=1.0)]
    assert doubt_sentence(build_report([make_run(records)]).summary) == (
        "Of 2 latencies, take with care: 1 with an interval of one launch, which is too narrow."
    )


@pytest.mark.parametrize("count", [0, 1, 2])
def test_cases_are_counted_in_english(count):
    summary = build_report(
        [make_run([make_record(seqlen=n + 1, latency_ms=1.0) for n in range(count)])]
    ).summary
    assert tally_words(summary) == ["0 cases", "1 case: 1 ok", "2 cases: 2 ok"][count]
