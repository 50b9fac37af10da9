"""What a launch is to do and under which circumstances, and how `run.json` says it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import msgspec

from attnbench.contract.errors import UsageError
from attnbench.device import nvml
from attnbench.device.environment import environment, git_revision, versions, without_home
from attnbench.device.hardware import CudaDevice, require_device
from attnbench.device.limits import default_memory_limit_bytes
from attnbench.measure.record import Record
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings
from attnbench.plan.suite import Suite
from attnbench.plan.writing import suite_text
from attnbench.run.store import Run

# Part of a GPU's free memory that a case may plan with; the rest is for the CUDA context and fragments.
_PLANNED_GPU_PART = 0.9
WHY_UNKNOWN = {
    "command": "started from Python, by attnbench.run_suite",
    "versions.": "not installed",
    "revision.": "no commit of a git repository, or git is not installed",
    "environment.": "the system does not tell it",
    "environment.cpu_governor": "no frequency policy to be seen, as in most virtual machines",
    "environment.cpu.quota_cores": "no limit is set",
    "environment.cpu.memory_limit_bytes": "no limit is set",
}
"""By the beginning of a dotted name, the longest that fits."""


@dataclass(frozen=True)
class Plan:
    """The cases of a run, how to measure them, and where they come from."""

    suite: dict[str, str]
    """`name`, `description`, `source` (the file) and `text` (its content)."""
    cases: tuple[Case, ...]
    measure: MeasureSettings
    device_index: int | None

    @classmethod
    def of_suite(cls, suite: Suite) -> Self:
        """The plan of a suite."""
        said = {name: getattr(suite, name) for name in ("name", "description", "source", "text")}
        return cls(
            said | {"source": without_home(suite.source)}, suite.cases, suite.measure, suite.device_index
        )

    @classmethod
    def of_run(cls, run: Run) -> Self:
        """The plan that a run was started with.

        Raises:
            UsageError: its `run.json` lacks what is needed to continue.
        """
        try:
            cases = tuple(Case.from_dict(plain) for plain in run.planned.values())
            measure = msgspec.convert(run.meta["measure"], MeasureSettings)
            return cls(run.meta["suite"], cases, measure, run.meta.get("device_index"))
        except (KeyError, msgspec.ValidationError, UsageError) as error:
            raise UsageError(
                f"the run {str(run.path)!r} can't be continued: its run.json has no valid {error}"
            ) from None

    def to_meta(self) -> dict[str, Any]:
        """The same as `run.json` holds it."""
        return {
            "suite": self.suite,
            "measure": msgspec.to_builtins(self.measure),
            "device_index": self.device_index,
            "cases": {case.case_id: case.to_dict() for case in self.cases},
        }

    def same_work(self, other: Plan) -> bool:
        """Whether both come from the same text and mean the same cases, measured in the same way."""
        mine, theirs = self.to_meta(), other.to_meta()
        return self.suite["text"] == other.suite["text"] and all(
            mine[key] == theirs[key] for key in ("measure", "cases")
        )

    def gpu(self) -> CudaDevice | None:
        """The GPU that the cases need, or None if they need none.

        Raises:
            UsageError: they need one that is not there.
        """
        if all(case.device != "cuda" for case in self.cases):
            return None
        return require_device(f"cuda:{self.device_index or 0}")


def reproduce_command(meta: Mapping[str, Any], record: Record) -> str:
    """The command line that measures a record's case again, alone and as it was measured.

    The case is in it, so that it needs neither the suite's file nor the run; only the file of an
    implementation, if it has one, and its folder. It is one line for any POSIX shell.

    Args:
        meta: `run.json`.
        record: of one of its cases.
    """
    case = Case.from_dict(record.case)
    text = suite_text(meta["suite"]["name"], case, msgspec.convert(meta["measure"], MeasureSettings))
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    words = ["attnbench", "run", "/dev/stdin"]
    index = meta.get("device_index")
    if case.device == "cuda" and index is not None:
        words += ["--device", f"cuda:{index}"]
    if meta.get("isolate", "case") != "case":
        words += ["--isolate", meta["isolate"]]
    limit = meta.get("memory_limits", {}).get(case.device)
    if record.status == "oom" and limit is not None:
        words += ["--memory-limit", str(limit)]
    return f"printf %b {shlex.quote(escaped)} | {shlex.join(words)}"


def memory_limits(given_bytes: int | None, gpu: CudaDevice | None) -> dict[str, int | None]:
    """Bytes that a case may use on each kind of device: as given, or most of what is free."""
    limits = {"cpu": given_bytes or default_memory_limit_bytes()}
    if gpu is not None:
        state = None if given_bytes else nvml.gpu_state(gpu.uuid)
        free = (
            None
            if state is None or state.total_bytes is None
            else state.total_bytes - (state.used_bytes or 0)
        )
        limits["cuda"] = given_bytes or (None if free is None else int(free * _PLANNED_GPU_PART))
    return limits


def circumstances(command: Sequence[str] | None) -> dict[str, Any]:
    """When, with which command, versions and sources, and on what; why not, where that can't be told."""
    known = {
        "started_utc": utc_now(),
        "command": None if command is None else [without_home(word) for word in command],
        "versions": versions(),
        "environment": environment(),
        "revision": {
            "attnbench": git_revision(Path(__file__).parent),
            "working_directory": git_revision(Path.cwd()),
        },
    }
    return {**known, "unavailable": dict(_why_unknown(known))}


def _why_unknown(known: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every empty value for which there is a reason, by its dotted name."""
    for key, value in known.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _why_unknown(value, f"{name}.")
        elif value is None:
            part = max((part for part in WHY_UNKNOWN if name.startswith(part)), key=len, default=None)
            if part is not None:
                yield name, WHY_UNKNOWN[part]


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What differs in hardware and versions between two launches, in words."""
    facts = [
        {
            **{f"version of {name}": version for name, version in launch.get("versions", {}).items()},
            "processor": launch.get("environment", {}).get("cpu", {}).get("model"),
            "GPUs": [gpu.get("name") for gpu in launch.get("environment", {}).get("gpus", [])],
        }
        for launch in (before, now)
    ]
    return [
        f"{name}: {facts[0].get(name)} before, {value} now"
        for name, value in facts[1].items()
        if facts[0].get(name) != value
    ]


def utc_now() -> str:
    """The time as records write it: `2026-11-30T09:30:00Z`."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
