"""Bytes moved. In: a workload, real or fake. Out: compulsory and operand bytes, and the operators that ran.

``compulsory``: what no algorithm can save, in closed form. ``operand``: what each operator reads and
writes, each operand once. Bytes that a kernel's own loads ask for, and those that cross the pins, come from
elsewhere.
"""

from .operators import OperandBytes
from .record import Traffic
from .workload import Workload

BACKEND = "aten-operators"


def count_operands(workload: Workload) -> OperandBytes:
    """Run the workload once, real or fake, and count what its operators read and write."""
    counter = OperandBytes()
    with workload.environment():
        workload.prepare()
        with counter:
            workload.call()
    return counter


def measure_traffic(workload: Workload, unavailable: dict[str, str]) -> tuple[Traffic, list[str]]:
    """Return the section and the names of the operators that moved bytes, in the order in which they ran."""
    counted = count_operands(workload)
    section = Traffic(operand_bytes=counted.total_bytes, operand_backend=BACKEND)
    if workload.level == "attention":
        section.compulsory_bytes = workload.implementation.cost(workload.problem).compulsory_bytes
    else:
        unavailable["traffic.compulsory_bytes"] = "has a closed form for attention alone"
    return section, counted.operators
