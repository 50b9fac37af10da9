"""The run folder keeps every whole record, says what it could not keep, and has one writer."""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from attnbench.cli import main
from attnbench.contract.errors import UsageError
from attnbench.measure.record import Agreement, Error, Latency, Memory, Record
from attnbench.run.store import SYNC_EVERY_S, Run, RunWriter, StorageError, load_run, new_folder

CASE = {"implementation": "naive", "seqlen_k": 128}


def record(name: str, **changes) -> Record:
    return Record(**({"case_id": name, "case": CASE, "status": "ok"} | changes))


def write(folder: Path, *records: Record, **meta) -> None:
    with RunWriter.create(folder, {"cases": {}, **meta}) as writer:
        for one in records:
            writer.append(one)


def test_what_was_written_is_read(tmp_path):
    first = record(
        "a",
        latency=Latency(median_ms=1.25, samples_ms=[1.0, 1.5], verdict=["valid"]),
        memory=Memory(peak_bytes=2**70),
        agreement=Agreement(max_abs_error=1e-7, lse=Error(budget=1e-6)),
        theory={"flops": 2**80},
        unavailable={"traffic.dram_bytes": "no GPU"},
    )
    second = record("b", status="oom", reason="predicted to need 12 bytes")
    write(tmp_path / "run", first, second, suite={"name": "té"})
    run = load_run(tmp_path / "run")
    assert run.records == [first, second]
    assert run.meta["suite"] == {"name": "té"}
    assert run.problems == []
    assert load_run(tmp_path / "run" / "run.json") == run


def test_each_record_is_one_line(tmp_path):
    write(tmp_path, record("a", status="error", reason="two\nlines"), record("b"))
    lines = (tmp_path / "records.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["case_id"] for line in lines] == ["a", "b"]


def test_ten_thousand_records_take_less_than_five_seconds(tmp_path, monkeypatch):
    """Of this process; the disk is waited for once a second, however many records there are."""
    waited_s, sync = [], os.fsync

    def counted(descriptor: int) -> None:
        waited_s.append(time.monotonic())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    latency = Latency(median_ms=1.0, samples_ms=[1.0 + sample / 7 for sample in range(30)])
    records = [record(str(number), latency=latency) for number in range(10_000)]
    with RunWriter.create(tmp_path / "run", {"cases": {}}) as writer:
        waited_s.clear()
        began, began_s = time.process_time(), time.monotonic()
        for one in records:
            writer.append(one)
        assert time.process_time() - began < 5
        assert len(waited_s) <= (time.monotonic() - began_s) / SYNC_EVERY_S + 1
        assert len(load_run(tmp_path / "run").records) == 10_000, "readers have them at once"


def test_records_come_in_the_order_of_the_plan_and_the_latest_counts(tmp_path):
    later = record("a", status="ok")
    write(tmp_path, record("c"), record("a", status="timeout", reason="60 s"), record("x"), later, cases={
        "a": CASE, "b": CASE, "c": CASE,
    })  # fmt: skip
    run = load_run(tmp_path)
    assert [one.case_id for one in run.records] == ["a", "c", "x"]
    assert repr(run) == f"Run({str(tmp_path)!r}: 3 ok, 1 missing)"
    assert run.records[0] == later
    assert run.missing == ["b"]


def test_a_torn_line_is_reported_and_dropped(tmp_path):
    write(tmp_path, record("a"), record("b"))
    file = tmp_path / "records.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-10])
    run = load_run(tmp_path)
    assert [one.case_id for one in run.records] == ["a"]
    assert len(run.problems) == 1
    assert "line 2" in run.problems[0]

    with RunWriter.resume(tmp_path) as writer:
        writer.append(record("c"))
    run = load_run(tmp_path)
    assert [one.case_id for one in run.records] == ["a", "c"]
    assert run.problems == []


def test_only_the_end_of_the_last_line_may_be_missing(tmp_path):
    write(tmp_path, record("a"))
    file = tmp_path / "records.jsonl"
    file.write_bytes(file.read_bytes().rstrip(b"\n"))
    assert [one.case_id for one in load_run(tmp_path).records] == ["a"]
    with RunWriter.resume(tmp_path) as writer:
        writer.append(record("b"))
    assert [one.case_id for one in load_run(tmp_path).records] == ["a", "b"]


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"\xff\xfe",
        b"[]",
        b'{"case_id": "z"}',
        b'{"case_id": "z", "case": {}, "status": "great"}',
        b"\x00" * 99,
    ],
)
def test_rubbish_in_the_middle_is_dropped_alone(tmp_path, line):
    write(tmp_path, record("a"), record("b"))
    file = tmp_path / "records.jsonl"
    first, second = file.read_bytes().splitlines()
    file.write_bytes(b"\n".join([first, line, second, b""]))
    run = load_run(tmp_path)
    assert [one.case_id for one in run.records] == ["a", "b"]
    assert len(run.problems) == 1
    assert "line 2" in run.problems[0]


