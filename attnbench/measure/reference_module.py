"""The truth of a block or a model: the same weights in float64 with the semantics' definition as its core.
In: a workload. Out: two twins.

A mixer that is no q/k/v core is its own definition: its truth is itself in float64, its baseline itself.
"""

import copy
import dataclasses
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from attnbench.contract.evaluation import definition
from attnbench.contract.implementation import AttentionOutput, Implementation
from attnbench.contract.masks import Full
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import Semantics
from attnbench.contract.state import KeyValueCache, new_state
from attnbench.model.mixer import AttentionMixer

from .workload import Outputs, Workload, with_module

DEFINED = frozenset({"dtype:float64", "backward", "decode", "cross-lengths", "key-lengths", "query-start"})
"""What a definition does that its implementation may not."""


def _core(
    semantics: Semantics,
    plain: bool,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    problem: Problem,
    params: Mapping[str, Tensor] | None = None,
) -> AttentionOutput:
    return definition(semantics, q, k, v, problem=problem, params=params, plain=plain)


def _defining(implementation: Implementation, plain: bool) -> Implementation:
    """Return the definition (or the baseline) in the place of an implementation.

    It decodes from a cache of the whole context, whatever the implementation remembers instead.
    """
    defining = dataclasses.replace(
        implementation,
        supports=implementation.supports | DEFINED,
        unsupported=lambda problem: [],
        attention=partial(_core, implementation.semantics, plain),
        new_state=None,
        extend=None,
        read=None,
        state_bytes=None,
    )

    def whole_cache(problem: Problem, max_seqlen: int) -> KeyValueCache:
        cache: KeyValueCache = new_state(defining, problem.replace(mask=Full()), max_seqlen)
        return cache

    return dataclasses.replace(defining, new_state=whole_cache)


def _twin(module: nn.Module, plain: bool) -> nn.Module:
    twin = copy.deepcopy(module)
    for part in twin.modules():
        if isinstance(part, AttentionMixer):
            part.implementation = _defining(part.implementation, plain)
    return twin if plain else twin.double()


def reference_bytes(workload: Workload) -> int:
    """Bytes that the float64 twin needs.

    Weights, while decoding the whole context, and per attention a few score matrices (all layers' at once
    under autograd).
    """
    held = sum(8 * tensor.numel() for tensor in workload.resident())
    scores = []
    for attention in workload.attentions:
        p, layers = attention.problem, attention.layers
        scores.append(
            8 * p.batch * p.num_heads * p.seqlen_q * p.seqlen_k * (layers if p.needs_gradients else 1)
        )
        if p.mode == "decode":
            held += layers * 8 * p.batch * p.num_kv_heads * p.seqlen_k * (p.head_dim + p.head_dim_v)
    return 2 * held + 4 * (sum(scores) if workload.problem.needs_gradients else max(scores))


def _evaluated(workload: Workload, module: nn.Module) -> Outputs:
    twin = with_module(workload, module)
    with twin.environment():
        twin.prepare()
        return twin.call()


def reference_outputs(workload: Workload) -> tuple[Outputs, Outputs]:
    """Return the outputs of the float64 twin and of the baseline twin: ``(truth, plain)``."""
    module = workload.module
    if module is None:
        raise TypeError("level 'attention' has its truth in closed form")
    with torch.no_grad():
        twins = _twin(module, plain=False), _twin(module, plain=True)
    truth, plain = (_evaluated(workload, twin) for twin in twins)
    return truth, plain
