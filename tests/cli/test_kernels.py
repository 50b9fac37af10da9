"""`attnbench kernels` compiles somebody's file and says what came out; mistakes are one clear line."""

import json
import re
from pathlib import Path

import pytest

from attnbench.cli import main

FILE = str(Path(__file__).parents[1] / "toys" / "product_kernel.py")
FIELDS = {
    "implementation",
    "kernel",
    "target",
    "registers",
    "spill_bytes",
    "shared_memory_bytes",
    "blocks_per_sm",
    "limited_by",
    "instructions",
}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return the exit code and what was printed."""
    with pytest.raises(SystemExit) as stopped:
        main(["kernels", *arguments])
    return stopped.value.code, *capsys.readouterr()


ASKED = (FILE, "--target", "sm_90", "--head-dim", "64", "--dtype", "float16")


def test_rows_tables_and_a_baseline(capsys, tmp_path):
    code, out, _ = run(capsys, *ASKED, "--json")
    assert code == 0
    (row,) = json.loads(out)
    assert set(row) >= FIELDS
    assert (row["implementation"], row["kernel"], row["target"]) == ("product", "product_kernel", "sm_90")
    assert row["instructions"]["hgmma"] > 0

    code, out, _ = run(capsys, *ASKED)
    assert code == 0
    heading, titles, line, *_ = out.splitlines()
    assert heading == "product  product_kernel  fwd float16 D64 causal"
    assert re.match(r"target +regs +spill +shared +blocks/SM", titles)
    assert re.match(rf"sm_90 +{row['registers']} +0 .* \d+ hgmma +{row['main_loop']['total']} ", line)
    assert max(map(len, out.splitlines())) <= 100

    baseline = tmp_path / "baseline.json"
    baseline.write_text(json.dumps([{**row, "registers": 17}]))
    code, out, err = run(capsys, *ASKED, "--baseline", str(baseline))
    assert (code, out) == (1, "")
    assert err.splitlines() == [
        f"product product_kernel fwd float16 D64 causal sm_90: registers 17 -> {row['registers']}",
        "1 of 1 kernels are in the baseline, 1 facts differ",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("naive", "--target", "sm90"), r"unknown target 'sm90' \(did you mean 'sm_90'\?\)"),
        (("naive", "--dtype", "float61"), r"unknown dtype 'float61' \(did you mean 'float64'\?\)"),
        (("naive", "--mask", "casual"), r"unknown mask 'casual' \(did you mean 'causal'\?\)"),
        (("naive", "--head-dim", "0"), "--head-dim must be at least 1, not 0"),
        (("naive", "--baseline", "nowhere.json"), "nowhere.json is no baseline"),
        (("naiv",), r"unknown implementation 'naiv' \(did you mean 'naive'\?\)"),
        (("naive",), "naive has no kernels to compile ahead of time"),
        pytest.param(
            ("sliding-window", "--mask", "full", "--target", "sm_90"),
            "sliding-window refuses bfloat16 D64 full, bfloat16 D128 full",
            marks=pytest.mark.long,
        ),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert re.match(f"attnbench: {message}", err), err
    assert err.count("\n") == 1
