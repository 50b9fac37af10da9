"""A comparison in pieces, and of a truth that is 0 but for some positions, is the comparison of the whole."""

import math

import msgspec
import pytest
import torch
from torch import Tensor

from attnbench.measure import tally
from attnbench.measure.agreement import grade
from attnbench.measure.record import Error


def drawn(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(shape, generator=generator, dtype=torch.float64)
    plain = (truth + 1e-6 * torch.randn(shape, generator=generator, dtype=torch.float64)).float()
    return (truth + 2e-6 * torch.randn(shape, generator=generator, dtype=torch.float64)).float(), truth, plain


def same(one: Error, other: Error) -> None:
    for name, value in msgspec.structs.asdict(one).items():
        expected = getattr(other, name)
        if isinstance(value, float):
            assert value == pytest.approx(expected, rel=1e-12)
        else:
            assert value == expected


@pytest.mark.parametrize("spoiled", ["nothing", "actual", "truth", "plain"])
@pytest.mark.parametrize("name", ["out", "lse"])
def test_pieces_add_up_to_the_whole(name: str, spoiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    actual, truth, plain = drawn(2, 3, 50, 4)
    which = {"actual": actual, "truth": truth, "plain": plain}.get(spoiled)
    if which is not None:
        which[0, 1, 7] = math.nan
        which[1, 2, 49, 3] = -math.inf
    actual[1, 0, 3, 2] = truth[1, 0, 3, 2] = plain[1, 0, 3, 2] = -math.inf
    whole = grade(actual, truth, plain, name=name)
    expected = {"actual": 5, "truth": 0, "plain": 0, "nothing": 0}[spoiled] + (name == "out")
    assert whole.nonfinite == expected
    assert (whole.verdict == "nonfinite") == (name == "out" or spoiled in ("actual", "truth"))
    # By the definition, over all that is finite.
    usable = torch.isfinite(actual) & torch.isfinite(truth)
    error = (actual.double() - truth)[usable]
    assert whole.max_abs_error == float(error.abs().max())
    assert whole.rms_relative_error == pytest.approx(float(error.norm() / truth[usable].norm()), rel=1e-12)
    monkeypatch.setattr(tally, "PIECE", 7)
    same(grade(actual, truth, plain, name=name), whole)


@pytest.mark.parametrize("outside", [0.0, 1e-7, 1e-3, math.nan, -math.inf])
@pytest.mark.parametrize("piece", [1 << 18, 31])
def test_what_is_not_held_is_held_to_zero(
    outside: float, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tally, "PIECE", piece)
    actual, truth, plain = drawn(2, 2, 60, 5)
    held = torch.zeros(60, dtype=torch.bool)
    held[[0, 1, 17, 18, 19, 59]] = True
    for whole in (actual, truth, plain):
        whole[:, :, ~held] = 0
    actual[0, 1, 30, 2] = actual[1, 1, 20] = outside
    expected = grade(actual, truth, plain, name="dq")
    found = grade(actual, truth[:, :, held], plain[:, :, held], name="dq", held=held)
    same(found, expected)
    verdict = "over_budget" if outside == 1e-3 else "ok" if math.isfinite(outside) else "nonfinite"
    assert found.verdict == verdict


def test_a_result_of_another_length_has_the_wrong_shape() -> None:
    actual, truth, plain = drawn(1, 1, 4, 2)
    held = torch.tensor([True, False, True, True, True])
    assert grade(actual, truth, plain, name="dk", held=held).verdict == "wrong_shape"
    assert grade(torch.zeros(1, 1, 5, 2), truth, plain, name="dk", held=held).verdict == "over_budget"
