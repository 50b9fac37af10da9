"""Blocks and models of the three architectures as cases: losses, FLOPs, support, checkpoints."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from attnbench.contract.errors import UsageError
from attnbench.measure.attentions import attentions_of, case_refusals
from attnbench.measure.counting import count_call
from attnbench.measure.flops import executed_flops
from attnbench.measure.memory import predict_counts
from attnbench.measure.pipeline import measure_case
from attnbench.measure.prepared import Outputs, Workload
from attnbench.measure.workload import build_workload
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings

COUNTED = MeasureSettings(metrics=("memory", "agreement"))
WINDOW = {"name": "sliding-window", "window_size": 6}
TRANSLATOR = {"preset": "tiny-translator", "seqlen_q": 14, "seqlen_k": 20}
TOYS = Path(__file__).parents[1] / "toys"


def case(**keys: Any) -> Case:
    return Case.from_dict({"implementation": "naive", "level": "model", "batch": 2, "seqlen_q": 20, **keys})


def run(workload: Workload) -> Outputs:
    with workload.environment():
        workload.prepare()
        return workload.call()


def test_an_encoder_decoder_learns_its_target_by_teacher_forcing() -> None:
    workload = build_workload(case(**TRANSLATOR, mode="fwd_bwd", key_lengths=(20, 9)))
    source, target = workload.inputs["source"], workload.inputs["tokens"]
    assert (source.shape, target.shape) == ((2, 20), (2, 14))
    model: Any = workload.module
    shifted = torch.cat((torch.zeros(2, 1, dtype=torch.long), target[:, :-1]), dim=1)
    with torch.no_grad():
        rows = [
            F.cross_entropy(
                model(source[b : b + 1, :held], shifted[b : b + 1, :long])[0],
                target[b, :long],
                reduction="sum",
            )
            for b, (held, long) in enumerate(((20, 14), (9, 9)))
        ]
    torch.testing.assert_close(run(workload).out, sum(rows) / (14 + 9), rtol=1e-5, atol=1e-5)


def test_an_encoder_guesses_tokens_that_it_cannot_see() -> None:
    workload = build_workload(case(preset="tiny-bert", mode="fwd_bwd", key_lengths=(20, 9), seqlen_q=20))
    tokens, chosen = workload.inputs["tokens"], workload.inputs["chosen"]
    assert not chosen[1, 9:].any(), "padding is not guessed"
    model: Any = workload.module
    with torch.no_grad():
        logits = model(tokens.masked_fill(chosen, 0), (20, 9))
    expected = F.cross_entropy(logits[chosen], tokens[chosen])
    torch.testing.assert_close(run(workload).out, expected, rtol=1e-5, atol=1e-5)


def test_fifteen_percent_are_guessed() -> None:
    workload = build_workload(case(preset="tiny-bert", mode="fwd_bwd", batch=64, seqlen_q=200))
    assert float(workload.inputs["chosen"].float().mean()) == pytest.approx(0.15, abs=0.01)


@pytest.mark.parametrize("keys", [{"preset": "tiny"}, {"preset": "tiny-bert"}, TRANSLATOR])
def test_an_untrained_model_guesses(keys: dict[str, Any]) -> None:
    outputs = run(build_workload(case(**keys, mode="fwd_bwd", inputs="text")))
    assert outputs.out.shape == ()
    assert math.log(256) - 2 < outputs.out.item() < math.log(256) + 3
    assert outputs.gradients is not None
    assert all(gradient.isfinite().all() for gradient in outputs.gradients.values())


def test_a_block_of_a_decoder_reads_and_differentiates_its_context() -> None:
    workload = build_workload(case(**TRANSLATOR, level="block", mode="fwd_bwd"))
    outputs = run(workload)
    assert outputs.out.shape == (2, 14, 32)
    assert outputs.gradients is not None
    assert outputs.gradients["context"].shape == (2, 20, 32)
    assert outputs.gradients["context"].abs().sum() > 0


@pytest.mark.parametrize("keys", [pytest.param({"preset": "tiny-bert"}, marks=pytest.mark.long), TRANSLATOR])
@pytest.mark.parametrize("implementation", ["naive", "sdpa", "linear", "sliding-window"])
def test_logits_loss_and_gradients_agree_with_the_twin(keys: dict[str, Any], implementation: str) -> None:
    window = {**WINDOW, "causal": keys is TRANSLATOR}
    mask = {"mask": window} if implementation == "sliding-window" else {}
    of = case(implementation=implementation, mode="fwd_bwd", key_lengths=(20, 9), **keys, **mask)
    record = measure_case(of, COUNTED)
    assert (record.status, record.reason) == ("ok", None)
    assert record.agreement is not None
    assert record.agreement.gradients


@pytest.mark.parametrize(("mode", "times"), [("fwd", 1), ("bwd", 2), ("fwd_bwd", 3)])
def test_flops_of_an_encoder_decoder_are_those_of_all_its_parts(mode: str, times: int) -> None:
    """tiny-translator: 2 + 2 layers, dim 32, feed-forward 64, 256 tokens, source and target; all pairs."""
    batch, t, s, dim, ffn, vocab, layers = 2, 14, 20, 32, 64, 256, 2
    encoder = s * 4 * dim * dim + 2 * s * s * dim
    decoder = t * 4 * dim * dim + 2 * t * t * dim
    cross = 2 * t * dim * dim + 2 * s * dim * dim + 2 * t * s * dim
    mixers = 2 * batch * layers * (encoder + decoder + cross)
    rest = 2 * batch * (layers * 2 * (s + t) * dim * ffn + t * dim * vocab)
    counted = predict_counts(case(**TRANSLATOR, mode=mode))
    assert counted.mixer_flops == times * mixers
    assert counted.flops == times * (mixers + rest)


def test_flops_of_an_encoder_are_those_of_all_its_parts() -> None:
    """tiny-bert: as a decoder of its size, with a dense layer more in its head."""
    batch, n, dim, ffn, vocab = 2, 20, 32, 64, 256
    mixers = 2 * batch * 2 * (n * 4 * dim * dim + 2 * n * n * dim)
    rest = 2 * batch * n * (2 * 2 * dim * ffn + dim * dim + dim * vocab)
    counted = predict_counts(case(preset="tiny-bert"))
    assert (counted.mixer_flops, counted.flops) == (mixers, mixers + rest)


@pytest.mark.parametrize("level", ["block", "model"])
def test_kernels_state_the_flops_of_every_attention(level: str) -> None:
    """As operators with a formula, or else in closed form: encoder, decoder and cross-attention."""
    of = case(**TRANSLATOR, level=level, implementation="triton-flash")
    workload = build_workload(of)
    counted = count_call(workload)
    stated = [
        one.layers * (one.implementation.cost(one.problem).executed_flops or 0) for one in workload.attentions
    ]
    shapes = [(one.place, one.layers) for one in workload.attentions]
    assert shapes == (
        [("decoder", 2), ("encoder", 2), ("cross", 2)] if level == "model" else [("decoder", 1), ("cross", 1)]
    )
    assert all(stated)
    assert counted.kernel_flops == sum(stated)
    assert executed_flops(workload, counted) == counted.flops
    unseen = replace(counted, flops=counted.flops - sum(stated), kernel_flops=0)
    assert executed_flops(workload, unseen) == counted.flops


@pytest.mark.parametrize(
    ("keys", "cross"),
    [
        ({**TRANSLATOR}, "naive"),
        ({**TRANSLATOR, "implementation": "linear", "options": {"chunk_size": 8}}, "linear"),
        ({**TRANSLATOR, "implementation": "sliding-window", "mask": WINDOW}, "sdpa"),
        ({**TRANSLATOR, "level": "block", "implementation": "sliding-window", "mask": WINDOW}, "sdpa"),
        ({"preset": "tiny"}, None),
    ],
)
def test_the_record_says_who_computes_cross_attention(keys: dict[str, Any], cross: str | None) -> None:
    record = measure_case(case(**keys), COUNTED)
    assert (record.status, record.reason) == ("ok", None)
    assert record.provenance is not None
    assert record.provenance.cross_implementation == cross
    architecture = "decoder-only" if cross is None else "encoder-decoder"
    assert record.provenance.architecture == architecture


def test_options_are_those_of_the_implementation_that_takes_them() -> None:
    shared = attentions_of(case(**TRANSLATOR, implementation="linear", options={"chunk_size": 8}))
    assert [one.problem.option("chunk_size") for one in shared] == [8, 8, 8]
    windowed = attentions_of(
        case(**TRANSLATOR, implementation="sliding-window", mask=WINDOW, options={"return_lse": True})
    )
    by_place = {one.place: one for one in windowed}
    assert by_place["decoder"].problem.option("return_lse") is True
    assert by_place["cross"].implementation.name == "sdpa"
    assert by_place["cross"].problem.options == ()


def test_support_is_that_of_every_attention_before_anything_runs() -> None:
    lstm = str(TOYS / "lstm_mixer.py")
    assert case_refusals(case(implementation=lstm, preset="tiny")) == []
    assert case_refusals(case(implementation=lstm, **TRANSLATOR)) == ["lstm does not support mask:full"]
    decoding = case(implementation=lstm, **(TRANSLATOR | {"mode": "decode", "seqlen_q": 1}))
    assert case_refusals(decoding) == ["lstm does not support mask:full"], "its encoder must be built too"
    window = case(implementation="sliding-window", preset="tiny-bert")
    assert case_refusals(window) == ["sliding-window does not support mask:full"]
    assert measure_case(window, COUNTED).status == "unsupported"


def test_two_lengths_belong_to_an_encoder_decoder() -> None:
    with pytest.raises(UsageError, match="reads one sequence, not 8 and 9"):
        build_workload(case(preset="tiny-bert", seqlen_q=8, seqlen_k=9))


@pytest.mark.parametrize("keys", [{"preset": "tiny"}, {"preset": "tiny-bert"}, TRANSLATOR])
@pytest.mark.parametrize("implementation", ["naive", "sdpa"])
def test_checkpoints_cost_flops_and_save_memory_and_change_no_gradient(
    keys: dict[str, Any], implementation: str
) -> None:
    keys = {"seqlen_q": 64, **keys, "implementation": implementation, "mode": "fwd_bwd"}
    kept, again = (build_workload(case(**keys, checkpoint=flag)) for flag in (False, True))
    (counts_kept, outputs_kept), (counts_again, outputs_again) = (
        (count_call(each), run(each)) for each in (kept, again)
    )
    assert counts_again.call_peak_bytes < counts_kept.call_peak_bytes
    assert counts_again.flops > counts_kept.flops
    assert counts_again.mixer_flops > counts_kept.mixer_flops
    assert torch.equal(outputs_again.out, outputs_kept.out)
    assert outputs_kept.gradients is not None
    assert outputs_again.gradients is not None
    for name, gradient in outputs_kept.gradients.items():
        assert torch.equal(outputs_again.gradients[name], gradient), name


def test_a_checkpointed_layer_goes_forward_once_more_in_its_mixers() -> None:
    """Naive, forward once and backward twice: four times the forward's FLOPs instead of three."""
    forward, training, checkpointed = (
        predict_counts(case(preset="tiny", **keys))
        for keys in ({}, {"mode": "fwd_bwd"}, {"mode": "fwd_bwd", "checkpoint": True})
    )
    assert training.mixer_flops == 3 * forward.mixer_flops
    assert checkpointed.mixer_flops == 4 * forward.mixer_flops
