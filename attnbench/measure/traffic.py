"""Bytes moved. In: a workload and the counts of its call. Out: compulsory and operand bytes.

``compulsory``: what no algorithm can save, in closed form. ``operand``: what each operator reads and
writes, each operand once. Bytes that a kernel's own loads ask for, and those that cross the pins, come from
elsewhere.
"""

from attnbench.contract.cost import compulsory_bytes

from .counting import UNSEEN, Counts
from .flops import ATTENTION_ALONE
from .record import Traffic
from .workload import Workload

BACKEND = "operators"


def measure_traffic(workload: Workload, counted: Counts | None, unavailable: dict[str, str]) -> Traffic:
    """Return the section; what cannot be had goes to ``unavailable``, with the reason."""
    section = Traffic()
    if counted is None:
        unavailable["traffic.operand_bytes"] = UNSEEN
    else:
        section.operand_bytes, section.operand_backend = counted.operand_bytes, BACKEND
    if workload.level == "attention":
        section.compulsory_bytes = compulsory_bytes(workload.problem)
    else:
        unavailable["traffic.compulsory_bytes"] = ATTENTION_ALONE
    return section
