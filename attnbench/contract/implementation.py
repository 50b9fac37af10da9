"""What an implementation of attention is.

A frozen record of typed callables, and the closed rule for what it may be asked to do.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from .cost import Cost
from .errors import UsageError, nearest
from .launch import Launch
from .problem import FEATURES, Problem

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from .mixers import Mixer, MixerConfig
    from .semantics import Semantics


class AttentionOutput(NamedTuple):
    """``out`` ``[B, H, Sq, Dv]`` and, where there is one, ``lse`` ``[B, H, Sq]``.

    Natural log of the row sum of exp, -inf for empty rows.
    """

    out: "Tensor"
    lse: "Tensor | None" = None


class AttentionFunction(Protocol):
    """The call every implementation offers."""

    def __call__(
        self,
        q: "Tensor",
        k: "Tensor",
        v: "Tensor",
        *,
        problem: Problem,
        params: "Mapping[str, Tensor] | None" = None,
    ) -> AttentionOutput:
        """Attend: q ``[B, H, Sq, D]``, k ``[B, G, Sk, D]``, v ``[B, G, Sk, Dv]`` → out ``[B, H, Sq, Dv]``."""


class ParameterFunction(Protocol):
    """Makes the learned or random parts of a core (Linformer's projections, Performer's features)."""

    def __call__(self, problem: Problem, generator: "torch.Generator") -> "dict[str, Tensor]":
        """Return the parameters by name, drawn from ``generator`` on the CPU."""


@dataclass(frozen=True, kw_only=True)
class Complexity:
    """How cost grows, as people write it.

    With n the sequence, d the head width, W the window, C the chunk.
    """

    time: str
    memory: str


@dataclass(frozen=True, kw_only=True)
class KernelSpec:
    """One GPU kernel of an implementation, for static analysis and for sampling its programs under an
    interpreter.
    """

    name: str
    function: Callable[[], Any]
    """Returns the kernel object; called late, so that listing implementations compiles nothing."""
    runs: Callable[[Problem], bool] | None = None
    """Whether it is launched for a problem that the implementation's kernels take; default: always."""
    sample_programs: Callable[[Problem], Any] | None = None
    """Which programs of the launch grid to run so that the byte total is still exact.

    What it returns is for the interpreter's tracer.
    """
    variants: Callable[[Problem, str], Sequence[Launch]] | None = None
    """``variants(problem, target)``: the launches of this kernel for a problem on a target (``sm_90``,
    ``gfx942``), differing in what they compile to; empty if it isn't launched there. Tensors are on the meta
    device (``launch.meta_inputs``), and the function that launches makes the same `Launch`.

    The problem's mode says which pass: a backward kernel has variants for ``fwd_bwd`` alone.
    """


def _no_limits(problem: Problem) -> list[str]:
    return []


def _native(problem: Problem) -> str:
    return "native"


def _no_configuration(problem: Problem) -> dict[str, Mapping[str, Any]]:
    return {}


