"""A run's temporary folder is its own, and what a killed run left is removed by the next."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from attnbench.run.scratch import remove_forgotten, scratch_folder

STAY = """
from attnbench.run.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "truth").write_text("float64")
    print(folder, flush=True)
    input()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of our own, for us and our children."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_it_is_gone_behind_the_run(temporary):
    with scratch_folder() as folder:
        assert folder.parent == temporary
        remove_forgotten()
        assert folder.is_dir()
    assert not list(temporary.iterdir())


def test_the_next_run_removes_what_a_killed_one_left(temporary):
    (temporary / "attnbench-of-somebody-else").mkdir()  # without a lock: not a run's
    process = subprocess.Popen(
        [sys.executable, "-c", STAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    left = Path(process.stdout.readline().strip())
    with scratch_folder():
        assert (left / "truth").exists()  # its run goes on
    process.kill()
    process.communicate()
    assert (left / "truth").exists()
    with scratch_folder():
        assert not left.exists()
    assert [path.name for path in temporary.iterdir()] == ["attnbench-of-somebody-else"]
