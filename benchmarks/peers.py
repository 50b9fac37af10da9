"""The CPU paths of `sliding-window` and `linear` against what other packages offer. Needs the extra `peers`.

All contenders of a length are called in turn, one call each a round, so that whatever disturbs the machine
disturbs all of them; a time is the median over the rounds, by the wall clock and in processor time, which
neighbours disturb less. Float32, one sequence, causal. Before anything is timed, contenders that compute the
same function are compared with it.

    make bench-peers
    python benchmarks/peers.py --seqlen 2048 8192 --rounds 20 --json peers.json
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import elu, scaled_dot_product_attention

from attnbench.contract.discovery import get_implementation
from attnbench.contract.masks import Causal, Mask, SlidingWindow
from attnbench.contract.problem import Problem
from attnbench.device.hardware import describe

HEADS, WIDTH, WINDOW = 8, 64, 256
MATMUL_SIZE = 2048
TOLERANCE = 2e-4
"""Largest difference of two outputs that are the same function: both are float32, in other orders."""

Call = Callable[[], Tensor]


@dataclass(frozen=True)
class Contender:
    """One way to compute, or to stand in for, a function; ``reference`` gives what it is compared with."""

    group: str
    name: str
    call: Call
    flops: int
    """Useful ones, of what it computes."""
    reference: Call | None = None
    remark: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contender at one length."""

    group: str
    name: str
    seqlen: int
    median_ms: float
    times_ours: float
    """Its time over that of the group's first, which is this project's."""
    median_cpu_ms: float
    cpu_times_ours: float
    """The same in processor time."""
    matmul_fraction: float
    """Its useful FLOPs per processor time over those of one large product on the same threads."""
    max_difference: float | None
    """Of its output to that of the same function; None if it computes another."""
    remark: str
    samples_ms: list[float] = field(repr=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print a table and, if asked, write JSON."""
    parser = argparse.ArgumentParser(description="sliding-window and linear against other packages")
    parser.add_argument("--seqlen", type=int, nargs="+", default=[2048, 8192, 16384])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    torch.set_grad_enabled(False)
    if given.json is not None:
        try:
            given.json.touch()  # not after minutes
        except OSError as error:
            parser.error(f"can't write {given.json}: {error.strerror}")
    library, rate = matmul_rate(given.rounds)
    print(f"one product of {MATMUL_SIZE}³ in float32: {rate / 1e9:.0f} GFLOP/s, {library}")
    rows = [row for seqlen in given.seqlen for row in compare(seqlen, given.rounds, rate)]
    print_table(rows)
    if given.json is not None:
        found = {
            "circumstances": circumstances(given.threads, given.rounds),
            "matmul": {"library": library, "flops_per_s": rate, "size": MATMUL_SIZE},
            "rows": [asdict(row) for row in rows],
        }
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def contenders(seqlen: int) -> list[Contender]:
    """Return all of one length, on the same inputs."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, seqlen, WIDTH, generator=generator) for _ in range(3))

    def problem(mask: Mask) -> Problem:
        return Problem(seqlen_q=seqlen, num_heads=HEADS, head_dim=WIDTH, mask=mask)

    def ours(name: str, mask: Mask) -> Call:
        core, asked = get_implementation(name), problem(mask)
        return lambda: core.attention(q, k, v, problem=asked).out

    def flops(name: str, mask: Mask) -> int:
        return get_implementation(name).cost(problem(mask)).flops

    def causal() -> Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=True)

    window, one_more = SlidingWindow(WINDOW), SlidingWindow(WINDOW + 1)
    local = import_module("local_attention").LocalAttention(
        window_size=WINDOW, causal=True, exact_windowsize=True, use_rotary_pos_emb=False
    )
    bucketed = import_module("linear_attention_transformer.linear_attention_transformer").causal_linear_attn
    chunked = import_module("performer_pytorch.performer_pytorch").causal_linear_attention_noncuda
    banded, recurrent = ours("sliding-window", window), ours("linear", Causal())
    in_window, in_linear = flops("sliding-window", window), flops("linear", Causal())
    dense = flops("sdpa", Causal())
    other = "another function: all keys before the query"
    return [
        Contender("window", "sliding-window", banded, in_window),
        Contender("window", "flex", ours("flex", window), in_window, banded),
        Contender(
            "window",
            "local-attention",
            lambda: local(q, k, v),
            flops("sliding-window", one_more),
            ours("sliding-window", one_more),
            f"its window of {WINDOW} holds {WINDOW + 1} keys",
        ),
        Contender("window", "sdpa", causal, dense, remark=other),
        Contender("linear", "linear", recurrent, in_linear),
        Contender(
            "linear",
            "linear-attention-transformer",
            lambda: bucketed(q, k, v),
            in_linear,
            remark="another function: skips the keys of a query's own bucket, softmax and exp as features",
        ),
        Contender(
            "linear",
            "performer-pytorch",
            lambda: chunked(elu(q) + 1, elu(k) + 1, v),
            in_linear,
            recurrent,
            "its causal product without CUDA, elu + 1 as features",
        ),
        Contender("linear", "sdpa", causal, dense, remark=other),
    ]