def _no_backend(operators: Sequence[str]) -> str | None:
    return None


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """One way to compute attention. A module of ``implementations/`` holds one as ``IMPLEMENTATION``, or a
    tuple ``IMPLEMENTATIONS``.

    ``supports`` is closed: a problem that needs a feature not listed is refused before anything runs
    (``mask:*`` stands for every mask: for implementations that evaluate the predicate itself).
    """

    name: str
    summary: str
    paper: str
    semantics: "Semantics"
    supports: frozenset[str]
    complexity: Complexity
    attention: AttentionFunction
    cost: Callable[[Problem], Cost]
    """In mode ``decode`` of one step with the state (``cost.from_cache`` where that is the shared cache).

    Of an implementation with ``read``, without keys (``seqlen_k`` 0), of reading it.
    """
    unsupported: Callable[[Problem], list[str]] = _no_limits
    """Limits of shape, with reasons; empty if the problem is fine."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options it takes, with their defaults."""
    execution: Callable[[Problem], str] = _native
    """``native``, or ``interpreted`` where the kernel runs under an interpreter.

    Numbers and bytes, never a latency.
    """
    backend: Callable[[Sequence[str]], str | None] = _no_backend
    """Names the backend that ran, given the operators that were seen."""
    init_params: ParameterFunction | None = None
    new_state: Callable[..., Any] | None = None
    """``new_state(problem, max_seqlen) -> state``; default: the shared key/value cache (``state.py``)."""
    extend: Callable[..., Any] | None = None
    """``extend(state, q, k, v, *, problem, params=None) -> (AttentionOutput, state)``.

    The problem is that of the chunk; its ``key_lengths``, if any, count the valid tokens of each row.
    """
    read: Callable[..., AttentionOutput] | None = None
    """``read(state, q, *, problem, params=None) -> AttentionOutput``: attend to all that a state holds and
    leave it as it is.

    The problem is that of the queries: without keys, under a full mask. Cross-attention then remembers its
    source in such a state, filled once by ``extend``; without ``read`` in keys and values.
    """
    state_bytes: Callable[[Problem, int], int] | None = None
    """``state_bytes(problem, max_seqlen)``: bytes of that state."""
    make_mixer: "Callable[[MixerConfig], Mixer] | None" = None
    """For what has no q/k/v core (state-space and recurrent layers)."""
    kernels: tuple[KernelSpec, ...] = ()
    """GPU kernels of its own, whatever problem they are for."""
    runs_kernels: Callable[[Problem], bool] | None = None
    """Whether they do the work of this problem; default: on CUDA, and where they are interpreted."""
    configuration: Callable[[Problem], Mapping[str, Mapping[str, Any]]] = _no_configuration
    """What each of its kernels is launched with for a problem: the numbers of a tile, by kernel.

    A record holds it. Where the fastest is searched for, it is searched here, before anything is measured.
    """
    compiled: bool = False
    """Whether a call goes through PyTorch's compiler by itself.

    No operator in it is seen, and the first call of each problem compiles.
    """

    def __post_init__(self) -> None:
        """Refuse features that don't exist: a misspelt one would be unsupported for ever."""
        for feature in self.supports:
            if feature not in FEATURES and not feature.startswith("mask:"):
                hint = nearest(feature, FEATURES)
                raise UsageError(f"{self.name} supports {feature!r}, which is no feature{hint}")

    def kernels_for(self, problem: Problem) -> tuple[KernelSpec, ...]:
        """Return the kernels that run for ``problem``; empty where operators of PyTorch do the work."""
        if self.runs_kernels is not None:
            runs = self.runs_kernels(problem)
        else:
            runs = problem.device == "cuda" or self.execution(problem) == "interpreted"
        found = self.kernels if runs else ()
        return tuple(spec for spec in found if spec.runs is None or spec.runs(problem))


def core_refusals(implementation: Implementation) -> list[str]:
    """Return why ``implementation`` can't be called on q, k and v: it is a mixer without such a core."""
    if implementation.make_mixer is None:
        return []
    return [f"{implementation.name} has no q/k/v core: it runs at the levels block and model"]


def option_refusals(name: str, known: Collection[str], options: Iterable[str]) -> list[str]:
    """Return which of the options are not among those that the implementation ``name`` takes, with the
    nearest that is.
    """
    return [
        f"{name} has no option {option!r}{nearest(option, known)}"
        for option in options
        if option not in known and option != "return_lse"
    ]


def refusals(implementation: Implementation, problem: Problem) -> list[str]:
    """Return every reason why ``implementation`` may not be given ``problem``; empty if it may."""
    supports = implementation.supports
    missing = sorted(
        need
        for need in problem.needs()
        if need not in supports and not (need.startswith("mask:") and "mask:*" in supports)
    )
    reasons = [f"{implementation.name} does not support {need}" for need in missing]
    reasons += option_refusals(implementation.name, implementation.options, dict(problem.options))
    return reasons or implementation.unsupported(problem)


def require_support(implementation: Implementation, problem: Problem) -> Problem:
    """Return ``problem``, or raise ``UsageError`` with every reason why the implementation refuses it."""
    reasons = refusals(implementation, problem)
    if reasons:
        raise UsageError("; ".join(reasons))
    return problem


def level_refusals(implementation: Implementation, problem: Problem, level: str) -> list[str]:
    """Return every reason against ``problem`` as a case of ``level``: at ``attention`` it needs a core."""
    return (core_refusals(implementation) if level == "attention" else []) or refusals(
        implementation, problem
    )
