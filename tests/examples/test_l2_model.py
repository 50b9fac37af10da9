"""The example that draws the L2 model, on small shapes."""

import pytest

from examples import l2_model

SMALL = ["--seqlen", "128", "--heads", "1"]


def test_it_prints_and_draws(tmp_path, capsys):
    picture = tmp_path / "model.png"
    l2_model.main([*SMALL, "--out", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")
    said = capsys.readouterr().out.splitlines()
    # One tile of queries and keys: nothing is read twice. 3 inputs and out of 16 KiB; lse and bounds besides.
    assert said[0] == said[4].replace("causal", "full") == "full: 64.5 KiB requested, 64.0 KiB compulsory"
    assert [line.split(":")[0].strip() for line in said[1:4]] == [
        f"{count} at a time" for count in (1, 16, 132)
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seqlen", "0"], "--seqlen, --heads and --programs from 1"),
        (["--implementation", "sdpa", *SMALL], "sdpa runs no kernel that Triton interprets"),
        (["--implementation", "triton-flahs"], "did you mean 'triton-flash'?"),
        (["--out", "{}/missing/model.png"], "there is no folder"),
        ([*SMALL, "--programs", "1", "1", "4"], "three different numbers"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(arguments, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        l2_model.main([argument.format(tmp_path) for argument in arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
