"""The frame of the command line: what it loads, how it says what is wrong, which code it exits with."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from attnbench import __version__
from attnbench.cli import main


def exit_code(*arguments: str) -> int:
    """Run a command in this process."""
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out == f"attnbench {__version__}\n"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--help") == 0
    out = capsys.readouterr().out
    for command in ("run", "report", "list", "show", "doctor"):
        assert f"\n  {command} " in out


def test_help_loads_neither_arrays_nor_rich() -> None:
    code = """
import sys
from attnbench.cli import main
try:
    main(["--help"])
except SystemExit as stopped:
    assert stopped.code == 0
print(*sorted({"numpy", "rich", "msgspec", "jinja2", "torch"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lst"], "no such command 'lst'. Did you mean 'list'?"),
        (["show", "quick", "--implementaton", "x"], "no such option: --implementaton"),
        (["show"], "missing argument '"),
        (["list", "masks", "more"], "got unexpected extra argument(s) (more)"),
        (
            ["list", "mask"],
            "there is no 'mask' to list (did you mean 'masks'?); there are implementations, suites,",
        ),
        (
            ["show", "quik"],
            "unknown suite 'quik' (did you mean 'quick'?); there are agreement, ",
        ),
        (["show", "quick", "--seqlen", "4q"], "'4q' is not a length; expected a whole number"),
        (["show", "quick", "--device", "cpux"], "unknown device 'cpux' (did you mean 'cpu'?)"),
        (["show", "quick", "--device", "cuda:99"], "no device 'cuda:99' on this machine; there is"),
        (["show", "./gone.toml"], "can't read the suite './gone.toml': No such file or directory"),
        (
            ["show", "quick", "--implementation", "niave"],
            "unknown implementation 'niave' (did you mean 'naive'?)",
        ),
        (
            ["show", "quick", "--implementation", "./gone.py"],
            "no file './gone.py' to take an implementation from",
        ),
    ],
)
def test_usage_errors_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"attnbench: {message}")
    assert err.count("\n") == 1


def test_nearest_option(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code("show", "quick", "--implementaton", "x")
    assert "--implementation" in capsys.readouterr().err


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code() == 2
    assert "Commands:" in capsys.readouterr().err


def test_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object, **options: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("attnbench.plan.suite.load_suite", interrupt)
    assert exit_code("show", "quick") == 130


def test_a_bug_is_no_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> NoReturn:
        raise RuntimeError("a bug")

    monkeypatch.setattr("attnbench.plan.suite.load_suite", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["show", "quick"])


def test_a_terminal_without_the_characters() -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "attnbench", "list", "metrics"],
        capture_output=True,
        env=os.environ | ascii_only,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()


@pytest.mark.parametrize("arguments", [["list"], ["list", "presets"], ["show", "quick", "--seqlen", "64"]])
def test_output_that_finds_no_room_is_one_line(arguments):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "attnbench", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "attnbench: the output can't be written: No space left on device\n"
