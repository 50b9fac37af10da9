"""`attnbench report`: where it writes and says so, other formats, mistakes, torn lines, warnings."""

import os
import subprocess
import sys

import pytest

from attnbench.cli import main
from attnbench.run.store import RunWriter
from tests.analysis.synthetic import META, make_record


@pytest.fixture
def run_folder(tmp_path):
    folder = tmp_path / "runs" / "quick-1"
    meta = {key: value for key, value in META.items() if key != "schema_version"}
    with RunWriter.create(folder, meta) as writer:
        writer.append(make_record("naive", 256, latency_ms=1.0))
        writer.append(make_record("naive", 512, status="oom", reason="too large"))
        writer.append(make_record("名前", 256, latency_ms=0.4))
    return folder


def attnbench(*arguments, **environment):
    command = [sys.executable, "-W", "error", "-m", "attnbench", "report", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", env={**os.environ, **environment}
    )


def test_the_report_lies_in_the_run_folder_and_its_path_is_the_last_line(run_folder):
    """Files are UTF-8 in a locale that knows ASCII alone, and no display is asked for."""
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = attnbench(run_folder, MPLBACKEND="TkAgg", **ascii_only)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == str(run_folder / "report.html")
    page = (run_folder / "report.html").read_text("utf-8")
    assert "too large" in page
    assert "名前" in page
    assert "名前" in (run_folder / "report.md").read_text("utf-8")
    assert (run_folder / "plots" / "latency.png").exists()


def test_another_folder_other_formats_and_several_runs(run_folder, tmp_path):
    done = attnbench(run_folder, run_folder, "-o", tmp_path / "out", "--format", "md,csv")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "cases.csv",
        "report.md",
        "samples.jsonl",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "no run 'nowhere'"),
        (["{run}", "--format", "pdf"], "'pdf' is not a report format"),
        (
            ["{run}", "--format", "parquet"],
            "this version does not write the format 'parquet'; available are html",
        ),
        (["{run}", "-o", "{run}/run.json/below"], "can't write the report to"),
        ([], "missing argument 'RUN...'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(run_folder, capsys, arguments, said):
    with pytest.raises(SystemExit) as stop:
        main(["report", *(argument.format(run=run_folder) for argument in arguments)])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_torn_line_is_told_and_the_rest_is_reported(run_folder, capsys):
    with (run_folder / "records.jsonl").open("a") as file:
        file.write('{"case_id": "half')
    with pytest.raises(SystemExit) as stop:
        main(["report", str(run_folder), "--format", "csv"])
    assert stop.value.code == 0
    assert "line 4" in capsys.readouterr().err
    assert len((run_folder / "cases.csv").read_text("utf-8").splitlines()) == 4


def test_a_warning_of_a_library_is_one_line_without_its_source(run_folder):
    code = """
import sys, warnings
from attnbench.render import files
write = files.write_report
def warning(*arguments):
    for _ in range(2):
        warnings.warn("axes are\\ntoo small", UserWarning)
    return write(*arguments)
files.write_report = warning
from attnbench.cli import main
main(["report", sys.argv[1], "--format", "csv"])
"""
    done = subprocess.run([sys.executable, "-c", code, run_folder], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "attnbench: note: axes are too small\n")
    assert done.stdout.splitlines() == [str(run_folder / "cases.csv")]
