"""How well latencies repeat: one suite run several times, its medians and intervals held against each other.

Of each case: the median over the runs (the grand median), how far the runs' medians lie apart, and in how
many runs the interval that a reader is shown holds the grand median. Of each run: which part of its wall
time, after imports, was spent on what is timed, counted or checked.

    make bench-repeatability
    python benchmarks/repeatability.py --suite quick --runs 5 --output runs/repeatability
    python benchmarks/repeatability.py runs/repeatability/*        # of runs that are there already
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from attnbench.analysis.rows import CaseRow, rows_of
from attnbench.render.numbers import format_ms
from attnbench.run.store import Run, load_run

GOAL = 0.9
WORK_GOAL = 0.7


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """One case over the runs that have a latency of it."""

    case_id: str
    runs: int
    median_ms: float
    spread: float
    """The largest of the runs' medians over the smallest, less 1."""
    half_width: float
    """Of the interval that is shown, over its median: the median over the runs."""
    medians_ms: tuple[float, ...]
    """Of the runs, in their order."""
    covered: int
    """Runs whose interval holds the median over the runs."""
    inner_covered: int
    """Runs whose interval of all samples, as if of one launch, does."""


def repeated(runs: Sequence[Run]) -> list[Repeated]:
    """Return the cases that at least two runs have a latency of, in the order of the first."""
    found: dict[str, list[CaseRow]] = {}
    for row in rows_of({str(number): run for number, run in enumerate(runs)}):
        if row.is_ok and row.latency_ms is not None and row.latency_low_ms is not None:
            found.setdefault(row.case_id, []).append(row)
    inner = {
        (str(number), record.case_id): (record.latency.inner_ci95_low_ms, record.latency.inner_ci95_high_ms)
        for number, run in enumerate(runs)
        for record in run.records
        if record.latency is not None
    }
    return [_case(case_id, rows, inner) for case_id, rows in found.items() if len(rows) > 1]


Inner = Mapping[tuple[str, str], tuple[float | None, float | None]]


def _case(case_id: str, rows: Sequence[CaseRow], inner: Inner) -> Repeated:
    medians = [row.latency_ms or 0.0 for row in rows]
    grand = statistics.median(medians)
    widths = [(row.latency_high_ms or 0.0) - (row.latency_low_ms or 0.0) for row in rows]
    return Repeated(
        case_id=case_id,
        runs=len(rows),
        median_ms=grand,
        spread=max(medians) / min(medians) - 1,
        half_width=statistics.median(
            width / 2 / median for width, median in zip(widths, medians, strict=True)
        ),
        medians_ms=tuple(medians),
        covered=sum(_holds((row.latency_low_ms, row.latency_high_ms), grand) for row in rows),
        inner_covered=sum(_holds(inner[row.run, case_id], grand) for row in rows),
    )


def _holds(interval: tuple[float | None, float | None], value: float) -> bool:
    low, high = interval
    return low is not None and high is not None and low <= value <= high


def run_factors(cases: Sequence[Repeated], runs: int) -> list[float]:
    """Return how many times the grand medians each run took, in the middle of the cases that all runs have.

    What all cases of a run share is the machine's doing; no interval from within one run can know of it.
    """
    common = [one for one in cases if one.runs == runs]
    if not common:
        return []
    return [
        statistics.median(one.medians_ms[number] / one.median_ms for one in common) for number in range(runs)
    ]


def work_fraction(run: Run) -> float | None:
    """Return the part of a run's wall time in which something was timed, counted or checked."""
    wall_s, work_s = run.meta.get("wall_s"), run.meta.get("work_s")
    return work_s / wall_s if wall_s and work_s else None


def table(cases: Sequence[Repeated], runs: Sequence[Run]) -> str:
    """Return everything as text, the worst spread first."""
    wide = max((len(one.case_id) for one in cases), default=0)
    lines = [f"{'case':{wide}}  {'median':>9}  {'spread':>7}  {'shown':>8}  covered (inner)"]
    lines += [
        f"{one.case_id:{wide}}  {format_ms(one.median_ms):>9}  {one.spread:>7.1%}  ±{one.half_width:>6.1%}  "
        f"{one.covered}/{one.runs} ({one.inner_covered}/{one.runs})"
        for one in sorted(cases, key=lambda one: -one.spread)
    ]
    total = sum(one.runs for one in cases)
    if total:
        outer, inner = (sum(getattr(one, name) for one in cases) for name in ("covered", "inner_covered"))
        spreads = sorted(one.spread for one in cases)
        lines += [
            "",
            f"{len(cases)} cases in {len(runs)} runs; spread of the medians: "
            f"{statistics.median(spreads):.1%} in the middle, {spreads[-1]:.1%} at most",
            f"the interval that is shown holds the grand median in {outer} of {total}: {outer / total:.1%} "
            f"(goal: {GOAL:.0%}); the one inside launches in {inner}: {inner / total:.1%}",
            "a case in the middle takes, in each run, as many times its grand median: "
            + ", ".join(f"{factor:.2f}" for factor in run_factors(cases, len(runs))),
        ]
    fractions = [fraction for run in runs if (fraction := work_fraction(run)) is not None]
    if fractions:
        walls = ", ".join(f"{run.meta['wall_s']:.0f}" for run in runs if "wall_s" in run.meta)
        lines.append(
            f"timed, counted or checked: {min(fractions):.0%} to {max(fractions):.0%} of {walls} s "
            f"after imports (goal: {WORK_GOAL:.0%})"
        )
    return "\n".join(lines)


def main() -> int:
    """Run, compare, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path, help="runs that are there already")
    parser.add_argument("--suite", default="quick")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("runs/repeatability"))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    folders = given.folders or [given.output / str(number) for number in range(1, given.runs + 1)]
    for folder in folders if not given.folders else ():
        command = [sys.executable, "-m", "attnbench", "run", given.suite, "-o", str(folder)]
        print(" ".join(command[2:]), file=sys.stderr, flush=True)
        code = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
        if code > 1:  # 1: a case failed, which the others don't mind
            return code
    runs = [load_run(folder) for folder in folders]
    cases = repeated(runs)
    print(table(cases, runs))
    if given.json is not None:
        report = {
            "cases": [asdict(one) for one in cases],
            "work_fractions": [work_fraction(run) for run in runs],
        }
        given.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if cases else 2


if __name__ == "__main__":
    sys.exit(main())
