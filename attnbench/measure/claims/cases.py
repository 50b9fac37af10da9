"""Cases of claims on fake tensors, where nothing is computed and no shape is too large. In: a case. Out: what
its operators do.
"""

from typing import TypeVar

from attnbench.contract.errors import UsageError
from attnbench.measure.attentions import case_refusals
from attnbench.measure.counting import Counts, count_call
from attnbench.measure.prepared import Workload
from attnbench.measure.watching import OperatorWatch
from attnbench.measure.workload import build_workload
from attnbench.plan.case import Case

Watch = TypeVar("Watch", bound=OperatorWatch)


def counted(case: Case) -> Counts:
    """Return what one call counts.

    Raises:
        UsageError: the implementation refuses the case.
    """
    return count_call(_ready(case))


def watched(case: Case, watch: Watch) -> Watch:
    """Make one call under a watch, and return that.

    Raises:
        UsageError: the implementation refuses the case.
    """
    workload = _ready(case)
    with workload.environment():
        workload.prepare()
        with watch:
            workload.call()
    return watch


def _ready(case: Case) -> Workload:
    if reasons := case_refusals(case):
        raise UsageError("; ".join(reasons))
    return build_workload(case, fake=True)
