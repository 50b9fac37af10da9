"""What a device can do at most, measured in a second or so. In: a device. Out: ``Ceilings``.

Every rate is that of the fastest sample, as STREAM reports it (McCalpin, 1995): whatever else the machine
does only slows a sample, and a ceiling is what nothing else on this device exceeds. A median would call a
record implausible because somebody was busy while the ceiling was measured.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from attnbench.device.datasheets import Datasheet, find_datasheet
from attnbench.device.hardware import cpu, last_level_cache_bytes
from attnbench.device.limits import usable_cores
from attnbench.device.rates import AS_ACCURATE

from .ceiling_calls import Rated, bandwidths, exponentials, launches, products
from .cpu_timer import CpuTimer
from .cuda_timer import CudaStream, CudaTimer
from .stopping import StoppingRule
from .telemetry import observe
from .timing import Task, Timer
from .verdicts import was_shared

BUDGET_S = 0.1
"""For the samples of one call; ten quiet ones are enough, and three are taken whatever they cost."""
SAMPLES = 10


class Ceilings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rates of one device; what could not be had is absent, and named in ``unavailable``."""

    name: str | None = None
    """The processor's or the GPU's."""
    threads: int | None = None
    """Of a CPU; other numbers of threads have other ceilings."""
    timer: str | None = None
    matmul_flops_per_s: dict[str, float] = {}
    """Of one large square product, by what is multiplied: a dtype or ``tf32``; a multiply-add is 2 FLOPs."""
    copy_bytes_per_s: float | None = None
    """``b = a``: bytes read and bytes written, without the reads that a cache makes before it writes."""
    triad_bytes_per_s: float | None = None
    """``a = b + s * c``, counted likewise."""
    read_bytes_per_s: float | None = None
    """A sum: what is hardly written to, as in decoding, is read faster than it is copied."""
    exp2_per_s: float | None = None
    """``2^x`` in float32: PyTorch's own, in cache, on a CPU; the hardware's, in registers, on a GPU."""
    launch_overhead_us: float | None = None
    """Of an operator on one element, called from Python, one after the other."""
    buffer_bytes: int | None = None
    """All arrays of a bandwidth together."""
    cache_bytes: int | None = None
    """The last caches in front of the memory, all that this process may use."""
    verdict: list[str] = []
    """Of the whole measurement: ``valid``, ``shared`` or ``throttled``."""
    datasheet: dict[str, Any] | None = None
    """What the maker says (``device/datasheets.py``)."""
    unavailable: dict[str, str] = {}

    @property
    def memory_bytes_per_s(self) -> float | None:
        """The fastest way to or from memory that was measured."""
        rates = (self.copy_bytes_per_s, self.triad_bytes_per_s, self.read_bytes_per_s)
        return max((rate for rate in rates if rate is not None), default=None)

    def or_faster(self, other: "Ceilings") -> "Ceilings":
        """Return these with whatever was faster in ``other``, of the same device."""
        mine, theirs = self.matmul_flops_per_s, other.matmul_flops_per_s
        rates = {name: max(mine.get(name, 0.0), theirs.get(name, 0.0)) for name in mine | theirs}
        bandwidth = {
            name: max(getattr(self, name) or 0.0, getattr(other, name) or 0.0) or None
            for name in ("copy_bytes_per_s", "triad_bytes_per_s", "read_bytes_per_s")
        }
        return msgspec.structs.replace(self, matmul_flops_per_s=rates, **bandwidth)


@dataclass(frozen=True)
class Stopwatch:
    """Times calls that may follow each other."""

    timer: Timer
    budget_s: float

    def fastest_s(self, call: Callable[[], Any]) -> float | None:
        """Return the seconds of the fastest sample, None if the call is too short for the timer."""
        rule = StoppingRule(min_samples=SAMPLES, budget_s=self.budget_s)
        task = Task(call=call, prepare=lambda: None, repeatable=True)
        samples_ms = self.timer.time(task, rule, self.budget_s / 5).samples_ms
        return min(samples_ms) * 1e-3 if samples_ms else None


