"""Implementations are found without any other edit.

A module, an entry point, a file anywhere, ``package.module:ATTRIBUTE``.
"""

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import attnbench
from attnbench.contract.discovery import find_implementations, get_implementation, get_implementations
from attnbench.contract.errors import UsageError
from attnbench.contract.implementation import refusals
from attnbench.contract.problem import Problem

KERNEL = '''"""Somebody's attention."""

import dataclasses

from attnbench.contract.discovery import get_implementation
from attnbench.contract.implementation import AttentionOutput


def attention(q, k, v, *, problem, params=None):
    return get_implementation("sdpa").attention(q, k, v, problem=problem)


IMPLEMENTATION = dataclasses.replace(get_implementation("sdpa"), name="mine", attention=attention)
'''
VARIANTS = (
    KERNEL.replace("IMPLEMENTATION = dataclasses", "ONE = dataclasses")
    + '\n\nIMPLEMENTATIONS = (ONE, dataclasses.replace(ONE, name="other"))\n'
)


def names_found(*paths: Path) -> list[str]:
    """Names that a fresh interpreter finds with these folders in front of its path."""
    code = (
        "from attnbench.contract.discovery import broken_implementations, find_implementations\n"
        "print(*find_implementations())\nprint(broken_implementations())"
    )
    here = Path(attnbench.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*paths, here]))}
    result = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    found, broken = result.stdout.splitlines()
    assert "'broken'" not in broken or "ZeroDivisionError" in broken
    return found.split() + (["(broken reported)"] if "'broken'" in broken else [])


def test_a_module_in_the_folder_is_found_and_a_broken_one_disables_itself_alone(tmp_path: Path) -> None:
    shutil.copytree(
        Path(attnbench.__file__).parent, tmp_path / "attnbench", ignore=shutil.ignore_patterns("__pycache__")
    )
    module = KERNEL.replace(
        "from attnbench.contract.discovery import get_implementation\n", "from . import sdpa\n"
    )
    module = module.replace('get_implementation("sdpa")', "sdpa.IMPLEMENTATIONS[0]")
    (tmp_path / "attnbench" / "implementations" / "mine.py").write_text(module)
    (tmp_path / "attnbench" / "implementations" / "broken.py").write_text("1 / 0\n")
    (tmp_path / "attnbench" / "implementations" / "leaving.py").write_text("raise SystemExit\n")
    found = names_found(tmp_path)
    assert {"mine", "naive", "sdpa", "(broken reported)"} <= set(found)


def test_an_entry_point_of_another_package_is_found(tmp_path: Path) -> None:
    kernel = KERNEL.replace(
        "from attnbench.contract.discovery import get_implementation\n",
        "from attnbench.implementations.sdpa import IMPLEMENTATIONS\n",
    )
    (tmp_path / "foreign.py").write_text(kernel.replace('get_implementation("sdpa")', "IMPLEMENTATIONS[0]"))
    info = tmp_path / "foreign-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[attnbench.implementations]\nmine = foreign:IMPLEMENTATION\n")
    assert "mine" in names_found(tmp_path)


def test_a_file_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_kernel.py").write_text(KERNEL)
    assert get_implementation("./my_kernel.py").name == "mine"
    Path("variants.py").write_text(VARIANTS)
    assert [item.name for item in get_implementations("./variants.py")] == ["mine", "other"]
    assert get_implementation("./variants.py#other").name == "other"
    with pytest.raises(UsageError, match=r"does not name one of its variants \(mine, other\)"):
        get_implementation("./variants.py")


def test_a_file_leaves_no_bytecode_behind_and_none_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "my_kernel.py"
    path.write_text(KERNEL)
    assert get_implementation(str(path)).name == "mine"
    assert [item.name for item in tmp_path.iterdir()] == ["my_kernel.py"]


def test_an_attribute_of_a_module() -> None:
    assert (
        get_implementation("attnbench.implementations.naive:IMPLEMENTATION")
        is find_implementations()["naive"]
    )
    forced = get_implementations("attnbench.implementations.sdpa:IMPLEMENTATIONS")
    assert [item.name for item in forced] == [
        "sdpa",
        "sdpa-math",
        "sdpa-flash",
        "sdpa-efficient",
        "sdpa-cudnn",
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sdap", "unknown implementation 'sdap' .did you mean 'sdpa'"),
        ("./nowhere.py", "no file './nowhere.py'"),
        ("attnbench.nowhere:X", "can't be imported: ModuleNotFoundError"),
        ("attnbench.implementations.naive:NOTHING", "can't be imported: AttributeError"),
        ("attnbench.implementations.naive:cost", "neither an Implementation nor a tuple"),
    ],
)
def test_mistakes_are_one_clear_line(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message) as caught:
        get_implementations(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nothing_of_that_name\n", "can't be imported: ModuleNotFoundError"),
        ("raise SystemExit(3)\n", "can't be imported: SystemExit: 3"),
        ("def broken(:\n", "can't be imported: SyntaxError"),
        ("X = 1\n", "defines neither IMPLEMENTATION nor IMPLEMENTATIONS"),
        ("IMPLEMENTATION = 3\nIMPLEMENTATIONS = ()\n", "defines both IMPLEMENTATION and IMPLEMENTATIONS"),
        ("IMPLEMENTATION = 3\n", "neither an Implementation nor a tuple"),
        ("IMPLEMENTATIONS = ()\n", "neither an Implementation nor a tuple"),
    ],
)
def test_a_file_that_holds_no_implementation(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        get_implementations(str(path))


def test_support_is_closed() -> None:
    """What is not listed is refused, whatever it is; an option nobody knows is refused with the nearest."""
    linear = find_implementations()["linear"]
    assert refusals(linear, Problem(seqlen_q=4, scale=2.0)) == ["linear does not support scale"]
    assert refusals(linear, Problem(seqlen_q=4, mask={"name": "sliding-window", "window_size": 2})) == [  # type: ignore[arg-type]
        "linear does not support mask:sliding-window"
    ]
    assert refusals(linear, Problem(seqlen_q=4, options={"chunk_sise": 64})) == [
        "linear has no option 'chunk_sise' (did you mean 'chunk_size'?)"
    ]
    assert refusals(linear, Problem(seqlen_q=4, options={"chunk_size": 64})) == []


def test_a_feature_that_does_not_exist_is_refused_with_the_nearest() -> None:
    naive = find_implementations()["naive"]
    with pytest.raises(UsageError, match=r"supports 'scael', which is no feature \(did you mean 'scale'\?\)"):
        dataclasses.replace(naive, supports=naive.supports | {"scael"})
    assert dataclasses.replace(naive, supports=naive.supports | {"mask:mine"}).supports > naive.supports
