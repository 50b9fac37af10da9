"""Each of attnbench's ways to measure on a GPU beside another way to the same number.

ncu against the L2 model, GPM against ncu, CUPTI against events, the predicted peak against the allocator: for
five implementations at three lengths. Three runs, each with one timer and one counter of DRAM bytes forced;
the table and its data go to `reports/measured/<device>/`.

    make gpu-pairs
    python -m benchmarks.gpu_pairs --device cuda:1 --record-samples
    python -m benchmarks.gpu_pairs --runs runs/gpu-pairs-20260101T000000Z     # goes on with runs begun before
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from attnbench.contract.errors import UsageError
from attnbench.device.hardware import CudaDevice, require_device
from attnbench.measure.record import Record
from attnbench.plan.case import Case
from attnbench.plan.devices import device_index
from attnbench.plan.settings import MeasureSettings
from attnbench.plan.suite import Suite
from attnbench.plan.writing import suite_text
from attnbench.run.launch import utc_now
from attnbench.run.rounds import Observer, RunInterruptedError
from attnbench.run.runner import run_suite
from attnbench.run.store import META_FILE, Run, StorageError
from benchmarks.cache_model import predicted
from benchmarks.pair_table import Figure, Runs, document, page, pairs_of

ROOT = Path(__file__).parents[1]
IMPLEMENTATIONS = ("naive", "sdpa", "triton-flash", "sliding-window", "linear")
SEQLENS = (2048, 4096, 8192)
TOKENS = 65536
"""Of a batch: q, k and v hold 192 MiB then, more than twice an L2 cache of any GPU with GPM counters."""
MODEL_TIMEOUT_S = 600.0
CAUSAL = {"name": "causal"}
WINDOW = {"name": "sliding-window", "window_size": 256, "causal": True}

TRACED = MeasureSettings(metrics=("traffic", "dram"), case_timeout_s=300, launches=1, dram_backend="ncu")
COUNTED = MeasureSettings(
    metrics=("latency", "memory", "traffic", "dram"),
    case_timeout_s=300,
    timer="cupti-activity",
    dram_backend="ncu",
)
ESTIMATED = MeasureSettings(
    metrics=("latency", "traffic", "dram"),
    case_timeout_s=300,
    timer="cuda-events",
    dram_backend="nvml-gpm",
)


class Progress(Observer):
    """Says on stderr what was measured."""

    def note(self, text: str) -> None:
        """Print it."""
        print(text, file=sys.stderr, flush=True)

    def case_finished(self, record: Record) -> None:
        """Print how it ended."""
        print(f"  {record.case_id}: {record.reason or record.status}", file=sys.stderr, flush=True)


def cases(seqlens: Sequence[int], tokens: int | None) -> tuple[Case, ...]:
    """Return the five implementations at each length: in batches of so many tokens, or one head of one
    sequence, whose kernels can be interpreted whole.
    """
    return tuple(
        Case(
            implementation=name,
            seqlen_q=seqlen,
            mask=dict(WINDOW if name == "sliding-window" else CAUSAL),
            batch=1 if tokens is None else max(1, tokens // seqlen),
            num_heads=1 if tokens is None else 8,
            dtype="float16",
            device="cuda",
        )
        for seqlen in seqlens
        for name in IMPLEMENTATIONS
    )


def suites(index: int | None, seqlens: Sequence[int] = SEQLENS, tokens: int = TOKENS) -> dict[str, Suite]:
    """Return what is run, by the names of `Runs`."""
    small, large = cases(seqlens, None), cases(seqlens, tokens)
    plans = {"traced": (small, TRACED), "counted": (large, COUNTED), "estimated": (large, ESTIMATED)}
    return {
        name: Suite(
            name=f"gpu-pairs-{name}",
            description="One way to measure, to be held against another",
            cases=of_run,
            measure=measure,
            source="benchmarks/gpu_pairs.py",
            text="\n".join(suite_text(f"gpu-pairs-{name}", case, measure) for case in of_run),
            device_index=index,
        )
        for name, (of_run, measure) in plans.items()
    }


def measured(plans: Mapping[str, Suite], folder: Path) -> Runs:
    """Run each suite in its own folder, or go on with the run that is there."""
    found: dict[str, Run] = {}
    for name, suite in plans.items():
        path = folder / name
        print(f"{name}: {len(suite.cases)} cases", file=sys.stderr, flush=True)
        begun = (path / META_FILE).is_file()
        found[name] = run_suite(
            suite,
            output=None if begun else path,
            resume=path if begun else None,
            observer=Progress(),
            command=["make", "gpu-pairs"],
        )
    return Runs(**found)


def modelled(run: Run, target: str | None) -> dict[str, Figure]:
    """Return what the L2 model of a target predicts for each case of a run."""
    found = {}
    for case_id, plain in run.planned.items():
        print(f"L2 model: {case_id}", file=sys.stderr, flush=True)
        found[case_id] = predicted(Case.from_dict(plain), target or "an unknown GPU", MODEL_TIMEOUT_S)
    return found


def target_of(gpu: CudaDevice) -> str | None:
    """Return the name of a GPU's architecture: `sm_90`."""
    capability = gpu.facts.get("compute_capability")
    return f"sm_{capability.replace('.', '')}" if capability else None