def test_what_a_newer_version_added_is_ignored(tmp_path):
    write(tmp_path, record("a"))
    for name, added in (
        ("run.json", {"later": 3}),
        ("records.jsonl", {"later": 1, "latency": {"new": 2}}),
    ):
        change(tmp_path / name, added)
    with RunWriter.resume(tmp_path) as writer:
        writer.update(status="complete")
    run = load_run(tmp_path)
    assert [one.case_id for one in run.records] == ["a"]
    assert run.problems == []
    assert run.meta["later"] == 3


def change(file: Path, added: Mapping[str, object]) -> None:
    """Add keys to a file that holds one table."""
    plain = json.loads(file.read_text(encoding="utf-8")) | added
    file.write_text(json.dumps(plain) + "\n", encoding="utf-8")


@pytest.mark.parametrize("name", ["run.json", "records.jsonl"])
@pytest.mark.parametrize("command", [["report"], ["run", "--resume"]])
def test_a_newer_schema_is_refused_and_nothing_is_written(tmp_path, capsys, name, command):
    """Fields of another schema may mean something else, and what is written back would mix the two."""
    folder = tmp_path / "run"
    write(folder, record("a"), cases={"a": CASE}, suite={"name": "small", "text": "", "source": ""})
    change(folder / name, {"schema_version": 2, "status": "sampled"})
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(SystemExit) as stopped:
        main([*command, str(folder)])
    assert stopped.value.code == 2
    [said] = capsys.readouterr().err.splitlines()
    assert "written by a newer attnbench (schema 2, this one knows 1)" in said
    assert "install a newer one, or measure into another folder" in said
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_numbers_that_are_none_are_left_out_and_named(tmp_path):
    """C07: JSON has no word for NaN or infinity."""
    write(
        tmp_path,
        record("a", latency=Latency(median_ms=float("nan"), p10_ms=2.0, samples_ms=[1.0, float("inf")])),
    )
    text = (tmp_path / "records.jsonl").read_text(encoding="utf-8")

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    json.loads(text, parse_constant=refuse)
    [read] = load_run(tmp_path).records
    assert read.latency == Latency(p10_ms=2.0)
    assert set(read.unavailable) == {"latency.median_ms", "latency.samples_ms"}


def test_two_writers_are_refused(tmp_path):
    with RunWriter.create(tmp_path, {}) as writer:
        code = "import sys; from attnbench.run.store import RunWriter; RunWriter.resume(sys.argv[1])"
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
        )
        assert done.returncode != 0
        assert "another process is writing it" in done.stderr
        with pytest.raises(UsageError, match="another process is writing it"):
            RunWriter.resume(tmp_path)
        writer.append(record("a"))
    with RunWriter.resume(tmp_path) as writer:
        writer.append(record("b"))
    assert len(load_run(tmp_path).records) == 2


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path):
    write(tmp_path, record("a"))
    with pytest.raises(UsageError, match=r"holds a run already.*--resume"):
        RunWriter.create(tmp_path, {})
    assert len(load_run(tmp_path).records) == 1


