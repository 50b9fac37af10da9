import math

from attnbench.analysis.rows import clean_text, mask_words, rows_of
from attnbench.measure.record import Error, Latency, Memory
from tests.analysis.synthetic import make_record, make_run


def row_of(record):
    (row,) = rows_of({"run": make_run([record])})
    return row


def test_the_interval_is_that_over_launches_and_else_says_that_it_is_not():
    several, alone = make_record(latency_ms=2.0), make_record(latency_ms=2.0, launches=1)
    assert several.latency is not None
    assert alone.latency is not None
    several.latency.inner_ci95_low_ms, several.latency.inner_ci95_high_ms = 1.99, 2.01
    new = make_record(latency_ms=2.0, launches=1)
    assert new.latency is not None
    new.latency.ci95_low_ms = new.latency.ci95_high_ms = None
    new.latency.inner_ci95_low_ms, new.latency.inner_ci95_high_ms = 1.99, 2.01
    failed = make_record(status="oom")
    rows = rows_of({"run": make_run([several, alone, new, failed])})
    assert [(row.latency_low_ms, row.latency_high_ms, row.one_launch) for row in rows] == [
        (1.9, 2.1, False),
        (1.9, 2.1, True),
        (1.99, 2.01, True),
        (None, None, False),
    ]


def test_a_record_becomes_one_flat_row():
    row = row_of(make_record("sdpa", 1024, latency_ms=2.0, peak_bytes=2**40, operand_bytes=77, error=1e-6))
    assert (row.implementation, row.seqlen, row.status) == ("sdpa", 1024, "ok")
    assert (row.latency_ms, row.latency_low_ms, row.latency_high_ms) == (2.0, 1.9, 2.1)
    assert (row.peak_bytes, row.operand_bytes) == (2**40, 77)
    assert (row.max_abs_error, row.error_budget, row.budget_used) == (1e-6, 4e-6, 0.25)


def test_the_budget_share_is_that_of_the_worst_tensor():
    record = make_record(error=1e-6)
    assert (row_of(record).budget_share, row_of(record).rms_budget) == (0.25, 1e-5)
    record.agreement.lse = Error(budget_used=0.3)
    record.agreement.gradients = {"dk": Error(budget_used=0.4), "dv": Error(budget_used=None)}
    assert row_of(record).budget_share == 0.4
    record.agreement.columns = {"dk": Error(budget_used=0.7), "dv": Error(budget_used=0.1)}
    row = row_of(record)
    assert (row.budget_share, row.budget_used) == (0.7, 0.25)
    assert row_of(make_record()).budget_share is None


def test_byte_counts_stay_exact_beyond_doubles():
    assert row_of(make_record(peak_bytes=2**60 + 1)).peak_bytes == 2**60 + 1


def test_what_is_not_a_finite_number_of_the_right_sign_is_absent():
    for bad in (math.nan, math.inf, -math.inf, -1.0, 0.0):
        record = make_record(latency_ms=1.0, error=1.0)
        record.latency = Latency(median_ms=bad, ci95_low_ms=bad)
        row = row_of(record)
        assert row.latency_ms is None
        assert row.latency_low_ms is None
    record.memory = Memory(peak_bytes=-5)
    assert row_of(record).peak_bytes is None


def test_a_failed_case_keeps_its_reason_and_has_no_latency():
    row = row_of(make_record(status="oom", reason="needs 1.1 TB", predicted_peak_bytes=10**12))
    assert (row.is_ok, row.reason, row.latency_ms) == (False, "needs 1.1 TB", None)
    assert row.predicted_peak_bytes == 10**12


def test_control_and_direction_characters_become_visible_marks():
    assert clean_text("a\x00b\x1b[31m\u202ec\ud800") == "a\ufffdb\ufffd[31m\ufffdc\ufffd"
    assert clean_text("tab\tline\nümlaut 中文 🙂") == "tab\tline\nümlaut 中文 🙂"


def test_masks_are_said_as_people_say_them():
    assert mask_words({"name": "causal"}) == "causal"
    assert mask_words({"name": "sliding-window", "window_size": 256, "causal": True}) == "window 256"
    both = {"name": "sliding-window", "window_size": 8, "causal": False}
    assert mask_words(both) == "window 8 both sides"
    assert mask_words({"name": "global-tokens", "tokens": 4}) == "global-tokens tokens=4"
    assert mask_words(None) == ""


def test_unusual_case_keys_are_kept_in_words():
    row = row_of(make_record(inputs="text", threads=4, scale=None, compile=True))
    assert row.extras == "inputs=text, threads=4, compile=True"
    assert row_of(make_record(seqlen_q=7, seqlen=64)).extras == "seqlen_q=7"
    assert row_of(make_record(seqlen_q=1, seqlen=64, mode="decode")).extras == ""


def test_why_a_quantity_is_absent_is_found_under_section_field_or_name():
    row = row_of(make_record(unavailable={"latency": "a", "traffic.dram_bytes": "b", "peak_bytes": "c"}))
    assert row.why_absent("latency", "median_ms") == "a"
    assert row.why_absent("traffic", "dram_bytes") == "b"
    assert row.why_absent("memory", "peak_bytes") == "c"
    assert row.why_absent("agreement", "budget") == ""
