"""Published numbers are read whole, contradictions are refused, and sources that print two units agree."""

import pytest

from attnbench.analysis.published import PublishedTable, published_tables, read_tables
from attnbench.contract.errors import UsageError

GOOD = """
[[table]]
source = "somebody"
read = "figure"
device = "H200"
device_names = ["NVIDIA H200"]
mode = "fwd"
mask = "causal"
dtype = "bfloat16"
quantity = "rate"
unit = "TFLOP/s"
tokens = 4096
num_heads = 16
head_dim = 128
seqlen = [1024, 4096]
caveat = "~ is hard to read"
[table.values]
"one" = [400, "~500"]
"other" = ["-", "oom"]
"""


def tables_of(source: str) -> list[PublishedTable]:
    return [table for table in published_tables() if table.source.startswith(source)]


def number(source: str, name: str, seqlen: int, **keys: object) -> float:
    (found,) = {
        table.numbers(name)[table.seqlen.index(seqlen)]
        for table in tables_of(source)
        if name in table.values
        and seqlen in table.seqlen
        and all(getattr(table, key) == value for key, value in keys.items())
    }
    return found


def test_every_file_can_be_read() -> None:
    tables = published_tables()
    assert len(tables) == 58
    assert {table.quantity for table in tables} == {
        *("rate", "latency", "traffic", "memory", "flops", "error", "ratio")
    }
    assert all(table.caveat for table in tables)


@pytest.mark.parametrize(
    ("source", "name", "seqlen", "keys", "value"),
    [
        ("FlashAttention, arXiv", "FlashAttention", 1024, {"unit": "GB"}, 4.4),
        ("FlashAttention, arXiv", "standard attention", 1024, {"unit": "GB"}, 40.3),
        ("FlashAttention, arXiv", "FlashAttention", 1024, {"unit": "ms"}, 7.3),
        (
            "Dao-AILab",
            "FlashAttention-2",
            16384,
            {"device": "A100 SXM4 80 GB", "head_dim": 64, "mask": "full"},
            176,
        ),
        (
            "Dao-AILab",
            "FlashAttention-2",
            1024,
            {"device": "A100 SXM4 80 GB", "head_dim": 128, "mask": "full"},
            173,
        ),
        ("Dao-AILab", "PyTorch", 16384, {"device": "A100 SXM4 80 GB", "head_dim": 128}, None),
        ("FlashAttention-3", "FlashAttention-3", 16384, {"head_dim": 128, "mask": "causal"}, 616),
        ("FlashAttention-3", "cuDNN", 512, {"head_dim": 64, "mask": "causal"}, 225),
        ("NVIDIA/cudnn-frontend", "cuDNN", 32768, {"unit": "ms", "mask": "causal", "mode": "bwd"}, 75.688),
        ("fla-org", "FlashAttention", 2048, {"head_dim": 128}, 0.346),
    ],
)
def test_a_value_is_what_its_source_prints(source, name, seqlen, keys, value) -> None:
    assert number(source, name, seqlen, **keys) == value


def test_rates_and_times_of_one_source_agree() -> None:
    """CuDNN's results print both: the FLOPs that turn one into the other are those that NVIDIA counts."""
    by_form: dict[tuple[object, ...], dict[str, PublishedTable]] = {}
    for table in tables_of("NVIDIA/cudnn-frontend, benchmark results of the H200"):
        form = (table.mode, table.mask, table.dtype, table.head_dim, table.source)
        by_form.setdefault(form, {})[table.quantity] = table
    both = [tables for tables in by_form.values() if len(tables) == 2]
    assert len(both) == 5
    for tables in both:
        times = tables["latency"].milliseconds("cuDNN")
        assert tables["rate"].milliseconds("cuDNN") == pytest.approx(times, rel=5e-3)


def test_what_a_source_does_not_say_is_never_compared() -> None:
    for table in published_tables():
        assert table.has_shape == bool(
            table.device_names
            and table.seqlen
            and table.mode
            and table.mask
            and table.dtype
            and table.num_heads
            and table.head_dim
        )
    assert not any(table.has_shape for table in tables_of("Long Range Arena"))


def test_the_batch_follows_from_the_tokens() -> None:
    (table,) = read_tables(GOOD, "good.toml")
    assert [table.rows(seqlen) for seqlen in table.seqlen] == [4, 1]
    assert table.numbers("one") == [400, 500]
    assert table.numbers("other") == [None, None]
    # 2 products of 2 FLOPs for half of all pairs of 4 · 16 heads, 128 wide.
    assert table.flops(1024) == 2 * 2 * 4 * 16 * 1024**2 / 2 * 128
    assert table.milliseconds("one")[0] == pytest.approx(table.flops(1024) / 400e12 * 1e3)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('"TFLOP/s"', '"GB"', "unit: rate is in TFLOP/s"),
        ('"rate"', '"speed"', "Invalid enum value 'speed'"),
        ('"NVIDIA H200"', '"NVIDIA H20"', "no data sheet of 'NVIDIA H20'"),
        ("[1024, 4096]", "[4096, 1024]", "seqlen: must be positive and increase"),
        ("[1024, 4096]", "[1024]", "values of 'one': 2 for 1 lengths"),
        ("400", "-400", "values of 'one': -400.0 is no value"),
        ("400", "nan", "values of 'one': nan is no value"),
        ('"~500"', '"~many"', "values of 'one': '~many' is no value"),
        ("tokens = 4096", "tokens = 4096\nbatch = 2", "batch, tokens: one of the two"),
        ("num_heads = 16", "num_heads = 0", "num_heads: must be positive"),
        ("num_heads = 16", "heads = 16", "unknown field `heads`"),
        ('source = "somebody"\n', "", "missing required field `source`"),
        ('source = "somebody"', 'source = ""', "source, device: must be said"),
        ("[[table]]", "[[tables]]", r"\[\[table\]\]s are expected"),
        ("[[table]]", "[[table", "bad.toml"),
    ],
)
def test_a_contradiction_names_file_place_and_fault(old: str, new: str, fault: str) -> None:
    assert old in GOOD
    with pytest.raises(UsageError, match=fault) as raised:
        read_tables(GOOD.replace(old, new), "bad.toml")
    assert str(raised.value).startswith("bad.toml")
