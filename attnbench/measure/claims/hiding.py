"""What gets past a mask. In: implementations by name. Out: numbers of elements that changed; bits count.

Keys and values that a query does not see become something else, NaN included: neither its output nor a
gradient may change, in core or model.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from attnbench.contract.discovery import get_implementation
from attnbench.contract.implementation import Implementation, require_support
from attnbench.contract.masks import Causal, Full, Mask
from attnbench.contract.problem import Problem
from attnbench.measure.inputs import draw, input_shapes, make_inputs
from attnbench.model.builder import build_model
from attnbench.model.weights import generator_for


def causal_leaks(*, implementations: Sequence[str], preset: str, n: int, seen: int) -> dict[str, float]:
    """Return how many elements change before position ``seen`` when all later tokens are others: ``outputs``
    of the core, ``gradients`` of later keys and values that are not 0, and ``logits`` of a decoder.

    ``without_mask`` is the number of outputs if every key is seen: what the count looks like if it leaks.
    """
    found = dict.fromkeys(("outputs", "gradients", "logits", "without_mask"), 0)
    for name in implementations:
        core = get_implementation(name)
        for quantity, mask in (("outputs", Causal()), ("without_mask", Full())):
            problem = Problem(seqlen_q=n, num_heads=2, mask=mask)
            found[quantity] += _changed_by_later(core, problem, seen)
        found["gradients"] += _gradients_of_later(core, Causal(), n, seen)
        found["logits"] += _changed_logits(name, preset, n, seen)
    return {name: float(value) for name, value in found.items()}


def padding_leaks(*, implementations: Sequence[str], preset: str, n: int, valid: int) -> dict[str, float]:
    """Return how many elements change when what lies at padding, behind ``valid`` of ``n`` positions, is
    something else: ``outputs`` with NaN in it, ``gradients`` at padding that are not 0, and ``features`` of
    an encoder at valid positions.

    ``without_lengths`` is the number of outputs if nothing says what is padding, with numbers in it.
    """
    found = dict.fromkeys(("outputs", "gradients", "features", "without_lengths"), 0)
    for name in implementations:
        core = get_implementation(name)
        problem = Problem(seqlen_q=n, num_heads=2, mask=Full(), key_lengths=(valid,))
        found["outputs"] += _changed_by_later(core, problem, valid, rows=n, other=torch.nan)
        found["without_lengths"] += _changed_by_later(core, problem.replace(key_lengths=None), valid, rows=n)
        found["gradients"] += _gradients_of_later(core, Full(), n, valid, key_lengths=(valid,))
        found["features"] += _changed_features(name, preset, n, valid)
    return {name: float(value) for name, value in found.items()}


def changed(before: Tensor, after: Tensor) -> int:
    """Count elements that differ; a NaN differs from everything, itself included."""
    return int((before != after).sum())


def _attend(core: Implementation, inputs: Mapping[str, Tensor], problem: Problem) -> Tensor:
    require_support(core, problem)
    return core.attention(inputs["q"], inputs["k"], inputs["v"], problem=problem).out


@torch.no_grad()
def _changed_by_later(
    core: Implementation, problem: Problem, seen: int, *, rows: int = 0, other: float | None = None
) -> int:
    """Count outputs of the first ``rows`` queries (``seen``) that change with keys from ``seen`` on."""
    inputs = make_inputs(problem)
    before = _attend(core, inputs, problem)[:, :, : rows or seen]
    for name in ("k", "v"):
        others = draw("normal", input_shapes(problem)[name], problem.dtype, seed=1, name=name)
        inputs[name][:, :, seen:] = others[:, :, seen:] if other is None else other
    return changed(before, _attend(core, inputs, problem)[:, :, : rows or seen])


def _gradients_of_later(core: Implementation, mask: Mask, n: int, seen: int, **given: Any) -> int:
    """Count what is not 0 of the gradient of the first ``seen`` outputs in keys and values behind."""
    problem = Problem(seqlen_q=n, num_heads=2, mask=mask, mode="fwd_bwd", **given)
    inputs = {name: x.requires_grad_() for name, x in make_inputs(problem).items() if name != "grad_out"}
    first = _attend(core, inputs, problem)[:, :, :seen]
    gradients = torch.autograd.grad(first.sum(), (inputs["k"], inputs["v"]))
    return sum(changed(x[:, :, seen:], torch.zeros(())) for x in gradients)


def _tokens(vocab_size: int, n: int, seen: int) -> tuple[Tensor, Tensor]:
    """Return tokens ``[1, n]``, and others that are the same up to ``seen``."""
    tokens = torch.randint(vocab_size, (1, n), generator=generator_for(0, "tokens"))
    others = tokens.clone()
    others[:, seen:] = (others[:, seen:] + 1) % vocab_size
    return tokens, others


@torch.no_grad()
def _changed_logits(implementation: str, preset: str, n: int, seen: int) -> int:
    model = build_model(preset, implementation)
    tokens, others = _tokens(model.config.vocab_size, n, seen)
    return changed(model(tokens)[:, :seen], model(others)[:, :seen])


@torch.no_grad()
def _changed_features(implementation: str, preset: str, n: int, valid: int) -> int:
    model = build_model(preset, implementation)
    tokens, others = _tokens(model.config.vocab_size, n, valid)
    before, after = (model.features(x, lengths=[valid])[:, :valid] for x in (tokens, others))
    return changed(before, after)
