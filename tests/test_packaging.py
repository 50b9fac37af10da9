"""The wheel: one top-level name that holds every implementation, suite and template, and works by itself."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINKED = ("implementations", "suites", "reports")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("attnbench-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh environment that holds the wheel and borrows the libraries of this one."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False, symlinks=True)
    place = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    # A plain path line: .pth files over there, such as this checkout's editable install, are not followed.
    (place / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "-qq"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--disable-pip-version-check", str(wheel)], check=True)
    return folder / "bin"


def run(command: list[str | Path], folder: Path) -> str:
    """Run in an empty folder, away from the checkout; return what it printed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def data_files(folder: str) -> set[str]:
    """Return the committed kind of files under a linked folder as the wheel should name them."""
    files = (
        path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )
    names = {f"attnbench/{path.relative_to(ROOT).as_posix()}" for path in files}
    return {name for name in names if not name.startswith("attnbench/reports/measured/")}


def test_wheel_holds_everything_under_one_name(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"attnbench"}
    for folder in LINKED:
        expected = data_files(folder)
        assert expected
        assert expected <= names
    assert "attnbench/py.typed" in names
    data = (ROOT / "attnbench/model/data").iterdir()
    assert {f"attnbench/model/data/{path.name}" for path in data} <= names
    for licence in ("LICENSE", "attnbench/model/data/LICENSE-Python.txt"):
        assert any(name.endswith(f"licenses/{licence}") for name in names)


def test_links_are_committed_as_links() -> None:
    for folder in LINKED:
        assert (ROOT / "attnbench" / folder).readlink() == Path("..") / folder


def test_installed_package_is_the_wheel_and_lists(installed: Path, tmp_path: Path) -> None:
    where = run([installed / "python", "-c", "import attnbench; print(attnbench.__file__)"], tmp_path)
    assert where.startswith(str(installed.parent))
    listed = run([installed / "attnbench", "list", "implementations"], tmp_path)
    for name in ("naive", "sdpa", "triton-flash", "sliding-window", "linear"):
        assert name in listed
    assert "quick" in run([installed / "attnbench", "list", "suites"], tmp_path)


@pytest.mark.long
def test_installed_package_runs_the_quick_suite(installed: Path, tmp_path: Path) -> None:
    run([installed / "attnbench", "run", "quick", "--seqlen", "256", "-o", "run"], tmp_path)
    run([installed / "attnbench", "report", "run"], tmp_path)
    assert (tmp_path / "run" / "records.jsonl").read_text().count('"status":"ok"') >= 10
    assert list(tmp_path.rglob("*.html"))
