"""The float64 truth of a case, computed once and shared. In: a workload. Out: truth, baseline, the rows they
hold, and error bounds.

Cases that differ in the implementation alone have the same truth: with a folder it is kept there under a name
made of all that it depends on, so one worker computes it and the others read it. Above a number of rows it is
evaluated on sampled query rows; an upstream gradient that is zero elsewhere makes the gradients exact for
those rows.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from attnbench.contract.evaluation import Truth, baseline, truth
from attnbench.contract.hidden import zero_hidden
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import Semantics

from .baseline_error import Results, affordable_roundings, farthest

EDGES = (0, 1, 15, 16, 31, 32, 63, 64, 127, 128, 255, 256)
"""Rows at both sides of common tile borders, always in a sample."""
ALWAYS_AFFORDABLE = 32


class Yardstick(NamedTuple):
    """What a result is measured by: ``truth`` and ``plain`` hold out, lse and dq on ``rows`` (None for all),
    and dk and dv on the keys near them. Each tensor of ``plain`` is of that rounding which is farthest from
    the truth.
    """

    truth: Truth
    plain: Truth
    rows: Tensor | None
    bounds: dict[str, float]


def affordable(limit: int, pairs: int, seqlen: int, most_pairs: int) -> int:
    """Return how many of ``seqlen`` rows (or keys), which have ``pairs`` scores together, to evaluate.

    ``limit``, or as many as ``most_pairs`` scores allow; a few are always affordable.
    """
    return min(limit, max(ALWAYS_AFFORDABLE, most_pairs * seqlen // max(1, pairs)))


def sample_rows(seqlen_q: int, limit: int, seed: int) -> Tensor | None:
    """Return sorted query rows (or keys).

    Tile borders, the last rows, and the rest drawn one from each of equal strata; None for all.
    """
    if seqlen_q <= limit:
        return None
    chosen = {row for edge in EDGES for row in (edge, seqlen_q - 1 - edge) if 0 <= row < seqlen_q}
    chosen = set(sorted(chosen)[:: max(1, -(-len(chosen) // limit))])
    rest = max(0, limit - len(chosen))
    generator = torch.Generator().manual_seed(seed)
    edges = torch.linspace(0, seqlen_q, rest + 1, dtype=torch.float64)
    drawn = edges[:-1] + torch.rand(rest, generator=generator, dtype=torch.float64) * edges.diff()
    chosen |= {min(seqlen_q - 1, int(row)) for row in drawn}
    return torch.tensor(sorted(chosen))


def _digest(params: Mapping[str, Tensor] | None) -> str:
    """Name the numbers of the core's own parts."""
    digest = hashlib.sha256()
    for name, tensor in sorted((params or {}).items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().double().cpu().numpy().tobytes())
    return digest.hexdigest()


def _name(
    semantics: Semantics,
    problem: Problem,
    inputs_key: str,
    rows: Tensor | None,
    params: Mapping[str, Tensor] | None,
) -> str:
    """Name a truth by everything that it depends on."""
    p = problem
    functions = [
        [function.__module__, getattr(function, "__qualname__", "")]
        for function in (semantics.reference, semantics.baseline)
    ]
    identity = [
        [semantics.name, functions, semantics.in_unit is not None],
        p.mask.to_dict(),
        [p.batch, p.num_heads, p.num_kv_heads, p.seqlen_q, p.seqlen_k, p.head_dim, p.head_dim_v],
        [p.dtype, p.device, p.scale, p.key_lengths, p.query_start, p.needs_gradients],
        [pair for pair in p.options if pair[0] != "return_lse"],
        [inputs_key, None if rows is None else rows.tolist(), _digest(params)],
    ]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]


def _flatten(yardstick: Yardstick) -> dict[str, Tensor]:
    parts = {f"truth.{name}": value for name, value in yardstick.truth._asdict().items()}
    parts |= {f"plain.{name}": value for name, value in yardstick.plain._asdict().items()}
    parts["rows"] = yardstick.rows
    return {name: value.contiguous() for name, value in parts.items() if value is not None}


def _unflatten(parts: Mapping[str, Tensor], bounds: dict[str, float]) -> Yardstick:
    def one(which: str) -> Truth:
        return Truth(*(parts.get(f"{which}.{field}") for field in Truth._fields))  # type: ignore[arg-type]

    return Yardstick(one("truth"), one("plain"), parts.get("rows"), bounds)


