"""Quality of trained weights: the right number, one for every seed, and a reason where it cannot be had."""

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from attnbench.measure.pipeline import measure_case
from attnbench.measure.quality import measure_quality
from attnbench.measure.record import Quality
from attnbench.measure.workload import build_workload
from attnbench.model.builder import build_model
from attnbench.model.text import even_passages, sample_bytes
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings
from attnbench.plan.suite import load_suite

AGREEMENT = MeasureSettings(metrics=("agreement",))


def case(**keys: Any) -> Case:
    form = {"implementation": "sdpa", "level": "model", "preset": "stdlib-decoder", "inputs": "text"}
    return Case.from_dict({**form, "seqlen_q": 64, **keys})


def quality(seed: int = 0, **keys: Any) -> Quality:
    unavailable: dict[str, str] = {}
    section = measure_quality(build_workload(case(**keys), seed=seed), unavailable)
    assert unavailable == {}
    assert section is not None
    return section


@pytest.fixture
def short_text(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A part of the sample that is read in no time."""
    text = sample_bytes()[100_000:108_192]
    monkeypatch.setattr("attnbench.measure.quality.sample_bytes", lambda: text)
    return text


def test_loss_is_that_of_the_definition(short_text: bytes) -> None:
    """Of all bytes but each passage's first, in float64, one passage at a time."""
    model = build_model("stdlib-decoder", "naive", dtype="float64")
    losses = []
    for passage in even_passages(short_text, len(short_text) // 64, 64):
        with torch.no_grad():
            guesses = F.log_softmax(model(passage.unsqueeze(0))[0, :-1], dim=-1)
        losses += (-guesses[torch.arange(63), passage[1:]]).tolist()
    section = quality(dtype="float64")
    assert section.loss == pytest.approx(math.fsum(losses) / len(losses), rel=1e-12)
    assert section.perplexity == math.exp(section.loss)
    assert section.tokens == len(losses) == 128 * 63
    assert quality().loss == pytest.approx(section.loss, rel=1e-5)


def test_neither_seed_nor_batch_changes_what_is_predicted(short_text: bytes) -> None:
    section = quality(seed=1)
    assert quality(seed=2) == section
    in_threes = quality(batch=3)
    assert (in_threes.tokens, in_threes.text_hash) == (section.tokens, section.text_hash)
    assert in_threes.loss == pytest.approx(section.loss, rel=1e-6)


@pytest.mark.long
def test_a_window_over_everything_costs_nothing_and_a_narrow_one_does(short_text: bytes) -> None:
    def windowed(size: int) -> Quality:
        mask = {"name": "sliding-window", "window_size": size}
        return quality(implementation="sliding-window", mask=mask)

    exact = quality().loss
    assert windowed(64).loss == pytest.approx(exact, rel=1e-6)
    assert exact < windowed(16).loss < windowed(2).loss - 0.2 < windowed(1).loss
    assert quality(implementation="linear").loss > exact + 0.1


def test_longer_passages_are_predicted_better(short_text: bytes) -> None:
    """Up to the length that the weights were trained with."""
    losses = [quality(seqlen_q=seqlen).loss for seqlen in (32, 1024)]
    assert losses[0] > losses[1] + 0.1


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"preset": "tiny"}, "the weights of preset 'tiny' are drawn, not trained"),
        ({"inputs": "normal"}, "inputs are random: a text is predicted where the case has inputs = 'text'"),
        ({"mode": "fwd_bwd"}, "measured in mode fwd"),
        ({"implementation": "triton-flash"}, "runs under Triton's interpreter on the CPU"),
        ({"seqlen_q": 1}, "passages are of 2 to 270526 bytes, in batches of 1 or more"),
        ({"batch": 0}, "passages are of 2 to 270526 bytes, in batches of 1 or more"),
    ],
)
def test_what_cannot_be_had_says_why(keys: dict[str, Any], reason: str) -> None:
    unavailable: dict[str, str] = {}
    assert measure_quality(build_workload(case(**keys)), unavailable) is None
    assert unavailable["quality"].startswith(reason)


def test_below_a_model_there_is_nothing_to_predict() -> None:
    unavailable: dict[str, str] = {}
    for level in ("attention", "block"):
        keys = {} if level == "block" else {"preset": None}
        workload = build_workload(case(level=level, inputs="normal", **keys))
        assert measure_quality(workload, unavailable) is None
    assert unavailable == {}


def test_a_record_has_it_where_it_was_asked_for(short_text: bytes) -> None:
    asked = measure_case(case(), MeasureSettings(metrics=("quality",)))
    assert asked.status == "ok"
    assert asked.quality.loss < 5
    assert "quality" not in asked.unavailable
    assert measure_case(case(), AGREEMENT).quality is None


@pytest.mark.parametrize(
    ("implementation", "mask", "modes"),
    [
        ("naive", {"name": "causal"}, ("fwd", "fwd_bwd")),
        ("sdpa", {"name": "causal"}, ("fwd", "fwd_bwd")),
        ("triton-flash", {"name": "causal"}, ("fwd",)),
        ("linear", {"name": "causal"}, ("fwd", "fwd_bwd")),
        ("sliding-window", {"name": "sliding-window", "window_size": 16}, ("fwd", "fwd_bwd")),
    ],
)
def test_trained_weights_agree_with_the_truth(
    implementation: str, mask: dict[str, Any], modes: tuple[str, ...]
) -> None:
    """Logits, loss and every gradient, on text, within the budget that plain float32 sets."""
    for mode in modes:
        record = measure_case(case(implementation=implementation, mask=mask, mode=mode), AGREEMENT)
        assert record.status == "ok", record.reason
        assert record.agreement.verdict == "ok"
        assert record.agreement.budget_used <= 1


def test_the_suite_exchanges_the_attention_and_nothing_else() -> None:
    suite = load_suite("approximation", device="cpu")
    assert {"latency", "memory", "traffic", "agreement", "quality"} == set(suite.measure.metrics)
    for seqlen in (256, 512, 1024):
        cases = [one for one in suite.cases if one.seqlen == seqlen]
        windows = [one.mask["window_size"] for one in cases if one.implementation == "sliding-window"]
        assert windows == [16, 32, 64, 128, 256]
        assert [one.implementation for one in cases if "window_size" not in one.mask] == ["sdpa", "linear"]
        assert {(one.preset, one.inputs, one.mode) for one in cases} == {("stdlib-decoder", "text", "fwd")}
