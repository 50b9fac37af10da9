"""`attnbench run` as a person meets it: from beginning to end, resumed, dry, with wrong arguments."""

import json
from pathlib import Path

import pytest

from attnbench.cli import main
from attnbench.cli.run import parse_bytes
from attnbench.contract.errors import UsageError
from attnbench.run.store import load_run
from tests.cli.drill import KERNEL, attnbench, by_name, write_suite

MISSPELT = """name = "option"
[[sweep]]
implementation = { name = "linear", chunk_siz = 3 }
seqlen = 8
"""


def usage_error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on stderr of a command that exits with 2."""
    with pytest.raises(SystemExit) as stopped:
        main(["run", *arguments])
    assert stopped.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    [line] = said.err.splitlines()
    return line


def test_a_run_from_beginning_to_end(folder):
    write_suite()
    done = attnbench("run", "drill.toml", "-o", "run")
    assert done.returncode == 0, done.stderr
    assert "2 cases to measure; run run" in done.stderr
    assert "[2/2]" in done.stderr
    assert "launch 2 of 2: 2 cases" in done.stderr
    assert "attnbench report run" in done.stdout
    run = load_run("run")
    assert [record.status for record in run.records] == ["ok", "ok"]
    assert all(record.latency.launches == 2 and record.latency.ci95_low_ms for record in run.records)
    assert run.meta["status"] == "complete"
    assert 0 < run.meta["work_s"] < run.meta["wall_s"]
    assert run.meta["suite"]["text"] == Path("drill.toml").read_text(encoding="utf-8")
    assert run.meta["command"] == ["attnbench", "run", "drill.toml", "-o", "run"]
    assert run.meta["versions"]["torch"]
    assert run.meta["environment"]["cpu"]["logical_cores"] >= 1
    assert run.problems == []

    kept = attnbench("run", "--resume", "run", "--json")
    assert kept.returncode == 0, kept.stderr
    assert "0 cases to measure, 2 have a result already" in kept.stderr
    assert [record["status"] for record in json.loads(kept.stdout)] == ["ok", "ok"]


@pytest.mark.long
def test_a_kernel_that_was_edited_is_measured_again(folder):
    """Resuming keeps the results of a source that is the same, and no others."""
    write_suite("mine")
    started = attnbench("run", "drill.toml", "-o", "run")
    assert started.returncode == 0, started.stderr
    Path("mine.py").write_text(KERNEL.replace('deed == "wrong"', 'deed == "mine"'), encoding="utf-8")
    resumed = attnbench("run", "--resume", "run")
    assert resumed.returncode == 1, resumed.stderr
    assert "1 result is of another source of ./mine.py: measured again" in resumed.stderr
    assert "2 have a result already" in resumed.stderr
    records = by_name(load_run("run"))
    assert {name: record.status for name, record in records.items()} == {
        "naive 8": "ok",
        "./mine.py 8": "incorrect",
        "naive 16": "ok",
    }
    unchanged = attnbench("run", "--resume", "run")
    assert "0 cases to measure, 3 have a result already" in unchanged.stderr
    assert "measured again" not in unchanged.stderr
    Path("mine.py").write_text("import os; os._exit(3)", encoding="utf-8")
    broken = attnbench("run", "--resume", "run")
    assert "2 have a result already" in broken.stderr
    assert by_name(load_run("run"))["./mine.py 8"].status == "crashed"


@pytest.mark.long
def test_the_readme_s_command_with_somebody_s_file(folder):
    """`run quick` with a file of another folder: every case, at both levels, is `ok`."""
    Path("my_kernel.py").write_text(KERNEL, encoding="utf-8")
    done = attnbench("run", "quick", "--implementation", "./my_kernel.py", "--seqlen", "64")
    assert done.returncode == 0, done.stderr
    (path,) = Path("runs").iterdir()
    records = load_run(path).records
    assert {record.status for record in records} == {"ok"}
    assert {record.case["implementation"] for record in records} == {"./my_kernel.py"}
    assert {record.case["level"] for record in records} == {"attention", "model"}
    assert all(record.latency is not None and record.agreement is not None for record in records)


def in_this_process(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code, and what is said on stderr."""
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    return int(stopped.value.code or 0), capsys.readouterr().err