@pytest.mark.parametrize("below", ["a file", "proc"])
def test_a_folder_that_cannot_be_made_is_a_usage_error(tmp_path, below):
    (tmp_path / "file").touch()
    parent = tmp_path / "file" if below == "a file" else Path("/proc")
    with pytest.raises(UsageError, match="can't make the output folder"):
        RunWriter.create(parent / "run", {})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_a_usage_error(tmp_path):
    tmp_path.chmod(0o555)
    with pytest.raises(UsageError, match="can't write"):
        RunWriter.create(tmp_path, {})


def fill_up() -> None:
    """Let no file of this process grow beyond 4 KiB: what a full disk does to a writer."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


FULL = """
import sys
from collections.abc import Mapping
from pathlib import Path
from attnbench.measure.record import Record
from attnbench.run.store import RunWriter, StorageError
with RunWriter.create(Path(sys.argv[1]), {}) as writer:
    try:
        for number in range(100):
            writer.append(Record(case_id=f"case {number}", case={"filler": "x" * 1000}, status="ok"))
    except StorageError as error:
        print(number, error)
"""


def test_a_full_disk_keeps_what_was_written(tmp_path):
    command = [sys.executable, "-c", FULL, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, preexec_fn=fill_up)
    kept = int(done.stdout.split()[0])
    assert kept == 3
    assert f"its {kept} records are kept" in done.stdout
    assert f"attnbench run --resume {tmp_path / 'run'}" in done.stdout
    run = load_run(tmp_path / "run")
    assert [one.case_id for one in run.records] == ["case 0", "case 1", "case 2"]
    assert run.problems == []


def append_until_full(writer: RunWriter) -> int:
    """How many records of some 4 KB were written before the disk was full."""
    for number in range(100):
        try:
            writer.append(record(f"case {number}", case={"filler": "x" * 4000}))
        except StorageError as error:
            return number if "No space left on device" in str(error) else -1
    raise AssertionError("the disk is larger than it should be")


def test_a_real_full_disk(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "attnbench", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root may mount a small file system")
    try:
        with RunWriter.create(tmp_path / "run", {}) as writer:
            written = append_until_full(writer)
            with pytest.raises(StorageError):
                writer.update(filler="x" * 100_000)
        run = load_run(tmp_path / "run")
        assert len(run.records) == written > 0
        assert run.problems == []
        assert "filler" not in run.meta
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"])
def test_a_broken_run_json_is_a_usage_error(tmp_path, content):
    write(tmp_path, record("a"))
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"can't read.*run\.json"):
        load_run(tmp_path)


def test_what_is_no_run_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="no such folder"):
        load_run(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"has no run\.json"):
        load_run(tmp_path)


def test_default_folders_never_collide(tmp_path):
    stamp = "2026-11-30T09:30:00Z"
    first = new_folder("my suite/../x", stamp, tmp_path)
    assert first == tmp_path / "my_suite_.._x-20261130T093000Z"
    first.mkdir()
    assert new_folder("my suite/../x", stamp, tmp_path) == tmp_path / "my_suite_.._x-20261130T093000Z-2"


def test_the_frame_has_one_row_a_case_and_every_field():
    records = [
        record("a", latency=Latency(median_ms=1.5), case={"seqlen_k": 256}),
        record("b", status="oom", reason="no", case={"seqlen_k": 512}),
    ]
    frame = Run(Path(), {}, records).frame()
    assert list(frame["case_id"]) == ["a", "b"]
    assert list(frame["case.seqlen_k"]) == [256, 512]
    assert frame["latency.median_ms"][0] == 1.5
    assert frame["latency.median_ms"].isna()[1]
    assert frame["agreement.lse.max_abs_error"].isna().all()
    empty = Run(Path(), {}, []).frame()
    assert len(empty) == 0
    assert "memory.peak_bytes" in empty.columns


def test_reading_loads_no_torch(tmp_path):
    write(tmp_path, record("a"))
    code = (
        "import sys; from attnbench.run.store import load_run; load_run(sys.argv[1]).frame(); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
