"""Predicted DRAM bytes in records: where they are, what they say of themselves, and why they are not."""

import pytest

from attnbench.contract.errors import UsageError
from attnbench.measure.kernel_trace import KernelTrace
from attnbench.measure.l2_prediction import predict_dram
from attnbench.measure.pipeline import measure_case
from attnbench.measure.record import Record
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings


def measured(**given) -> Record:
    return measure_case(Case(**given), MeasureSettings(metrics=("traffic",)))


def test_a_case_that_is_interpreted_whole_has_a_prediction_that_says_what_it_assumes():
    """Everything fits: what is compulsory, lse, and the sector that holds the bounds."""
    record = measured(implementation="triton-flash", seqlen_q=128, num_heads=2)
    section = record.traffic
    assert section.predicted_dram_bytes == section.compulsory_bytes + 2 * 128 * 4 + 32
    assert section.predicted_dram_backend == "l2-model: H100 SXM5 80 GB, 50 MiB, 132 programs at a time"
    assert (section.dram_bytes, section.dram_backend) == (None, None)
    assert "ran on the CPU" in record.unavailable["traffic.dram_bytes"]


@pytest.mark.parametrize("mode", ["bwd", "fwd_bwd"])
def test_what_prepares_a_backward_pass_is_no_part_of_it(mode):
    """The kernels hand each other numbers of a row: out (bwd), two statistics, delta and lse (fwd_bwd)."""
    record = measured(implementation="triton-flash", seqlen_q=128, num_heads=2, mode=mode)
    rows = 2 * 128 * 4
    handed = {"bwd": 64 * rows + (2 + 1) * rows, "fwd_bwd": (1 + 2 + 1) * rows}[mode]
    assert record.traffic.predicted_dram_bytes == record.traffic.compulsory_bytes + handed + 32


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"implementation": "naive", "seqlen_q": 64}, "own loads and stores"),
        ({"implementation": "triton-flash", "seqlen_q": 2048}, "3 of 128 kernel programs were interpreted"),
        (
            {"implementation": "triton-flash", "level": "block", "preset": "tiny", "seqlen_q": 16},
            "between the kernels",
        ),
    ],
)
def test_where_there_is_none_the_record_says_why(given, why):
    record = measured(**given)
    assert record.status == "ok"
    section = record.traffic
    assert (section.predicted_dram_bytes, section.predicted_dram_backend) == (None, None)
    assert why in record.unavailable["traffic.predicted_dram_bytes"]


def test_only_a_single_l2_cache_is_modelled():
    words = "l2-model: GeForce RTX 3090, 6 MiB, 82 programs at a time"
    assert predict_dram(KernelTrace(), "sm_86") == (0, words)
    with pytest.raises(UsageError, match="gfx942 has more than one L2 cache"):
        predict_dram(KernelTrace(), "gfx942")
