"""A worker's task: it waits for a profiler that hangs, with a process of its own below it."""

import sys
from pathlib import Path

from attnbench.measure.dram.process import run_profiler

HANGS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
open(sys.argv[1], 'w').write(f'{os.getpid()} {child.pid}')
time.sleep(600)
"""


def hang(case, settings, context):
    folder = Path(context["scratch"])
    run_profiler([sys.executable, "-c", HANGS, str(folder / "pids")], 600, folder)