def test_empty_cases_are_measured_and_reported(folder, capsys):
    """No tokens: `ok`, no latency, and a report without a word on stderr."""
    write_suite(more_lengths=(0,))
    code, said = in_this_process(capsys, "run", "drill.toml", "-o", "run", "--isolate", "none")
    assert code == 0, said
    empty = by_name(load_run("run"))["naive 0"]
    assert (empty.status, empty.latency) == ("ok", None)
    assert empty.unavailable["latency"] == "empty: there is nothing to compute"
    assert in_this_process(capsys, "report", "run") == (0, "")
    assert "length 0: in the table" in Path("run/report.html").read_text(encoding="utf-8")


def test_a_dry_run_names_the_cases_and_writes_nothing(folder, capsys):
    write_suite()
    with pytest.raises(SystemExit) as stopped:
        main(["run", "drill.toml", "--dry-run", "--seqlen", "1k", "-o", "run"])
    assert stopped.value.code == 0
    said = capsys.readouterr()
    assert "n1024" in said.out
    assert said.err == "1 case in at most 2 launches; nothing was run\n"
    assert not (folder / "run").exists()


def test_usage_errors_are_one_line_and_come_before_anything_runs(folder, capsys):
    write_suite()
    Path("file").touch()
    Path("nothing").mkdir()
    Path("leave.py").write_text("import os; os._exit(0)", encoding="utf-8")
    Path("exit.py").write_text("raise SystemExit(0)", encoding="utf-8")
    Path("option.toml").write_text(MISSPELT, encoding="utf-8")
    before = sorted(path.name for path in folder.iterdir())
    expected = {
        ("drill.toml", "--isolate", "cases"): "unknown isolation 'cases' (did you mean 'case'?)",
        ("",): "unknown suite ''",
        ("drill.toml", "--memory-limit", "8 gigs"): "'8 gigs' is not a number of bytes",
        ("drill.toml", "--device", "cuda:7"): "no device 'cuda:7'",
        ("drill.toml", "--implementation", "naiv"): "naiv",
        ("option.toml",): "option.toml:2: sweep 1: linear has no option 'chunk_siz' (did you mean",
        ("drill.toml", "--implementation", "./leave.py"): "'./leave.py' ends the process that imports it",
        ("drill.toml", "--implementation", "./exit.py"): "'./exit.py' can't be imported: SystemExit: 0",
        ("dril.toml",): "dril.toml",
        ("drill.toml", "-o", "file/run"): "can't make the output folder 'file/run': Not a directory",
        ("drill.toml", "-o", "/proc/run"): "can't make the output folder '/proc/run'",
        ("--resume", "nowhere"): "no run 'nowhere'",
        ("--resume", "nothing"): "has no run.json",
        ("--resume", "nothing", "-o", "run"): "--output names the folder of a new run",
        ("--resume", "nothing", "--seqlen", "8"): "--resume continues a run as it was planned",
    }
    for arguments, words in expected.items():
        assert words in usage_error(capsys, *arguments), arguments
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1", 1),
        ("8589934592", 2**33),
        ("8GiB", 2**33),
        ("1.5 KiB", 1536),
        ("2kB", 2000),
        ("7B", 7),
        (str(2**80), 2**80),
    ],
)
def test_bytes_as_people_write_them(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "0", "-1", "8G", "GiB", "1e9", "nan", "0.1", "8 GiB x"])
def test_what_is_no_number_of_bytes(text):
    with pytest.raises(UsageError, match="is not a number of bytes"):
        parse_bytes(text)
