"""Gradients of sampled keys: right in closed form, and what only they can see."""

from pathlib import Path
from typing import Any

import pytest
import torch

from attnbench.contract import columns as contract
from attnbench.contract.columns import column_gradients, softmax_columns
from attnbench.contract.evaluation import truth
from attnbench.contract.hidden import visible_matrix
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import SOFTMAX
from attnbench.measure.inputs import make_inputs
from attnbench.measure.pipeline import measure_case
from attnbench.measure.record import Record
from attnbench.measure.truth import sample_rows
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings

SETTINGS = MeasureSettings(metrics=("agreement",), reference_rows=64)
WINDOW = {"name": "sliding-window", "window_size": 48}
CHECKED = 2 * sample_rows(600, 64, SETTINGS.seed).numel()

PROBLEMS: dict[str, dict[str, Any]] = {
    "causal": {},
    "full": {"mask": "full"},
    "window": {"mask": WINDOW},
    "grouped": {"num_heads": 4, "num_kv_heads": 2, "scale": 0.5},
    "short-q": {"seqlen_q": 20, "mask": WINDOW},
    "ragged": {"batch": 3, "key_lengths": (90, 3, 0), "query_start": (0, 2, 7), "head_dim_v": 16},
    "rows-see-nothing": {"query_start": -15},
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_columns_are_those_of_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "BLOCK_BYTES", 1 << 14)
    form: dict[str, Any] = {"num_heads": 2, "head_dim": 8, "seqlen_q": 90, "seqlen_k": 90}
    problem = Problem(**form | PROBLEMS[name], dtype="float64", mode="fwd_bwd")
    inputs = make_inputs(problem, seed=1)
    if problem.key_lengths is not None:
        inputs["k"][0, :, 90:] = inputs["k"][1, :, 3:] = inputs["v"][2] = float("nan")
    q, k, v, grad_out = (inputs[one] for one in ("q", "k", "v", "grad_out"))
    whole = truth(SOFTMAX, q, k, v, problem=problem, grad_out=grad_out)
    columns = torch.tensor([0, 1, 40, 41, 63, 89])
    found = column_gradients(
        softmax_columns,
        q,
        k,
        v,
        whole.out,
        whole.lse,
        grad_out,
        problem=problem,
        columns=columns,
        dtype=torch.float64,
    )
    torch.testing.assert_close(found.dk, whole.dk[:, :, columns])
    torch.testing.assert_close(found.dv, whole.dv[:, :, columns])


def measured(implementation: str, **keys: Any) -> Record:
    form = {"num_heads": 2, "head_dim": 16, "seqlen_q": 600, "mode": "fwd_bwd"}
    return measure_case(Case.from_dict({"implementation": implementation, **form, **keys}), SETTINGS)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("mode", ["fwd_bwd", "bwd"])
def test_sound_gradients_of_sampled_keys_agree(mode: str, dtype: str) -> None:
    for implementation, mask in (("naive", {"name": "causal"}), ("sliding-window", WINDOW)):
        record = measured(implementation, mask=mask, mode=mode, dtype=dtype)
        assert (record.status, record.reason) == ("ok", None)
        assert set(record.agreement.columns) == {"dk", "dv"}
        assert all(0 < part.budget_used < 1 for part in record.agreement.columns.values())
        assert record.agreement.columns_checked == CHECKED
        assert "agreement.columns" not in record.unavailable


@pytest.mark.parametrize("family", ["outlier", "large-logits", "long-tail", "constant"])
def test_other_inputs_agree_too(family: str) -> None:
    for dtype in ("float32", "float16"):
        record = measured("naive", inputs=family, dtype=dtype, head_dim=64)
        assert (record.status, record.reason) == ("ok", None)
        assert record.agreement.columns_checked == CHECKED


def test_where_all_rows_are_compared_all_keys_are() -> None:
    record = measured("naive", seqlen_q=64)
    assert (record.agreement.rows_checked, record.agreement.columns_checked) == (128, 128)
    assert record.agreement.columns is None


@pytest.mark.parametrize(
    ("implementation", "reason"),
    [
        ("linear", "linear-elu has no lse, by which the gradients of sampled keys are checked"),
        ("sdpa", "the implementation gives no lse, by which the gradients of sampled keys are checked"),
    ],
)
def test_without_an_lse_they_are_unavailable(implementation: str, reason: str) -> None:
    record = measured(implementation)
    assert record.status == "ok"
    assert record.unavailable["agreement.columns"] == reason
    assert (record.agreement.columns, record.agreement.columns_checked) == (None, None)
    assert "agreement.columns" not in measured(implementation, mode="fwd").unavailable


KERNEL = '''"""Attention that forgets what some rows add to one gradient."""

import dataclasses

import torch

from attnbench.contract.discovery import get_implementation
from attnbench.contract.implementation import AttentionOutput

NAIVE = get_implementation("naive")


def attention(q, k, v, *, problem, params=None):
    whole = NAIVE.attention(q, k, v, problem=problem)
    part = NAIVE.attention(q, DROPPED, problem=problem)
    forgotten = torch.zeros(q.shape[2], dtype=torch.bool)
    forgotten[FIRST:LAST] = True
    lse = None if whole.lse is None else whole.lse + OFF
    return AttentionOutput(torch.where(forgotten[:, None], part.out, whole.out), lse)


IMPLEMENTATION = dataclasses.replace(NAIVE, name="forgetful", attention=attention)
'''