def compare(seqlen: int, rounds: int, rate: float) -> list[Row]:
    """Check, then time in turn.

    Raises:
        AssertionError: what should be the same function is not.
    """
    entrants = contenders(seqlen)
    differences = [difference(one) for one in entrants]
    samples: list[list[Timed]] = [[] for _ in entrants]
    for _ in range(rounds):
        for times, one in zip(samples, entrants, strict=True):
            times.append(timed(one.call))
    medians = [median(times) for times in samples]
    first = {one.group: ms for one, ms in reversed(list(zip(entrants, medians, strict=True)))}
    return [
        Row(
            group=one.group,
            name=one.name,
            seqlen=seqlen,
            median_ms=ms.wall,
            times_ours=ms.wall / first[one.group].wall,
            median_cpu_ms=ms.cpu,
            cpu_times_ours=ms.cpu / first[one.group].cpu,
            matmul_fraction=one.flops / (ms.cpu * 1e-3) / rate,
            max_difference=apart,
            remark=one.remark,
            samples_ms=[each.wall for each in times],
        )
        for one, ms, apart, times in zip(entrants, medians, differences, samples, strict=True)
    ]


def difference(one: Contender) -> float | None:
    """Call it once, which compiles what there is to compile, and compare its output."""
    out = one.call()
    if one.reference is None:
        return None
    apart = float((out - one.reference()).abs().max())
    if apart > TOLERANCE:
        raise AssertionError(f"{one.name} differs by {apart:.2g} from the same function")
    return apart


class Timed(NamedTuple):
    """Milliseconds by the wall clock, and of processor time in all threads."""

    wall: float
    cpu: float


def timed(call: Call) -> Timed:
    """Call once."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return Timed(1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu))


def median(samples: Sequence[Timed]) -> Timed:
    """Return the median of either time."""
    walls, cpus = zip(*samples, strict=True)
    return Timed(statistics.median(walls), statistics.median(cpus))


def matmul_rate(rounds: int) -> tuple[str, float]:
    """Return which library multiplies matrices, and a large product's FLOPs per second of processor time."""
    a, b = torch.randn(2, MATMUL_SIZE, MATMUL_SIZE)
    out = torch.empty_like(a)
    torch.mm(a, b, out=out)
    ms = median([timed(lambda: torch.mm(a, b, out=out)) for _ in range(rounds)]).cpu
    library = "torch.mm of MKL" if torch.backends.mkl.is_available() else "torch.mm without MKL"
    return library, 2 * MATMUL_SIZE**3 / (ms * 1e-3)


def circumstances(threads: int, rounds: int) -> dict[str, object]:
    """Return on what and with what it was measured."""
    packages = ("torch", "local-attention", "linear-attention-transformer", "performer-pytorch")
    return {
        "cpu": describe()["cpu"],
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
        "threads": threads,
        "rounds": rounds,
        "shape": {"batch": 1, "num_heads": HEADS, "head_dim": WIDTH, "window_size": WINDOW},
    }


def print_table(rows: Sequence[Row]) -> None:
    """Print a line a contender."""
    heads = f"{'ms':>10}{'× ours':>9}{'cpu ms':>10}{'× ours':>9}{'of matmul':>11}{'apart':>10}"
    print(f"{'':8}{'':30}{'seqlen':>8}{heads}")
    for row in rows:
        apart = "" if row.max_difference is None else f"{row.max_difference:.1e}"
        print(
            f"{row.group:8}{row.name:30}{row.seqlen:>8}{row.median_ms:>10.2f}{row.times_ours:>9.2f}"
            f"{row.median_cpu_ms:>10.2f}{row.cpu_times_ours:>9.2f}"
            f"{row.matmul_fraction:>11.1%}{apart:>10}  {row.remark}".rstrip()
        )


if __name__ == "__main__":
    sys.exit(main())
