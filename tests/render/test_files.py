import json

import pytest

from attnbench.contract.errors import UsageError
from attnbench.render.files import FORMATS, parse_formats, write_report
from tests.analysis.synthetic import make_record, make_run


def small_run():
    return make_run([make_record(latency_ms=1.5, peak_bytes=8, samples_ms=[1.0, 1.5, 2.0])])


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_report_is_a_page_a_short_form_a_table_pictures_and_samples(tmp_path):
    written = write_report([small_run()], tmp_path)
    assert written[-1] == tmp_path / "report.html"
    assert (
        names(tmp_path)
        == sorted(path.relative_to(tmp_path).as_posix() for path in written)
        == [
            "cases.csv",
            "plots/latency.png",
            "plots/latency.svg",
            "plots/peak-memory.png",
            "plots/peak-memory.svg",
            "report.html",
            "report.md",
            "samples.jsonl",
        ]
    )
    assert "![Latency](plots/latency.png)" in (tmp_path / "report.md").read_text("utf-8")
    (line,) = (tmp_path / "samples.jsonl").read_text("utf-8").splitlines()
    assert json.loads(line)["samples_ms"] == [1.0, 1.5, 2.0]


@pytest.mark.parametrize("kind", FORMATS)
def test_one_format_writes_that_alone(tmp_path, kind):
    written = write_report([small_run()], tmp_path, [kind])
    assert {path.suffix for path in written} - {".jsonl"} == {f".{kind}"}


def test_formats_are_checked():
    assert parse_formats("html, md") == ("html", "md")
    with pytest.raises(
        UsageError, match=r"'htm' is not a report format \(did you mean 'html'\?\); available are html"
    ):
        parse_formats("htm")
    with pytest.raises(
        UsageError, match="this version does not write the format 'bencher'; available are html, md"
    ):
        parse_formats("html,bencher")
    with pytest.raises(UsageError, match="is not a report format"):
        parse_formats("")


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match="can't write the report to"):
        write_report([small_run()], tmp_path / "file" / "below", ["csv"])
