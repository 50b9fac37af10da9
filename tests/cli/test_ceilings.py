"""`attnbench doctor --ceilings`: what was measured beside the data sheet, in the room of a terminal."""

import json

import msgspec
import pytest

from attnbench.cli import doctor, main
from attnbench.cli.ceilings import ceiling_rows
from attnbench.device.datasheets import find_datasheet

H100 = "NVIDIA H100 80GB HBM3"
FOUND = {
    "device": "cuda",
    "name": H100,
    "timer": "cuda-events",
    "matmul_flops_per_s": {"float64": 60e12, "float32": 51.3e12, "tf32": 400e12, "float16": 744e12},
    "copy_bytes_per_s": 2.9e12,
    "triad_bytes_per_s": 3.0e12,
    "read_bytes_per_s": 3.1e12,
    "exp2_per_s": 3.7e12,
    "launch_overhead_us": 2.13,
    "verdict": ["throttled"],
    "datasheet": msgspec.to_builtins(find_datasheet(H100)),
    "unavailable": {"matmul_flops_per_s.bfloat16": "RuntimeError: not here"},
}


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(list(words))
    return stopped.value.code


def test_each_rate_stands_beside_its_data_sheet():
    rows = {row["ceiling"]: row for row in ceiling_rows(FOUND)}
    assert rows["matmul float16"] == {
        "ceiling": "matmul float16",
        "measured": "744 TFLOP/s",
        "data sheet": "989 TFLOP/s",
        "reached": "75 %",
        "remark": "",
    }
    assert rows["matmul bfloat16"]["measured"] == "–"
    assert rows["matmul bfloat16"]["remark"] == "RuntimeError: not here"
    assert rows["matmul float64"]["data sheet"] == ""
    assert (rows["copy"]["measured"], rows["copy"]["reached"]) == ("2.90 TB/s", "87 %")
    assert rows["launch overhead"]["measured"] == "2.13 µs"


def test_people_get_a_table_and_the_sources(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "ceilings_of", lambda device: FOUND)
    assert run("doctor", "--ceilings") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"cuda: {H100}"
    assert lines[2].split() == ["ceiling", "measured", "data", "sheet", "reached", "remark"]
    table = lines[3 : lines.index("", 3)]
    assert len(table) == 10
    assert max(map(len, table)) <= 80
    assert sum("data sheet of H100 SXM5 80 GB, dense: " in line for line in lines) == 2


def test_a_processor_has_no_data_sheet(monkeypatch, capsys):
    processor = {
        "device": "cpu",
        "name": "a processor",
        "threads": 1,
        "matmul_flops_per_s": {"float32": 1.2e11},
        "copy_bytes_per_s": 1e10,
        "verdict": ["shared"],
    }
    monkeypatch.setattr(doctor, "ceilings_of", lambda device: processor)
    assert run("doctor", "--ceilings", "--device", "cpu") == 0
    out = capsys.readouterr().out
    assert out.startswith("cpu: a processor, 1 thread\n")
    assert "data sheet" not in out
    assert "120 GFLOP/s" in out
    assert "other processes were busy" in out


def test_a_product_that_failed_is_told_where_no_data_sheet_names_it():
    why = "RuntimeError: no kernel for this processor"
    rows = list(ceiling_rows({"unavailable": {"matmul_flops_per_s.bfloat16": why}}))
    [row] = [row for row in rows if row["ceiling"].startswith("matmul")]
    assert (row["ceiling"], row["measured"], row["remark"]) == ("matmul bfloat16", "–", why)


def test_machines_get_numbers(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "ceilings_of", lambda device: FOUND)
    assert run("doctor", "--ceilings", "--json") == 0
    assert json.loads(capsys.readouterr().out)["datasheet"]["matmul_flops_per_s"]["bfloat16"] == 989.4e12


def test_mistakes_are_usage_errors(capsys):
    assert run("doctor", "--device", "cpu") == 2
    assert "goes with --ceilings" in capsys.readouterr().err
    assert run("doctor", "--ceilings", "--device", "gpu") == 2
    assert "unknown device 'gpu'" in capsys.readouterr().err
