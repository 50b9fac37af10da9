"""How a count of one attention grows with n, d or W. In: an implementation, two values of each letter. Out:
exponents, as secants. Counted on fake tensors: nothing is computed.
"""

from collections.abc import Callable, Mapping, Sequence
from math import log

from attnbench.measure.counting import Counts
from attnbench.plan.case import Case, Mode, Option

from .cases import counted


def growth(
    *,
    implementation: str,
    quantity: str,
    mode: Mode = "fwd",
    mask: str = "full",
    num_heads: int = 1,
    options: Mapping[str, Option] | None = None,
    **letters: Sequence[int],
) -> dict[str, float]:
    """Return ``power_of_x`` for each letter x that has two values: ``log(f(x2) / f(x1)) / log(x2 / x1)``, the
    others at their first.

    Args:
        implementation: its name.
        quantity: ``flops``, ``operand_bytes`` or ``extra_bytes``, the peak beyond the inputs.
        mode: of the case; in ``decode``, n is the context.
        mask: by name; with W a causal sliding window.
        num_heads: of queries, keys and values.
        options: of the implementation.
        letters: ``n`` the length, ``d`` the head width, ``w`` the window.
    """
    first = {letter: values[0] for letter, values in letters.items()}

    def value(at: Mapping[str, int]) -> int:
        window = {"name": "sliding-window", "window_size": at["w"]} if "w" in at else {"name": mask}
        case = Case(
            implementation=implementation,
            seqlen_q=1 if mode == "decode" else at["n"],
            seqlen_k=at["n"],
            head_dim=at["d"],
            num_heads=num_heads,
            mode=mode,
            mask=window,
            options=dict(options or {}),
        )
        return COUNTED[quantity](counted(case))

    begin = value(first)
    return {
        f"power_of_{letter}": secant((one, begin), (other, value({**first, letter: other})))
        for letter, (one, *others) in letters.items()
        for other in others
    }


def secant(first: tuple[float, float], second: tuple[float, float]) -> float:
    """Return the exponent of the power of x through two points (x, y); minus infinity where y ends at 0."""
    (x1, y1), (x2, y2) = first, second
    return log(y2 / y1) / log(x2 / x1) if y2 > 0 else float("-inf")


COUNTED: dict[str, Callable[[Counts], int]] = {
    "flops": lambda counts: counts.flops,
    "operand_bytes": lambda counts: counts.operand_bytes,
    "extra_bytes": lambda counts: counts.call_peak_bytes - counts.resident_bytes,
}