def slug(device: str) -> str:
    """Return the name of a device as that of a folder: `nvidia-h200`."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def write(device: str, runs: Runs, models: Mapping[str, Figure], folder: Path) -> int:
    """Write `pairs.md` and `pairs.json`; returns how many pairs have a ratio."""
    pairs = pairs_of(runs, models)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pairs.md").write_text(page(device, runs, pairs), encoding="utf-8")
    text = json.dumps(document(device, runs, pairs), indent=1, ensure_ascii=False)
    (folder / "pairs.json").write_text(text + "\n", encoding="utf-8")
    return sum(pair.ratio is not None for pair in pairs)


def usable_gpu(device: str) -> CudaDevice:
    """Return the GPU.

    Raises:
        UsageError: it is not there, or not for this PyTorch.
    """
    gpu = require_device(device)
    if gpu is None:
        raise UsageError("pairs are measured on a CUDA device: --device cuda, or cuda:i")
    import torch

    if not torch.cuda.is_available():
        raise UsageError(f"torch {torch.__version__} can't use the {gpu.name} that is here")
    return gpu


def main(arguments: list[str] | None = None) -> int:
    """Run, predict, write; 0: there is a ratio, 1: there is none, 2: there is no CUDA device."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="cuda or cuda:i (default: %(default)s)")
    parser.add_argument("--runs", type=Path, help="where the runs are kept (default: runs/gpu-pairs-<utc>)")
    parser.add_argument("--output", type=Path, default=ROOT / "reports" / "measured", help="of all devices")
    parser.add_argument("--record-samples", action="store_true", help="keep what profilers wrote, for tests")
    given = parser.parse_args(arguments)
    try:
        gpu = usable_gpu(given.device)
        stamp = re.sub(r"[-:]", "", utc_now())
        folder = given.runs or ROOT / "runs" / f"gpu-pairs-{stamp}"
        runs = measured(suites(device_index(given.device)), folder)
        models = modelled(runs.traced, target_of(gpu))
        place = given.output / slug(gpu.name)
        compared = write(gpu.name, runs, models, place)
        print(place / "pairs.md")
        if given.record_samples:
            # After the runs: this process holds the GPU from here on, and would have been a stranger to them.
            from benchmarks.record_samples import SAMPLES, record_samples

            print(record_samples(SAMPLES / "recorded" / slug(gpu.name), gpu))
    except (UsageError, StorageError) as error:
        print(f"gpu-pairs: {error}", file=sys.stderr)
        return 2
    except RunInterruptedError:
        print(f"interrupted; go on with --runs {folder}", file=sys.stderr)
        return 130
    return 0 if compared else 1


if __name__ == "__main__":
    sys.exit(main())
