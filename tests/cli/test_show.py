"""`attnbench show` predicts what a suite would cost, without running it."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from attnbench.cli import main

SUITE = """
name = "try"
description = "for tests"
[defaults]
num_heads = 2
head_dim = 16
[[sweep]]
mode = ["fwd", "fwd_bwd"]
seqlen = [32, 64]
implementation = ["naive", "triton-flash"]
[[sweep]]
level = "model"
preset = "tiny"
inputs = "text"
seqlen = 32
implementation = "naive"
"""


@pytest.fixture
def suite(tmp_path: Path) -> str:
    path = tmp_path / "try.toml"
    path.write_text(SUITE, encoding="utf-8")
    return str(path)


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["show", *arguments, "--device", "cpu"])
    assert stopped.value.code == 0
    return capsys.readouterr().out


def cases_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, Any]]:
    return {case["case_id"]: case for case in json.loads(output_of(capsys, *arguments, "--json"))["cases"]}


def test_figures_are_whole_numbers(capsys: pytest.CaptureFixture[str], suite: str) -> None:
    cases = cases_of(capsys, suite)
    assert len(cases) == 9
    naive = cases["attention/naive/fwd/causal/n64/b1-h2-d16/float32/cpu"]
    pairs = 2 * 64 * 65 // 2
    assert naive["flops"] == 2 * 2 * 16 * pairs
    assert naive["compulsory_bytes"] == 4 * 2 * 64 * 16 * 4
    scores = 2 * 64 * 64 * 4
    assert naive["predicted_peak_bytes"] >= naive["compulsory_bytes"] + scores
    assert naive["case"]["head_dim_v"] == 16


def test_unsupported_cases_say_why(capsys: pytest.CaptureFixture[str], suite: str) -> None:
    refused = [case for case in cases_of(capsys, suite).values() if case["unsupported"]]
    for case in refused:
        assert case["case"]["implementation"] == "triton-flash"
        assert case["predicted_peak_bytes"] is None
        assert case["flops"] is None
    table = output_of(capsys, suite)
    assert all(reason in table for case in refused for reason in case["unsupported"])


def test_models_have_counted_figures(capsys: pytest.CaptureFixture[str], suite: str) -> None:
    (model,) = (case for name, case in cases_of(capsys, suite).items() if name.startswith("model:tiny/"))
    assert model["flops"] is None
    assert model["executed_flops"] > 0
    assert model["operand_bytes"] > model["predicted_peak_bytes"] > 0


def test_kernels_in_a_model_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    shared = ("quick", "--implementation", "sdpa", "--implementation", "triton-flash", "--seqlen", "1k")
    models = [case for case in cases_of(capsys, *shared).values() if case["case"]["level"] == "model"]
    flops = {case["case"]["implementation"]: case["executed_flops"] for case in models}
    assert flops["triton-flash"] is not None
    assert 0.5 < flops["triton-flash"] / flops["sdpa"] < 1.5


def test_a_terminal_breaks_no_identifier(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("TERM", "dumb"), ("FORCE_COLOR", "1"), ("COLUMNS", "80")):
        monkeypatch.setenv(name, value)
    lines = output_of(capsys, "quick", "--seqlen", "1k").splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines]
    assert ["implementation", "mode", "mask", "shape", "peak", "FLOPs", "compulsory"] in rows
    assert ["sliding-window", "fwd_bwd", "window256", "b1-h2-d64"] in [row[:4] for row in rows]


def test_table_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    table = output_of(capsys, "quick", "--seqlen", "4k", "--implementation", "sliding-window")
    assert max(len(line) for line in table.splitlines()) <= 80
    assert "sliding-window" in table


def test_naive_at_131072_tokens_needs_a_terabyte(capsys: pytest.CaptureFixture[str]) -> None:
    cases = cases_of(capsys, "quick", "--implementation", "naive", "--seqlen", "131072")
    attention = [case for case in cases.values() if case["case"]["level"] == "attention"]
    for case in attention:
        score_matrix_bytes = 131072**2 * case["case"]["num_heads"] * 4
        assert case["predicted_peak_bytes"] > 2 * score_matrix_bytes
    eight_heads = [case for case in attention if case["case"]["num_heads"] == 8]
    assert eight_heads
    assert all(case["predicted_peak_bytes"] > 10**12 for case in eight_heads)
    assert "TiB" in output_of(capsys, "quick", "--implementation", "naive", "--seqlen", "128k")


def test_somebody_s_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    kernel = tmp_path / "my_kernel.py"
    kernel.write_text(
        """
from dataclasses import replace
from attnbench.contract.discovery import get_implementation

def attention(q, k, v, *, problem, params=None):
    raise RuntimeError("not on fake tensors")

IMPLEMENTATION = replace(get_implementation("naive"), name="mine", attention=attention)
"""
    )
    cases = cases_of(capsys, "quick", "--implementation", str(kernel), "--seqlen", "64")
    stated, case = (
        next(case for case in cases.values() if case["case"]["mask"]["name"] == mask)
        for mask in ("causal", "sliding-window")
    )
    assert stated["predicted_peak_bytes"] > 0, "its file says that it costs what naive does"
    assert case["case"]["level"] == stated["case"]["level"] == "attention"
    assert case["case"]["implementation"] == str(kernel)
    assert case["flops"] > 0
    assert case["predicted_peak_bytes"] is None
    assert "not on fake tensors" in case["unavailable"]["predicted_peak_bytes"]


def test_a_mixer_without_a_core_is_refused_at_level_attention_alone(
    capsys: pytest.CaptureFixture[str], suite: str
) -> None:
    lstm = str(Path(__file__).parents[1] / "toys" / "lstm_mixer.py")
    cases = cases_of(capsys, suite, "--implementation", lstm, "--seqlen", "32").values()
    by_level = {case["case"]["level"]: case for case in cases}
    assert by_level["attention"]["unsupported"] == [
        "lstm has no q/k/v core: it runs at the levels block and model"
    ]
    assert by_level["attention"]["flops"] is None
    assert by_level["model"]["unsupported"] == []
    assert by_level["model"]["predicted_peak_bytes"] > 0


def test_a_misspelt_option_is_a_usage_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "try.toml"
    path.write_text(SUITE.replace('"triton-flash"', '{ name = "linear", chunk_siz = 3 }'), encoding="utf-8")
    with pytest.raises(SystemExit) as stopped:
        main(["show", str(path)])
    assert stopped.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith(f"attnbench: {path}:7: sweep 1: linear has no option 'chunk_siz' (did you mean")


def additions_s() -> float:
    """Processor seconds of a million additions: what this machine is worth at the moment."""
    began, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number & 7
    return time.process_time() - began


def test_ten_thousand_cases_take_seconds(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "many.toml"
    path.write_text(
        'name = "many"\n[defaults]\nnum_heads = 2\nhead_dim = 16\n[[sweep]]\n'
        f"mask = ['causal', 'full']\nbatch = [1, 2, 3, 4]\ndtype = ['float32', 'float16']\n"
        f"implementation = ['naive', 'sdpa', 'linear', 'triton-flash']\n"
        f"seqlen = {[128 * step for step in range(1, 158)]}\n",
        encoding="utf-8",
    )
    output_of(capsys, str(path), "--seqlen", "128")  # what is imported and read once
    before_s, began = additions_s(), time.process_time()
    shown = output_of(capsys, str(path))
    took_s = time.process_time() - began
    assert len(shown.splitlines()) > 10_048
    assert took_s < 100 * max(before_s, additions_s())  # three times what it takes
