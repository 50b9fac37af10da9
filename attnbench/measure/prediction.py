"""The peak of a case before it runs. In: a case. Out: bytes, from fake tensors or in closed form.

Fake tensors run every operator, which costs as many as there are: a loop over a million tokens takes minutes.
Above a length the peak is the one that the implementation states, once a call of the same case at a shorter
length has shown, on fake tensors, that it states it to the byte.
"""

import msgspec

from attnbench.plan.case import Case

from .attentions import Attention, attentions_of
from .forecast import peak_in_closed_form
from .memory import Predicted, predict_counts

FAKE_TENSORS, CLOSED_FORM = "fake-tensors", "closed-form"
LONGEST_COUNTED = 1 << 14
"""Tokens up to which every operator is run on fake tensors: at most a few thousand of them."""
TRIAL_SEQLEN = 1 << 12
"""Tokens of the call that a closed form is held against, but for those beyond a multiple of them, which are
added: the last of equal tiles is as short then."""


def predict_peak(case: Case) -> Predicted:
    """Return the peaks; nothing is computed and nothing is allocated.

    Raises:
        Exception: whatever an implementation raises that does not run on fake tensors.
    """
    stated = _stated_peak(case)
    if stated is not None:
        return Predicted(stated, stated, CLOSED_FORM)
    counts = predict_counts(case)
    return Predicted(counts.call_peak_bytes, counts.peak_bytes, FAKE_TENSORS)


def _stated_peak(case: Case) -> int | None:
    """Return the closed form of a long case, if there is one that a shorter case bears out."""
    if case.level != "attention" or case.device != "cpu" or case.mode == "decode":
        return None
    attention = attentions_of(case)[0]
    p = attention.problem
    if p.seqlen_q != p.seqlen_k or p.seqlen_q <= LONGEST_COUNTED:
        return None
    if p.key_lengths is not None or p.query_start is not None:
        return None  # a shorter case would be another one
    stated = _closed_form(attention)
    if stated is None:
        return None
    seqlen = TRIAL_SEQLEN + p.seqlen_q % TRIAL_SEQLEN
    shorter = msgspec.structs.replace(case, seqlen_q=seqlen, seqlen_k=seqlen)
    counts = predict_counts(shorter)
    borne_out = _closed_form(attentions_of(shorter)[0]) == counts.call_peak_bytes == counts.peak_bytes
    return stated if borne_out else None


def _closed_form(attention: Attention) -> int | None:
    return peak_in_closed_form(attention, attention.implementation.cost(attention.problem))
