"""What importing costs, which modules stay free of torch, and that every public name is what it says."""

import importlib
import os
import pkgutil
import subprocess
import sys

import pytest

import attnbench

HEAVY = ("torch", "triton", "pandas", "matplotlib", "sympy")


def loaded_by(statement: str) -> set[str]:
    """Return which heavy libraries a fresh process holds after `statement`."""
    code = f"{statement}\nimport sys\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_package_loads_nothing_heavy() -> None:
    assert loaded_by("import attnbench; dir(attnbench)") == set()


def test_help_loads_nothing_heavy() -> None:
    help_in_process = """
import runpy, sys
sys.argv = ["attnbench", "--help"]
try:
    runpy.run_module("attnbench", run_name="__main__")
except SystemExit as stop:
    assert not stop.code
"""
    assert loaded_by(help_in_process) == set()


def test_help_is_quick() -> None:
    """In CPU time, which is the wall time of a machine that does nothing else."""
    command = [sys.executable, "-m", "attnbench", "--help"]

    def cpu_seconds() -> float:
        before = os.times()
        subprocess.run(command, capture_output=True, check=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    assert min(cpu_seconds() for _ in range(5)) < 0.4


@pytest.mark.parametrize(
    "module",
    [
        "attnbench.contract.problem",
        "attnbench.contract.masks",
        "attnbench.plan",
        "attnbench.measure.record",
        "attnbench.run.store",
        "attnbench.analysis",
        "attnbench.render",
    ],
)
def test_torch_stays_out(module: str) -> None:
    """Records can be read, and suites planned, where torch is slow to load or missing."""
    importing_all = f"""
import importlib, pkgutil
module = importlib.import_module("{module}")
for item in pkgutil.iter_modules(getattr(module, "__path__", []), "{module}."):
    importlib.import_module(item.name)
"""
    assert loaded_by(importing_all) & {"torch", "triton"} == set()


def test_public_names_survive_every_submodule() -> None:
    """A submodule of the same name would replace the function on its first import."""
    for item in pkgutil.walk_packages(attnbench.__path__, "attnbench."):
        if not item.name.endswith("__main__"):
            importlib.import_module(item.name)
    for name in attnbench.__all__:
        value = getattr(attnbench, name)
        assert callable(value) or name == "__version__"
        assert value is getattr(importlib.import_module(attnbench._HOMES.get(name, "attnbench")), name)


def test_unknown_public_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'atend'"):
        attnbench.atend  # type: ignore[attr-defined]  # noqa: B018


def test_implementations_have_one_name() -> None:
    """`import implementations` from a checkout would make a second copy of every module."""
    done = subprocess.run([sys.executable, "-c", "import implementations"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "import attnbench.implementations, not implementations" in done.stderr
