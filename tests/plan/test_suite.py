"""Suites expand to the product of their axes; the command line changes them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from attnbench.contract.errors import UsageError
from attnbench.plan.settings import METRICS, ON_REQUEST, MeasureSettings
from attnbench.plan.suite import Suite, load_suite

SWEEP = 'seqlen = 64\nimplementation = "naive"\n'
Write = Callable[[str], Path]


def ids(suite: Suite) -> list[str]:
    return [case.case_id for case in suite.cases]


def short(suite: Suite) -> list[str]:
    """Return implementation, mask and length of each case."""
    parts = [case.id_parts() for case in suite.cases]
    return [f"{each['implementation']} {each['mask']} {each['seqlen']}" for each in parts]


# What a suite says


def test_every_list_is_an_axis(write: Write) -> None:
    suite = load_suite(
        write("""
[defaults]
mode = ["fwd", "fwd_bwd"]
head_dim = [32, 64]
[[sweep]]
seqlen = [64, "1k"]
implementation = ["naive", { name = "linear", chunk_size = [32, 64] }]
"""),
        device="cpu",
    )
    assert len(suite.cases) == 2 * 2 * 2 * 3
    assert ids(suite)[:4] == [
        "attention/naive/fwd/causal/n64/b1-h8-d32/float32/cpu",
        "attention/linear,chunk_size=32/fwd/causal/n64/b1-h8-d32/float32/cpu",
        "attention/linear,chunk_size=64/fwd/causal/n64/b1-h8-d32/float32/cpu",
        "attention/naive/fwd/causal/n1024/b1-h8-d32/float32/cpu",
    ]


def test_masks_are_tables_or_names(write: Write) -> None:
    suite = load_suite(
        write("""
[[sweep]]
mask = ["full", { name = "sliding-window", window_size = [4, 8], causal = false }]
seqlen = 16
implementation = "naive"
"""),
        device="cpu",
    )
    assert short(suite) == [
        "naive full n16",
        "naive window4-bidirectional n16",
        "naive window8-bidirectional n16",
    ]


def test_derived_keys(write: Write) -> None:
    suite = load_suite(
        write(f"[[sweep]]\ntokens = '4k'\nhidden = 512\nhead_dim = [64, 128]\n{SWEEP}"),
        seqlens=["1k", 8192],
        device="cpu",
    )
    assert [(case.batch, case.num_heads, case.head_dim, case.seqlen) for case in suite.cases] == [
        (4, 8, 64, 1024),
        (1, 8, 64, 8192),
        (4, 4, 128, 1024),
        (1, 4, 128, 8192),
    ]


def test_a_sweep_outranks_defaults_and_their_rivals(write: Write) -> None:
    suite = load_suite(
        write("""
[defaults]
tokens = "1k"
hidden = 256
seqlen = 64
[[sweep]]
batch = 3
num_heads = 2
seqlen_q = [1, 2]
seqlen_k = 7
implementation = "naive"
"""),
        device="cpu",
    )
    assert ids(suite) == [
        "attention/naive/fwd/causal/q1-k7/b3-h2-d64/float32/cpu",
        "attention/naive/fwd/causal/q2-k7/b3-h2-d64/float32/cpu",
    ]


def test_decode_attends_to_a_context(write: Write) -> None:
    (case,) = load_suite(write(f'[[sweep]]\nmode = "decode"\n{SWEEP}'), device="cpu").cases
    assert (case.seqlen_q, case.seqlen_k) == (1, 64)
    assert "/decode/causal/n64/" in case.case_id


def test_numbers_per_batch_row_are_one_value(write: Write) -> None:
    suite = load_suite(
        write(f"[[sweep]]\nbatch = 2\nkey_lengths = [[64, 3], [0, 1]]\nquery_start = [5, 6]\n{SWEEP}"),
        device="cpu",
    )
    assert [case.key_lengths for case in suite.cases] == [(64, 3), (0, 1)]
    assert {case.query_start for case in suite.cases} == {(5, 6)}


def test_levels_take_what_they_know_from_defaults(write: Write) -> None:
    suite = load_suite(
        write("""
