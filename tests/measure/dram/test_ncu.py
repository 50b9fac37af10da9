"""What Nsight Compute writes, and what it does when it does not; its samples were made by hand."""

import itertools

import pytest

from attnbench.measure.dram import ncu
from attnbench.measure.dram.backend import BackendError, HungError
from tests.measure.dram.fakes import put_on_path, sample, small_job, writes


def test_one_kernel():
    found = ncu.parse(sample("ncu-elementwise.csv"))
    assert (found.total, found.read, found.write) == (95_725_760, 58_732_000, 36_993_760)
    assert [name.split("<")[0] for name, _ in found.kernels] == [
        "void at::native::vectorized_elementwise_kernel"
    ]


def test_kernels_are_summed_and_kept_apart():
    found = ncu.parse(sample("ncu-three-kernels.csv"))
    assert (found.total, found.read, found.write) == (10_502_048, 5_002_048, 5_500_000)
    assert [(name, one.total) for name, one in found.kernels] == [
        ("gemm(float*, float*)", 9_000_000),
        ("softmax", 1_500_000),
        ("gemm(float*, float*)", 2_048),
    ]


def test_the_other_spelling():
    found = ncu.parse(sample("ncu-op-spelling.csv"))
    assert (found.total, found.read, found.write) == (1_070_080, 1_067_008, 3_072)


def test_units_are_read_not_assumed():
    found = ncu.parse(sample("ncu-kilobytes.csv"))
    assert (found.total, found.read, found.write) == (1_500_000, 1_000_250, 499_750)
    with pytest.raises(BackendError, match="'furlong'"):
        ncu.parse(sample("ncu-kilobytes.csv").replace("Kbyte", "furlong"))


def test_a_chip_without_counters_has_no_bytes_and_not_zero():
    with pytest.raises(BackendError, match="no DRAM counter") as error:
        ncu.parse(sample("ncu-tegra.csv"))
    assert error.value.lasting


def test_a_counter_that_is_missing_is_absent():
    """The total without its parts; and a sum over kernels only where each of them has a number."""
    text = sample("ncu-elementwise.csv")
    alone = ncu.parse(text.replace("58732000", "n/a").replace("36993760", "n/a"))
    assert (alone.total, alone.read, alone.write) == (95_725_760, None, None)
    parts = ncu.parse(text.replace('"95725760"', '"n/a"'))
    assert parts.total == parts.read + parts.write
    partly = ncu.parse(sample("ncu-three-kernels.csv").replace('"500,000"', '"n/a"'))
    assert partly.write is None
    assert (partly.total, partly.read) == (10_502_048, 5_002_048)


@pytest.mark.parametrize("text", ["", "\x00\xff nonsense\n{", '"ID","Kernel Name"\n', "==PROF== Connected\n"])
def test_garbage_is_no_table(text):
    with pytest.raises(BackendError, match=r"wrote no table|saw no kernel"):
        ncu.parse(text)


def test_passes():
    assert ncu.most_passes(sample("ncu-elementwise.csv")) == 1
    assert ncu.most_passes(sample("ncu-three-kernels.csv")) == 2
    assert ncu.most_passes("") == 1


def test_what_is_asked_of_ncu(tmp_path, monkeypatch):
    """Both spellings, one call between start and stop, the cache flushed by us and not between kernels."""
    kept = tmp_path / "arguments"
    script = f"open({str(kept)!r}, 'a').write(chr(10).join(args) + chr(10))\n"
    put_on_path(tmp_path, "ncu", script + writes("ncu-elementwise.csv"), monkeypatch)
    assert ncu.measure(small_job(), 30).read == 58_732_000
    asked = kept.read_text(encoding="utf-8").splitlines()
    given = dict(itertools.pairwise(asked))
    metrics = given["--metrics"].split(",")
    assert {"dram__bytes.sum", "dram__bytes_read.sum", "dram__bytes_op_write.sum"} < set(metrics)
    assert given["--profile-from-start"] == "off"
    assert given["--cache-control"] == "none"
    assert given["--clock-control"] == "none"
    assert asked.count("--cache-control") == 1
    assert given["-m"] == "attnbench.measure.dram.child"
    assert '"known":"cpu"' in given[given["-m"]]


def test_several_passes_are_made_again_with_the_cache_flushed_before_each(tmp_path, monkeypatch):
    put_on_path(tmp_path, "ncu", writes("ncu-three-kernels.csv"), monkeypatch)
    found = ncu.measure(small_job(), 30)
    assert found.total == 10_502_048
    assert found.note == ncu.FLUSHED_BETWEEN


def test_a_second_run_without_time_is_not_begun_and_nobody_hung(tmp_path, monkeypatch):
    put_on_path(tmp_path, "ncu", "time.sleep(1)\n" + writes("ncu-three-kernels.csv"), monkeypatch)
    with pytest.raises(BackendError, match="take 2 passes") as error:
        ncu.measure(small_job(), 1.9)
    assert not isinstance(error.value, HungError)


@pytest.mark.parametrize(
    ("name", "reason", "fix"),
    [
        ("ncu-forbidden.txt", "ERR_NVGPUCTRPERM", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("ncu-busy.txt", "another program holds", "dcgmi profile --pause"),
        ("ncu-no-kernels.txt", "No kernels were profiled", ""),
    ],
)
def test_refusals_become_advice(tmp_path, monkeypatch, name, reason, fix):
    monkeypatch.setattr("attnbench.device.counters.in_container", lambda: False)
    put_on_path(tmp_path, "ncu", writes(name) + "sys.exit(1)\n", monkeypatch)
    with pytest.raises(BackendError, match=reason) as error:
        ncu.measure(small_job(), 30)
    assert fix in (error.value.fix or "")
    assert error.value.lasting is bool(fix)


def test_a_container_is_told_which_capability_to_ask_for(tmp_path, monkeypatch):
    monkeypatch.setattr("attnbench.device.counters.in_container", lambda: True)
    put_on_path(tmp_path, "ncu", writes("ncu-forbidden.txt"), monkeypatch)
    with pytest.raises(BackendError) as error:
        ncu.measure(small_job(), 30)
    assert error.value.fix == "docker run --gpus all --cap-add=SYS_ADMIN IMAGE"
