"""The example that draws the power of the fit, with few draws."""

import pytest

from examples import exponent_power


def test_it_prints_and_draws(tmp_path, capsys):
    picture = tmp_path / "power.png"
    exponent_power.main(["--draws", "2", "--out", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")
    said = capsys.readouterr().out.splitlines()
    assert len(said) == len(exponent_power.NOISES) * len(exponent_power.LENGTHS)
    assert said[2] == "2% a length, 8 lengths: found at +0, +0.3, +1.0: 0.0%, 100.0%, 100.0%"


def test_a_larger_difference_and_more_lengths_are_found_more_often():
    small, large = (exponent_power.found_share(difference, 6, 0.05, 40) for difference in (0.1, 0.6))
    few, many = (exponent_power.found_share(0.3, count, 0.05, 40) for count in (5, 8))
    assert small < large
    assert few < many


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--draws", "0"], "--draws from 1"), (["--out", "{}/missing/power.png"], "there is no folder")],
)
def test_what_cannot_be_is_told_in_a_line(arguments, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        exponent_power.main([argument.format(tmp_path) for argument in arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
