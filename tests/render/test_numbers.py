import pytest

from attnbench.render.numbers import (
    format_bytes,
    format_count,
    format_loss,
    format_ms,
    format_number,
    format_percent,
    format_perplexity,
    format_seqlen,
    format_seqlens,
    format_value,
    with_units,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0004, "0.4 µs"),
        (0.412, "412 µs"),
        (3.14159, "3.14 ms"),
        (31.4159, "31.4 ms"),
        (314.2, "314 ms"),
        (1200.0, "1.20 s"),
    ],
)
def test_durations_have_three_digits(value, text):
    assert format_ms(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (34_359_738_368, "32.0 GiB"), (2**70, "1024 EiB")],
)
def test_byte_counts_are_binary(value, text):
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.0123, "0.012"), (3.14e-7, "3.1e-7"), (1e-7, "1e-7"), (432.1, "432"), (2e5, "2e5")],
)
def test_plain_numbers(value, text):
    assert format_number(value) == text


def test_perplexities_that_are_close_stay_apart():
    values = (1.0, 3.2141, 3.2149, 31.416, 314.16, 12345.6, 1e6)
    assert [format_perplexity(value) for value in values] == [
        "1.000", "3.214", "3.215", "31.42", "314.2", "12346", "1e6",
    ]  # fmt: skip
    assert format_perplexity(None) == "–"


def test_differences_of_losses_have_a_sign():
    assert [format_loss(value) for value in (1.2345, None)] == ["1.234", "–"]
    signed = [format_loss(value, signed=True) for value in (0.0125, -0.25, 0.0, -0.0004)]
    assert signed == ["+0.013", "−0.250", "0.000", "0.000"]


def test_counts_have_decimal_prefixes():
    counts = (999, 26784, 8_030_261_248, 34_359_738_368)
    assert [format_count(count) for count in counts] == ["999", "26.8 k", "8.03 G", "34.4 G"]


def test_lengths_are_said_in_k_where_they_are_whole():
    assert [format_seqlen(n) for n in (1, 512, 1000, 1024, 1536, 4096, 131072)] == [
        "1", "512", "1000", "1k", "1536", "4k", "128k",
    ]  # fmt: skip
    assert format_seqlens((256, 512)) == "256, 512"
    assert format_seqlens((256, 512, 1024, 4096)) == "256 to 4k"


def test_what_is_absent_is_a_dash_and_never_a_zero():
    assert format_value(None, "ms") == format_value(None, "bytes") == format_percent(None) == "–"
    assert (format_percent(0.176), format_percent(0.004), format_percent(0.0)) == ("18 %", "0.4 %", "0 %")


def test_large_byte_counts_in_a_sentence_have_a_unit_beside_them():
    text = "predicted to need 2147483648 bytes, 512 bytes may be used"
    assert with_units(text) == "predicted to need 2147483648 bytes (2.00 GiB), 512 bytes may be used"
