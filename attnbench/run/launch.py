"""What a launch is to do and under which circumstances, and how `run.json` says it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
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
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings
from attnbench.plan.suite import Suite
from attnbench.run.store import Run

# Part of a GPU's free memory that a case may plan with; the rest is for the CUDA context and fragments.
_PLANNED_GPU_PART = 0.9


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


def reproduce_command(source: str, case: Case) -> str:
    """The command line that measures a case again, with the others of its implementation and length.

    Args:
        source: the suite's file as `Suite.source` names it; one of the package's is called by its name.
        case: the case.
    """
    suite = source if Path(source).is_file() else source.removesuffix(".toml")
    words = ["attnbench", "run", suite, "--implementation", case.implementation]
    if case.seqlen_q == (1 if case.mode == "decode" else case.seqlen_k):
        words += ["--seqlen", str(case.seqlen_k)]
    return shlex.join([*words, "--device", case.device])


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
    """When, with which command, versions and sources, and on what."""
    return {
        "started_utc": utc_now(),
        "command": None if command is None else [without_home(word) for word in command],
        "versions": versions(),
        "environment": environment(),
        "revision": {
            "attnbench": git_revision(Path(__file__).parent),
            "working_directory": git_revision(Path.cwd()),
        },
    }


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