[defaults]
num_heads = [2, 4]
head_dim = 16
preset = "tiny"
seqlen = 32
implementation = "naive"
[[sweep]]
[[sweep]]
level = ["model", "block"]
"""),
        device="cpu",
    )
    assert ids(suite) == [
        "attention/naive/fwd/causal/n32/b1-h2-d16/float32/cpu",
        "attention/naive/fwd/causal/n32/b1-h4-d16/float32/cpu",
        "model:tiny/naive/fwd/causal/n32/b1-h4-g2-d8/float32/cpu",
        "block:tiny/naive/fwd/causal/n32/b1-h4-g2-d8/float32/cpu",
    ]


def test_measure_settings(write: Write) -> None:
    assert load_suite(write(f"[[sweep]]\n{SWEEP}"), device="cpu").measure == MeasureSettings()
    settings = load_suite(
        write(f'[[sweep]]\n{SWEEP}[measure]\nmetrics = ["agreement"]\ncase_timeout_s = 5\n'), device="cpu"
    ).measure
    assert settings.metrics == ("agreement",)
    assert settings.case_timeout_s == 5
    assert set(METRICS) - set(MeasureSettings().metrics) == set(ON_REQUEST)


# What the command line changes


@pytest.fixture
def two_sweeps(write: Write) -> Path:
    return write("""
[[sweep]]
seqlen = [64, 128]
implementation = ["naive", { name = "linear", chunk_size = 32 }]
[[sweep]]
mask = { name = "sliding-window", window_size = 16 }
seqlen = 64
implementation = "naive"
""")


def test_a_name_of_the_suite_keeps_its_cases(two_sweeps: Path) -> None:
    kept = load_suite(two_sweeps, implementations=["linear"], device="cpu")
    assert short(kept) == ["linear,chunk_size=32 causal n64", "linear,chunk_size=32 causal n128"]


def test_a_name_it_lacks_replaces_the_axis_of_every_sweep(two_sweeps: Path) -> None:
    replaced = load_suite(two_sweeps, implementations=["sdpa"], device="cpu")
    assert short(replaced) == ["sdpa causal n64", "sdpa causal n128", "sdpa window16 n64"]


def test_both_kinds_of_name(two_sweeps: Path) -> None:
    both = load_suite(two_sweeps, implementations=["linear", "sdpa-math"], device="cpu")
    assert short(both) == [
        "linear,chunk_size=32 causal n64",
        "sdpa-math causal n64",
        "linear,chunk_size=32 causal n128",
        "sdpa-math causal n128",
        "sdpa-math window16 n64",
    ]


def test_lengths_are_replaced_and_equal_cases_count_once(write: Write) -> None:
    path = write("""
[[sweep]]
seqlen_q = [1, 2]
seqlen_k = 64
implementation = "naive"
[[sweep]]
seqlen = 64
implementation = "naive"
""")
    suite = load_suite(path, seqlens=["4k", 16], device="cpu")
    assert short(suite) == ["naive causal n4096", "naive causal n16"]


def test_variants_of_a_file(two_sweeps: Path, tmp_path: Path) -> None:
    kernel = tmp_path / "my_kernel.py"
    kernel.write_text(
        """
from dataclasses import replace
from attnbench.contract.discovery import get_implementation
MINE = replace(get_implementation("naive"), name="mine")
IMPLEMENTATIONS = (MINE, replace(MINE, name="other"))
"""
    )
    suite = load_suite(two_sweeps, implementations=[str(kernel)], seqlens=[8], device="cpu")
    assert [case.implementation for case in suite.cases] == [f"{kernel}#mine", f"{kernel}#other"] * 2
    assert len(set(ids(suite))) == 4


def test_device_index_belongs_to_the_run(two_sweeps: Path) -> None:
    suite = load_suite(two_sweeps, device="cuda:1", device_must_exist=False)
    assert suite.device_index == 1
    assert {case.device for case in suite.cases} == {"cuda"}
    assert load_suite(two_sweeps, device="cpu").device_index is None


def test_lengths_of_the_command_line_are_blamed_for_what_they_make_impossible(write: Write) -> None:
    decoding = write(f'[[sweep]]\nmode = "decode"\n{SWEEP}')
    with pytest.raises(UsageError, match=r"^--seqlen 0: .*sweep 1: mode 'decode': contexts hold what is new"):
        load_suite(decoding, seqlens=[0])
    with pytest.raises(UsageError, match=r"^(?!--seqlen).*batch must be"):
        load_suite(write(f"[[sweep]]\nbatch = 10000000000\n{SWEEP}"), seqlens=[8])
