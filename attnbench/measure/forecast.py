"""What is known of a case before it runs. In: a case. Out: its cost, or why it is refused.

At level ``attention`` the implementation states its cost in closed form, in microseconds; what it states
nothing of, and what a block or a model needs, is counted on fake tensors, once for all cases that differ in
nothing that such a count sees.
"""

from functools import lru_cache
from typing import NamedTuple

import msgspec

from attnbench.contract.cost import Cost, tensor_bytes
from attnbench.contract.errors import UsageError
from attnbench.contract.state import state_bytes
from attnbench.plan.case import Case

from .attentions import Attention, attentions_of, case_refusals
from .counting import count_call
from .flops import NothingCountedError, executed_flops
from .workload import build_workload

UNSEEN_BY_COUNTS = {"inputs": "normal", "cache": "cold", "threads": None, "compile": False}
"""Keys that change nothing on fake tensors, and their defaults."""


class Forecast(msgspec.Struct, kw_only=True):
    """Figures of one call; None where there is none, and then the reason is in ``unavailable``.

    ``predicted_peak_bytes`` holds the inputs, too; a closed form does not round blocks up as CUDA's allocator
    does (512 bytes a tensor).
    """

    unsupported: list[str] = []
    predicted_peak_bytes: int | None = None
    flops: int | None = None
    compulsory_bytes: int | None = None
    executed_flops: int | None = None
    operand_bytes: int | None = None
    unavailable: dict[str, str] = {}


class _Counted(NamedTuple):
    """What fake tensors say of a case."""

    peak_bytes: int | None = None
    executed_flops: int | None = None
    operand_bytes: int | None = None
    unavailable: tuple[tuple[str, str], ...] = ()


def forecast(case: Case) -> Forecast:
    """Return what is known of a case; nothing is computed and nothing is allocated."""
    try:
        attentions = attentions_of(case)
        reasons = case_refusals(case, attentions)
    except UsageError as error:
        reasons = [str(error)]
    if reasons:
        return Forecast(unsupported=reasons)
    found = Forecast()
    if case.level == "attention":  # closed forms are of the attention, not of a whole model
        cost = attentions[0].implementation.cost(attentions[0].problem)
        found.flops, found.compulsory_bytes = cost.flops, cost.compulsory_bytes
        found.executed_flops, found.operand_bytes = cost.executed_flops, cost.operand_bytes
        found.predicted_peak_bytes = peak_in_closed_form(attentions[0], cost)
    if found.predicted_peak_bytes is None:
        plain = msgspec.structs.replace(case, **UNSEEN_BY_COUNTS)
        counted = _counted(msgspec.json.encode(plain))
        found.predicted_peak_bytes = counted.peak_bytes
        if found.executed_flops is None:
            found.executed_flops = counted.executed_flops
        if found.operand_bytes is None:
            found.operand_bytes = counted.operand_bytes
        found.unavailable = {name: why for name, why in counted.unavailable if getattr(found, name) is None}
    return found


def peak_in_closed_form(attention: Attention, cost: Cost) -> int | None:
    """Return the bytes of the tensors that are alive at the peak of a call, its inputs and state among them.

    None where the implementation states no peak, or has parameters, whose size only they know.
    """
    core, p = attention.implementation, attention.problem
    if cost.peak_bytes is None or core.init_params is not None:
        return None
    size = tensor_bytes(p)
    if p.mode != "decode":
        upstream = size["out"] if p.needs_gradients else 0
        return cost.peak_bytes + size["q"] + size["k"] + size["v"] + upstream
    new = tensor_bytes(p.replace(seqlen_k=p.seqlen_q, key_lengths=None, query_start=None))
    return cost.peak_bytes + new["q"] + new["k"] + new["v"] + state_bytes(core, p, p.seqlen_k)


@lru_cache(maxsize=4096)
def _counted(encoded: bytes) -> _Counted:
    """Count one call of a case, encoded as JSON, on fake tensors."""
    case = msgspec.json.decode(encoded, type=Case)
    try:
        workload = build_workload(case, fake=True)
        counts = count_call(workload)
    except Exception as error:  # somebody's kernel may refuse fake tensors; the other figures stand
        return _Counted(unavailable=(("predicted_peak_bytes", f"{type(error).__name__}: {error}"),))
    try:
        executed = executed_flops(workload, counts)
    except NothingCountedError as reason:
        missing = (("executed_flops", str(reason)),)
        return _Counted(counts.peak_bytes, None, counts.operand_bytes, missing)
    return _Counted(counts.peak_bytes, executed, counts.operand_bytes)
