"""k is 1024, everywhere."""

import pytest

from attnbench.contract.errors import UsageError
from attnbench.plan.lengths import parse_length


@pytest.mark.parametrize(
    ("written", "tokens"), [(0, 0), (7, 7), ("7", 7), ("4k", 4096), ("128K", 131072), (" 1k ", 1024)]
)
def test_lengths(written: int | str, tokens: int) -> None:
    assert parse_length(written) == tokens


@pytest.mark.parametrize("written", [-1, True, "", "k", "4m", "1.5k", "-4k", "4 k", "٤k"])
def test_no_lengths(written: int | str) -> None:
    with pytest.raises(UsageError, match="not a length"):
        parse_length(written)
