"""The optimiser's step, apart from the pass that gives its gradients. In: a workload that trains. Out: a
section.

AdamW (arXiv 1711.05101) over all weights, in their dtype, with PyTorch's defaults but one: the learning rate
is 0, so that every step does the same arithmetic and the weights stay what they were.
"""

import torch

from attnbench.plan.settings import MeasureSettings

from .latency import timer_for
from .prepared import nothing, tensors_of
from .record import OptimizerStep
from .stopping import StoppingRule, median_interval, quantile
from .timing import Task, Timer
from .workload import Workload

NAME = "AdamW"


def has_step(workload: Workload) -> bool:
    """Whether a call is a training step without its last part: ``fwd_bwd`` of a model."""
    return workload.level == "model" and workload.problem.mode == "fwd_bwd"


def measure_optimizer(
    workload: Workload,
    settings: MeasureSettings,
    unavailable: dict[str, str],
    *,
    timer: Timer | None = None,
) -> OptimizerStep:
    """Return the median time of one step and the bytes that the optimiser keeps between steps.

    Every weight is its own gradient: what the numbers are does not matter to the time. Why a better timer was
    not used goes to ``unavailable``, and why there is no time.
    """
    if workload.module is None:
        raise TypeError("level 'attention' has no weights")
    parameters = list(workload.module.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=0.0)
    timer = timer or timer_for(workload)
    rule = StoppingRule(min_samples=settings.min_samples, budget_s=settings.latency_budget_s / 2)
    for parameter in parameters:
        parameter.grad = parameter.detach().clone()
    try:
        task = Task(call=optimizer.step, prepare=nothing, repeatable=True)
        timing = timer.time(task, rule, settings.warmup_s / 2)
    finally:
        for parameter in parameters:
            parameter.grad = None
    kept = tensors_of(list(optimizer.state.values()))
    timing.say_passed_over("optimizer_step", unavailable)
    section = OptimizerStep(
        name=NAME, state_bytes=sum(x.numel() * x.element_size() for x in kept), timer=timer.name
    )
    if not timing.samples_ms:
        unavailable["optimizer_step.median_ms"] = f"too short for the timer {timer.name}"
    else:
        section.median_ms = quantile(timing.samples_ms, 0.5)
        section.ci95_low_ms, section.ci95_high_ms = median_interval(timing.samples_ms)
    return section
