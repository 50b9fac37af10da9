"""What profilers write, kept as they wrote it, for the tests of what reads it.

In: a GPU. Out: a folder of files, and `recorded.json`: on which device, by which version of which tool, what
was read from each file, and what the call really moves. Each backend counts the call of known traffic that
`attnbench doctor` tries; where one fails, its last words are kept. Home folder and host name are replaced.
"""

import json
import platform
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from attnbench.device.environment import versions, without_home
from attnbench.device.hardware import CudaDevice
from attnbench.device.requirements import version_of
from attnbench.measure.dram import cupti_pm, ncu, nvml_gpm, rocprofv3
from attnbench.measure.dram.backend import Backend, BackendError, DramBytes
from attnbench.measure.dram.choose import BACKENDS, LIMIT_S
from attnbench.measure.dram.job import Job, known_job
from attnbench.measure.dram.process import run_profiler
from attnbench.run.launch import utc_now

SAMPLES = Path(__file__).parents[1] / "tests" / "measure" / "dram" / "samples"
INDEX = "recorded.json"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What came of one backend; with a reason there is nothing to read in its files."""

    backend: str
    tool: str | None
    files: list[str] = field(default_factory=list)
    found: dict[str, int] | None = None
    reason: str | None = None


def record_samples(folder: Path, gpu: CudaDevice, job: Job | None = None) -> Path:
    """Count the known call with every backend and keep what each tool wrote; returns the index.

    Args:
        folder: of this device; what an earlier recording left there is replaced, file by file.
        gpu: where to count.
        job: another call, whose tensors are read and written to halves.
    """
    job = job or known_job(device_of(gpu))
    folder.mkdir(parents=True, exist_ok=True)
    index = {
        "recorded": True,
        "recorded_utc": utc_now(),
        "device": gpu.name,
        "facts": gpu.facts,
        "versions": versions(),
        "call": {"read_bytes": job.resident_bytes // 2, "write_bytes": job.resident_bytes // 2},
        "samples": [asdict(_sample(backend, job, folder, gpu)) for backend in BACKENDS],
    }
    path = folder / INDEX
    path.write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    return path


def device_of(gpu: CudaDevice) -> str:
    """Return PyTorch's name of a GPU: CUDA may number several of them in another order than NVML."""
    uuids = [f"GPU-{torch.cuda.get_device_properties(i).uuid}" for i in range(torch.cuda.device_count())]
    return f"cuda:{uuids.index(gpu.uuid)}"


def replayed(folder: Path, sample: Mapping[str, Any]) -> DramBytes:
    """Return what the reader of a backend makes of the file that it has in a folder now."""
    (name,) = sample["files"]
    return READERS[sample["backend"]]((folder / name).read_text(encoding="utf-8"))


def _sample(backend: Backend, job: Job, folder: Path, gpu: CudaDevice) -> Sample:
    tool = tool_version(backend.NAME, gpu)
    finding = backend.probe()
    if not finding.available:
        return Sample(backend=backend.NAME, tool=tool, reason=finding.detail)
    said: dict[str, str] = {}
    found: DramBytes | None = None
    reason = None
    try:
        found = backend.measure(replace(job, keep=said.__setitem__), LIMIT_S)
    except BackendError as error:
        reason = str(error)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    files = []
    for name, text in said.items():
        kept = Path(name) if found is not None else Path(f"{backend.NAME}-failed{Path(name).suffix}")
        (folder / kept).write_text(nameless(text), encoding="utf-8")
        files.append(str(kept))
    return Sample(
        backend=backend.NAME,
        tool=tool,
        files=files,
        found=None if found is None else found.to_dict(),
        reason=None if reason is None else nameless(reason),
    )


def nameless(text: str) -> str:
    """Return a tool's words without the home folder and the machine's name."""
    host = platform.node()
    return without_home(text.replace(host, "host") if host else text)


def tool_version(backend: str, gpu: CudaDevice) -> str | None:
    """Return the version of what a backend asks, in its own words; None where it does not say."""
    if backend == cupti_pm.NAME:
        return version_of("cupti-python")
    if backend == nvml_gpm.NAME:
        return gpu.facts.get("driver")
    try:
        with tempfile.TemporaryDirectory(prefix="attnbench-") as place:
            lines = run_profiler([backend, "--version"], LIMIT_S, Path(place)).splitlines()
    except BackendError:
        return None
    return next((line.strip() for line in lines if "version" in line.lower()), None)


def _windows(text: str) -> DramBytes:
    return cupti_pm.Windows(**msgspec.json.decode(text)["windows"]).net()


def _reading(text: str) -> DramBytes:
    return DramBytes(total=nvml_gpm.Reading(**msgspec.json.decode(text)).total_bytes())


READERS: Mapping[str, Callable[[str], DramBytes]] = {
    ncu.NAME: ncu.parse,
    cupti_pm.NAME: _windows,
    rocprofv3.NAME: rocprofv3.parse,
    nvml_gpm.NAME: _reading,
}
