"""A case made ready to run, at whichever level. In: a case, a seed. Out: a workload."""

from attnbench.contract.errors import UsageError
from attnbench.plan.case import INPUTS_ONLY_AT, Case

from .core_workload import core_workload
from .module_workload import block_workload, model_workload
from .module_workload import with_module as with_module
from .prepared import Outputs as Outputs
from .prepared import StandInMode
from .prepared import Workload as Workload


def build_workload(case: Case, *, seed: int = 0, fake: bool = False) -> Workload:
    """Make the case ready.

    Raises:
        UsageError: an unknown implementation or preset, an impossible shape, or a key that the level lacks.
    """
    reasons = _refused_keys(case)
    if reasons:
        raise UsageError(f"level {case.level!r} has no {', no '.join(reasons)}")
    fake_mode = StandInMode(case.device) if fake else None
    make = {"attention": core_workload, "block": block_workload, "model": model_workload}[case.level]
    return make(case, seed, fake_mode)


def _refused_keys(case: Case) -> list[str]:
    elsewhere = INPUTS_ONLY_AT.get(case.inputs, case.level) != case.level
    inputs = [f"inputs = {case.inputs!r}"] if elsewhere else []
    if case.level == "attention":
        return inputs
    given = {
        "scale": case.scale is not None,
        "query_start": case.query_start is not None,
    }
    return inputs + [name for name, is_given in given.items() if is_given]
