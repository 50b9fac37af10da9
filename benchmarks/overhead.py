"""What the harness itself costs: showing 10,000 cases, and appending 10,000 records to a run.

In: nothing. Out: a table of seconds, by the wall clock and of this process, which neighbours disturb less.

    python benchmarks/overhead.py
"""

import contextlib
import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from attnbench.cli import main as command_line
from attnbench.measure.forecast import forecast
from attnbench.measure.record import Latency, Record
from attnbench.plan.suite import load_suite
from attnbench.run.store import RunWriter, load_run

LENGTHS = [128 * step for step in range(1, 158)]
SUITE = f"""
name = "ten-thousand"
[defaults]
num_heads = 2
head_dim = 16
device = "cpu"
[[sweep]]
mask = ["causal", "full"]
seqlen = {LENGTHS}
dtype = ["float32", "float16"]
implementation = ["naive", "sdpa", "linear", "triton-flash"]
batch = [1, 2, 3, 4]
"""
RECORDS = 10_000


def timed(what: str, action: Callable[[], object]) -> None:
    """Print how long an action takes."""
    wall, own = time.perf_counter(), time.process_time()
    action()
    print(f"{what:<44}{time.perf_counter() - wall:8.2f} s {time.process_time() - own:8.2f} s of this process")


def show(file: Path) -> None:
    """Run `attnbench show`, for nobody to read."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        command_line(["show", str(file)])


def append(folder: Path) -> None:
    """Write records of a usual size, each to the disk."""
    with RunWriter.create(folder, {"cases": {}}) as writer:
        for number in range(RECORDS):
            latency = Latency(median_ms=1.0, samples_ms=[1.0 + sample / 7 for sample in range(30)])
            writer.append(
                Record(case_id=str(number), case={"seqlen_k": number}, status="ok", latency=latency)
            )


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        file, run = Path(name, "suite.toml"), Path(name, "run")
        file.write_text(SUITE, encoding="utf-8")
        first = load_suite(file).cases[:4]
        timed("first forecasts, with what they import", lambda: list(map(forecast, first)))
        timed("10,048 cases from a suite", lambda: load_suite(file))
        cases = load_suite(file).cases
        timed("their forecasts", lambda: list(map(forecast, cases)))
        timed("the two and a table: `attnbench show`", lambda: show(file))
        timed("10,000 records, each flushed to the disk", lambda: append(run))
        timed("10,000 records read", lambda: load_run(run))


if __name__ == "__main__":
    main()