def ceilings_task(case: dict[str, Any], settings: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
    """Measure the ceilings of ``case["device"]`` for ``case["dtypes"]``: what a worker calls."""
    measured = measure_ceilings(
        torch.device(case["device"]),
        dtypes=case["dtypes"],
        budget_s=settings["budget_s"],
        memory_limit_bytes=context.get("memory_limit_bytes"),
    )
    plain: dict[str, Any] = msgspec.to_builtins(measured)
    return plain


def measure_ceilings(
    device: torch.device,
    *,
    dtypes: Collection[str] = tuple(AS_ACCURATE),
    budget_s: float = BUDGET_S,
    memory_limit_bytes: int | None = None,
    timer: Timer | None = None,
) -> Ceilings:
    """Measure every rate; one that fails is absent, with its reason.

    Args:
        device: the CPU, with the threads that PyTorch uses now, or a CUDA device.
        dtypes: of the cases that the rates are for: all products in which they may be computed.
        budget_s: seconds for the samples of one call, of which there are about a dozen.
        memory_limit_bytes: what may be allocated; a quarter of it is.
        timer: reads another clock than the device's.
    """
    on_cuda = device.type == "cuda"
    watch = Stopwatch(timer or _timer(device), budget_s)
    device_name = torch.cuda.get_device_properties(device).name if on_cuda else cpu().model
    sheet = find_datasheet(device_name)
    cache_bytes = _cache_bytes(device, sheet)
    room = None if memory_limit_bytes is None else memory_limit_bytes // 4
    ways = dict.fromkeys(way for dtype in dtypes for way in AS_ACCURATE[dtype])
    wanted = [way for way in ways if way != "tf32" or _has_tf32(device)]
    rates: dict[str, float] = {}
    missing: dict[str, str] = {}
    with observe(device) as seen, torch.no_grad():
        for name in wanted:
            with _tf32(name == "tf32"), _noted(missing, f"matmul_flops_per_s.{name}"):
                rates[name] = products(watch, device, "float32" if name == "tf32" else name)
        found: dict[str, Any] = {}
        parts: list[tuple[str, Callable[[], Rated]]] = [
            ("copy_bytes_per_s", lambda: bandwidths(watch, device, cache_bytes, room)),
            ("exp2_per_s", lambda: exponentials(watch, device)),
            ("launch_overhead_us", lambda: launches(watch, device)),
        ]
        for name, measure in parts:
            with _noted(missing, name):
                found |= measure()
    if on_cuda:
        shared = bool(seen.section().other_processes)
    else:
        shared = was_shared([], seen.activity, threads=torch.get_num_threads(), cores=usable_cores())
    speaks_against = {"shared": shared, "throttled": bool(seen.throttle_reasons)}
    return Ceilings(
        name=device_name,
        threads=None if on_cuda else torch.get_num_threads(),
        timer=watch.timer.name,
        matmul_flops_per_s=rates,
        **found,
        cache_bytes=cache_bytes,
        verdict=[name for name, holds in speaks_against.items() if holds] or ["valid"],
        datasheet=None if sheet is None else msgspec.to_builtins(sheet),
        unavailable=missing,
    )


def _timer(device: torch.device) -> Timer:
    return CudaTimer(CudaStream(device), "warm") if device.type == "cuda" else CpuTimer()


def _cache_bytes(device: torch.device, sheet: Datasheet | None) -> int | None:
    """Return the data sheet's where it is more: of several dies, a driver may report one's."""
    if device.type != "cuda":
        return last_level_cache_bytes()
    reported: int = torch.cuda.get_device_properties(device).L2_cache_size
    printed = 0 if sheet is None else sheet.l2_bytes or 0
    return max(reported, printed) or None


def _has_tf32(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@contextmanager
def _noted(missing: dict[str, str], name: str) -> Iterator[None]:
    """Note what this device, PyTorch or Triton can't do, and go on."""
    try:
        yield
    except Exception as error:  # of several compilers and libraries, each with exceptions of its own
        missing[name] = " ".join(f"{type(error).__name__}: {error}".split())[:200]