def forgetful(folder: Path, dropped: str, off: float = 0.0) -> str:
    """Write a kernel that forgets a tile between two sampled rows."""
    rows = sample_rows(600, 64, SETTINGS.seed)
    gap = int(rows.diff().argmax())
    first, last = int(rows[gap]) + 1, int(rows[gap + 1])
    assert last - first >= 8
    path = folder / f"forgetful{len(list(folder.iterdir()))}.py"
    text = KERNEL.replace("DROPPED", dropped).replace("FIRST", str(first)).replace("LAST", str(last))
    path.write_text(text.replace("OFF", str(off)))
    return str(path)


@pytest.mark.parametrize(("dropped", "name"), [("k.detach(), v", "dk"), ("k, v.detach()", "dv")])
def test_a_query_tile_that_no_sampled_row_is_in_is_missed(dropped: str, name: str, tmp_path: Path) -> None:
    kernel = forgetful(tmp_path, dropped)
    record = measured(kernel)
    assert record.status == "incorrect"
    assert record.reason.startswith(f"{name} of sampled keys is off by")
    section = record.agreement
    assert section.columns[name].verdict == "over_budget"
    # What the rows see is right.
    rest = {"dk": section.gradients["dk"], "dv": section.gradients["dv"], "dq": section.gradients["dq"]}
    assert all(part.verdict == "ok" for part in rest.values())
    assert section.budget_used <= 1
    in_sixteen_bits = measured(kernel, dtype="float16")
    assert in_sixteen_bits.status == "incorrect"


def test_an_lse_that_does_not_agree_checks_nothing(tmp_path: Path) -> None:
    record = measured(forgetful(tmp_path, "k, v", off=1e-3))
    assert record.status == "ok"
    assert record.unavailable["agreement.columns"].endswith("does not agree: over_budget")


@pytest.mark.parametrize("name", ["window", "short-q", "full", "causal", "rows-see-nothing"])
def test_queries_that_see_none_of_the_keys_are_not_read(name: str) -> None:
    form: dict[str, Any] = {"num_heads": 2, "head_dim": 8, "seqlen_q": 90, "seqlen_k": 90}
    problem = Problem(**form | PROBLEMS[name], dtype="float64", mode="fwd_bwd")
    q, k, v, grad_out = make_inputs(problem, seed=1).values()
    whole = truth(SOFTMAX, q, k, v, problem=problem, grad_out=grad_out)
    columns = torch.tensor([0, 40, 41])
    seeing = visible_matrix(problem, q.device)[0, 0][:, columns].any(dim=1)
    assert bool(seeing.all()) == (name in ("full", "causal"))
    out, lse = whole.out.clone(), whole.lse.clone()
    for x in (q, out, lse, grad_out):
        x[:, :, ~seeing] = float("nan")
    found = column_gradients(
        softmax_columns, q, k, v, out, lse, grad_out, problem=problem, columns=columns, dtype=torch.float64
    )
    torch.testing.assert_close(found.dk, whole.dk[:, :, columns])
    torch.testing.assert_close(found.dv, whole.dv[:, :, columns])


STRAY = '''"""Attention whose backward pass writes where the upstream gradient is zero."""

import dataclasses

import torch

from attnbench.contract.discovery import get_implementation
from attnbench.contract.implementation import AttentionOutput

WINDOW = get_implementation("sliding-window")


class Stray(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        grad[:, :, PLACE] += OFF
        return grad


def attention(q, k, v, *, problem, params=None):
    tensors = {"q": q, "k": k, "v": v}
    tensors["NAME"] = Stray.apply(tensors["NAME"])
    return WINDOW.attention(*tensors.values(), problem=problem)


IMPLEMENTATION = dataclasses.replace(WINDOW, name="stray", attention=attention)
'''


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("off", ["1e-3", "float('nan')"])
def test_a_gradient_where_no_sampled_row_reaches_is_wrong(name: str, off: str, tmp_path: Path) -> None:
    window = {"name": "sliding-window", "window_size": 4}
    rows = sample_rows(600, 64, SETTINGS.seed)
    gap = int(rows.diff().argmax())
    place = int(rows[gap]) + 1  # no sampled row, and no key that one sees
    assert int(rows[gap + 1]) - 4 >= place
    path = tmp_path / "stray.py"
    path.write_text(STRAY.replace("NAME", name).replace("PLACE", str(place)).replace("OFF", off))
    record = measured(str(path), mask=window)
    assert record.status == "incorrect"
    part = record.agreement.gradients[f"d{name}"]
    assert part.verdict == ("over_budget" if off == "1e-3" else "nonfinite")
    others = {one for one in ("q", "k", "v") if one != name}
    assert all(record.agreement.gradients[f"d{one}"].verdict == "ok" for one in others)
