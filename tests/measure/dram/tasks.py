"""A worker's task: it waits for a profiler that hangs, with a process of its own below it."""

from pathlib import Path

from attnbench.measure.dram.process import run_profiler

HANGS = "sleep 600 & echo $$ $! > {pids}; sleep 600"
"""For a shell; the file takes the ids of both processes."""


def hang(case, settings, context):
    folder = Path(context["scratch"])
    run_profiler(["sh", "-c", HANGS.format(pids=folder / "pids")], 600, folder)
