"""`attnbench estimate` prints what a preset would take, and runs nothing."""

import json
import sys
from typing import Any

import pytest

from attnbench.cli import main


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["estimate", *arguments])
    return int(stopped.value.code or 0)


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(*arguments) == 0
    return capsys.readouterr().out


def test_byte_counts_are_whole_numbers_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    text = output_of(capsys, "llama-3-8b", "--seqlen", "128k", "--seqlen", "8k", "--device", "h100", "--json")
    found: dict[str, Any] = json.loads(text)
    assert (found["preset"], found["dtype"], found["batch"]) == ("llama-3-8b", "bfloat16", 1)
    assert (found["parameters"], found["weight_bytes"]) == (8_030_261_248, 16_060_522_496)
    names = [(one["seqlen"], one["implementation"]) for one in found["estimates"]]
    five = ["naive", "sdpa", "triton-flash", "sliding-window", "linear"]
    assert names == [(n, name) for n in (131_072, 8192) for name in five]
    naive = found["estimates"][0]
    assert naive["score_bytes_per_head"] == 34_359_738_368
    assert naive["cache_bytes"] == 17_179_869_184
    assert naive["work"]["fwd"]["flops"] == 6_470_935_167_107_072
    assert {one["device"] for one in naive["bounds"]} == {"h100-sxm5", "h100-pcie", "h100-nvl"}


@pytest.mark.parametrize("preset", ["llama-3-8b", "transformer-base", "bert-base"])
def test_tables_fit_80_columns(capsys: pytest.CaptureFixture[str], preset: str) -> None:
    lines = output_of(capsys, preset, "--seqlen", "128k").splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("mi300x") for line in lines)


def test_the_table_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    text = output_of(capsys, "llama-3-8b", "--seqlen", "128k", "--device", "h100-sxm5")
    rows = {line.split("  ")[0]: line.split() for line in reversed(text.splitlines()) if line}
    assert rows["naive"][1:7] == ["32.0", "GiB", "32.0", "TiB", "16.0", "GiB"]
    assert rows["sdpa"][1:7] == ["never", "held", "never", "held", "16.0", "GiB"]
    assert "h100-sxm5  6.54 s matmul  4.55 s matmul  19.6 s matmul  9.61 ms memory" in text
    assert "Least time: naive, sdpa, triton-flash" in text
    assert "window4096: sliding-window" in text


def test_without_a_length_it_is_the_presets_longest(capsys: pytest.CaptureFixture[str]) -> None:
    text = output_of(capsys, "gpt2", "--implementation", "naive", "--device", "l4", "--json")
    assert [one["seqlen"] for one in json.loads(text)["estimates"]] == [1024]


def test_what_cannot_run_is_named_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    text = output_of(capsys, "tiny", "--implementation", "triton-flash", "--dtype", "float64")
    assert "triton-flash:" in text
    assert "float64" in text.split("triton-flash:")[1]
    assert "Least time" not in text.split("\n\n")[1]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("lama-3-8b",), "no preset 'lama-3-8b' (did you mean 'llama-3-8b'?)"),
        (("tiny", "--device", "h20"), "unknown device 'h20' (did you mean 'h200'?)"),
        (("tiny", "--implementation", "naiv"), "unknown implementation 'naiv' (did you mean 'naive'?)"),
        (("tiny", "--seqlen", "4q"), "'4q' is not a length"),
        (("tiny", "--dtype", "bf16"), "unknown dtype 'bf16' (did you mean 'bfloat16'?)"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_a_mistake_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], complaint: str
) -> None:
    assert run(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert complaint in printed.err
    assert printed.err.count("\n") == 1


def test_no_tensor_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Refuse(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError(f"{func} was called")

    with pytest.raises(AssertionError), Refuse():
        torch.zeros(1)
    with Refuse():
        output_of(capsys, "tiny", "--device", "h200")
    assert "matplotlib.pyplot" not in sys.modules
