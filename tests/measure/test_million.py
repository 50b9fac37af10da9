"""A window over a million tokens is checked in seconds, forward and backward, and in less than 4 GB."""

import json
import subprocess
import sys

import pytest

CHILD = """
import json, resource, sys
from attnbench.measure.pipeline import measure_case
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings

window = {"name": "sliding-window", "window_size": 256}
case = Case(
    implementation="sliding-window", mode=sys.argv[1], mask=window, seqlen_q=1 << 20, num_heads=1, head_dim=64
)
record = measure_case(case, MeasureSettings(metrics=("memory", "agreement")))
peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"record": record.to_dict(), "peak_bytes": peak_bytes}))
"""


@pytest.mark.long
@pytest.mark.parametrize("mode", ["fwd", "fwd_bwd"])
def test_a_million_tokens_are_checked_in_less_than_four_gigabytes(mode: str) -> None:
    done = subprocess.run([sys.executable, "-c", CHILD, mode], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    record, agreement, memory = found["record"], found["record"]["agreement"], found["record"]["memory"]
    assert (record["status"], agreement["verdict"], agreement["rows_checked"]) == ("ok", "ok", 256)
    assert agreement.get("columns_checked") == (None if mode == "fwd" else 256)
    assert memory["predicted_peak_backend"] == "closed-form"
    assert memory["predicted_peak_bytes"] == memory["peak_bytes"]
    assert found["peak_bytes"] < 4e9