def _keep(folder: Path, name: str, parts: dict[str, Tensor]) -> None:
    """Write whole or not at all; a full disk costs the sharing, not the case."""
    unfinished = folder / f"{name}.{os.getpid()}.part"
    with suppress(OSError, SafetensorError):
        folder.mkdir(parents=True, exist_ok=True)
        save_file(parts, unfinished)
        unfinished.replace(folder / f"{name}.safetensors")
    with suppress(OSError):
        unfinished.unlink(missing_ok=True)


def make_yardstick(
    semantics: Semantics,
    problem: Problem,
    inputs: Mapping[str, Tensor],
    *,
    rows: Tensor | None,
    params: Mapping[str, Tensor] | None = None,
    folder: Path | None = None,
    inputs_key: str = "",
) -> Yardstick:
    """Return truth and baseline for q, k, v (and ``grad_out``) on ``rows``, from ``folder`` if they are
    there.

    Args:
        semantics: what is computed.
        problem: shapes and mask.
        inputs: ``q``, ``k``, ``v``, and ``grad_out`` where gradients are wanted, on the CPU or the device.
        rows: query rows to evaluate, None for all.
        params: learned parts of the core.
        folder: where truths are shared; None computes it anew.
        inputs_key: names the numbers in ``inputs``, which nothing but their generator may have written.
    """
    q, k, v = (inputs[name].detach() for name in ("q", "k", "v"))
    grad_out = inputs["grad_out"].detach() if problem.needs_gradients else None
    bounds: dict[str, float] = {}
    if semantics.bound is not None:
        shown_k, shown_v = zero_hidden(k, v, problem)
        given = grad_out if grad_out is None or rows is None else grad_out[:, :, rows.to(grad_out.device)]
        bounds = semantics.bound(q, shown_k, shown_v, given, problem)
    name = _name(semantics, problem, inputs_key, rows, params)
    if folder is not None:
        with suppress(OSError, SafetensorError):
            return _unflatten(load_file(folder / f"{name}.safetensors", device=str(q.device)), bounds)
    exact = truth(semantics, q, k, v, problem=problem, grad_out=grad_out, rows=rows, params=params)

    def rounded(rounding: int) -> Results:
        return _results(
            baseline(
                semantics,
                q,
                k,
                v,
                problem=problem,
                grad_out=grad_out,
                rows=rows,
                params=params,
                rounding=rounding,
            )
        )

    pairs = problem.pairs() * exact.out.shape[2] // max(1, problem.seqlen_q)
    roundings = 1 if semantics.in_unit is None else affordable_roundings(pairs)
    plain = farthest(rounded, _results(exact), dtype=q.dtype, most=roundings)
    lse, dq, dk, dv = (plain.get(name) for name in ("lse", "dq", "dk", "dv"))
    farthest_of = Truth(plain["out"], lse, dq, dk, dv, exact.keys)
    yardstick = Yardstick(exact, farthest_of, rows, bounds)
    if folder is not None:
        _keep(folder, name, _flatten(yardstick))
    return yardstick


def _results(found: Truth) -> Results:
    """Return what was computed; which keys it is on says the truth."""
    return {name: tensor for name, tensor in found._asdict().items() if name != "keys"}


def exact_out(
    semantics: Semantics,
    problem: Problem,
    inputs: Mapping[str, Tensor],
    *,
    rows: Tensor | None,
    folder: Path | None = None,
    inputs_key: str = "",
) -> Tensor:
    """Return the float64 ``out`` on ``rows`` alone: what the distance of an approximation is measured from.

    Same arguments as ``make_yardstick``, whose truth it shares if that is there.
    """
    q, k, v = (inputs[name].detach() for name in ("q", "k", "v"))
    name = _name(semantics, problem, inputs_key, rows, None)
    alone = f"{name}-out"
    for kept in (name, alone) if folder is not None else ():
        with suppress(OSError, SafetensorError):
            return load_file(Path(str(folder)) / f"{kept}.safetensors", device=str(q.device))["truth.out"]
    out = truth(semantics, q, k, v, problem=problem, rows=rows).out
    if folder is not None:
        _keep(folder, alone, {"truth.out": out.contiguous()})
    return out
