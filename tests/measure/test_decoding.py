"""Decoding at three levels: a step behind a drawn context is the last row of the whole, again and again."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attnbench.contract.errors import UsageError
from attnbench.contract.state import state_bytes
from attnbench.contract.steps import reading
from attnbench.measure.counting import count_call
from attnbench.measure.decoding import filled_state
from attnbench.measure.inputs import draw
from attnbench.measure.memory import measure_memory, predict_counts
from attnbench.measure.pipeline import measure_case
from attnbench.measure.prepared import Outputs, Workload, tensors_of
from attnbench.measure.reference_module import reference_outputs
from attnbench.measure.workload import build_workload
from attnbench.model.positions import rotary_table, rotate
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings

COUNTED = MeasureSettings(metrics=("memory", "agreement"))
WINDOW = {"name": "sliding-window", "window_size": 7}
FIVE = ["naive", "sdpa", "linear", "sliding-window", "triton-flash"]
LSTM = "tests/toys/lstm_mixer.py"


def case(implementation: str = "naive", **keys: Any) -> Case:
    window = {"mask": WINDOW} if implementation == "sliding-window" else {}
    core = {} if keys.get("level", "attention") != "attention" else {"num_heads": 4, "num_kv_heads": 2}
    shape = {"seqlen_q": 1, "seqlen_k": 30, "batch": 2, **({"head_dim": 16} if core else {})}
    return Case.from_dict(
        {"implementation": implementation, "mode": "decode", **core, **window, **shape, **keys}
    )


def run(workload: Workload) -> Outputs:
    with workload.environment():
        workload.prepare()
        return workload.call()


@pytest.mark.parametrize("implementation", FIVE)
@pytest.mark.parametrize("key_lengths", [None, (30, 4)])
def test_a_core_decodes_the_last_row_of_every_sequence(
    implementation: str, key_lengths: tuple[int, ...] | None
) -> None:
    """Against one pass over all keys, from positions that the contexts say."""
    workload = build_workload(case(implementation, key_lengths=key_lengths))
    starts = tuple(n - 1 for n in key_lengths or (30, 30))
    whole = workload.problem.replace(mode="fwd", query_start=starts)
    q, k, v = (workload.inputs[name] for name in "qkv")
    expected = workload.implementation.attention(q, k, v, problem=whole).out
    torch.testing.assert_close(run(workload).out, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("level", "implementation"),
    [
        *(
            (level, name)
            for level in ("attention", "model")
            for name in ("naive", "linear", "sliding-window")
        ),
        ("block", "naive"),
        ("block", LSTM),
        ("model", LSTM),
    ],
)
def test_a_call_repeats_itself_because_the_state_is_put_back(level: str, implementation: str) -> None:
    preset = {} if level == "attention" else {"preset": "tiny"}
    workload = build_workload(case(implementation, level=level, key_lengths=(30, 4), **preset))
    first = run(workload).out
    for _ in range(2):
        assert torch.equal(first, run(workload).out)
    assert not workload.repeatable, "a call without it would be a token further on"


def heads(x: Tensor, count: int) -> Tensor:
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def test_a_layer_attends_to_what_was_drawn_and_to_its_new_token() -> None:
    """tiny by hand: 4 heads on 2, 8 wide, rotary; keys in a state are rotated already."""
    of = case(level="block", preset="tiny", key_lengths=(30, 4), dtype="float64")
    workload = build_workload(of, seed=3)
    block: Any = workload.module
    mixer, x = block.mixer, workload.inputs["x"]
    drawn_k, drawn_v = (
        heads(draw("normal", (2, 30, 2, 8), "float64", seed=3, name=f"context.{name}").flatten(2), 2)
        for name in "kv"
    )
    table = rotary_table(30, 8, 10000.0)
    with torch.no_grad():
        normed = block.mixer_norm(x)
        rows = []
        for b, length in enumerate((30, 4)):
            q, k, v = (
                heads(projection(normed[b : b + 1]), count)
                for projection, count in ((mixer.q_proj, 4), (mixer.k_proj, 2), (mixer.v_proj, 2))
            )
            here = table[length - 1 : length]
            keys = torch.cat((drawn_k[b : b + 1, :, : length - 1], rotate(k, here)), dim=2)
            values = torch.cat((drawn_v[b : b + 1, :, : length - 1], v), dim=2)
            keys, values = (each.repeat_interleave(2, dim=1) for each in (keys, values))
            weights = (rotate(q, here) @ keys.transpose(-1, -2) * 8**-0.5).softmax(dim=-1)
            rows.append((weights @ values).transpose(1, 2).flatten(2))
        y = x + mixer.out_proj(torch.cat(rows))
        expected = y + block.ffn(block.ffn_norm(y))
    torch.testing.assert_close(run(workload).out, expected, rtol=1e-12, atol=1e-12)


def test_every_state_holds_contents_of_its_own() -> None:
    of = case(level="model", preset="tiny-translator")
    model: Any = build_workload(of).module
    one, other = (filled_state(model, of, seed) for seed in (0, 1))
    kept = [
        x
        for state in (one, other)
        for layer in state.layers
        for x in (layer.mixer.core.k[:, :, :20], layer.cross.keys_values[0][:, :, :20])
    ]
    assert len({tuple(x.flatten().tolist()) for x in kept}) == len(kept) == 8
    assert one.lengths == (29, 29)
    assert one.source_lengths == (30, 30)


@pytest.mark.parametrize(
    ("implementation", "level", "preset"),
    [
        *((name, "model", preset) for name in FIVE for preset in ("tiny", "tiny-translator")),
        *((name, "block", "tiny-translator") for name in ("naive", "linear", "sliding-window")),
        ("naive", "model", "tiny-gpt2"),
        (LSTM, "block", "tiny"),
        (LSTM, "model", "tiny"),
    ],
)
def test_steps_agree_with_the_float64_twin(implementation: str, level: str, preset: str) -> None:
    lengths = None if implementation == "triton-flash" else (30, 9)
    record = measure_case(case(implementation, level=level, preset=preset, key_lengths=lengths), COUNTED)
    assert (record.status, record.reason) == ("ok", None)
    assert record.agreement is not None
    assert record.agreement.verdict == "ok"


def test_the_twin_decodes_from_the_whole_context_not_from_a_ring() -> None:
    """Exact where the window's own state keeps 7 positions of 30."""
    workload = build_workload(case("sliding-window", level="model", preset="tiny", dtype="float64"))
    truth, _ = reference_outputs(workload)
    torch.testing.assert_close(run(workload).out, truth.out, rtol=1e-12, atol=1e-12)
    largest = max(tensors_of(workload.state), key=lambda x: x.numel())
    assert largest.shape == (2, 2, 7, 8)


def held_bytes(implementation: str, seqlen: int, **keys: Any) -> int:
    of = case(implementation, seqlen_k=seqlen, **keys)
    workload = build_workload(of)
    section = measure_memory(workload, count_call(workload), None)
    assert section.state_bytes is not None
    return section.state_bytes


@pytest.mark.parametrize("implementation", FIVE)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_state_bytes_are_those_of_the_tensors(implementation: str, dtype: str) -> None:
    of = case(implementation, dtype=dtype)
    expected = state_bytes(build_workload(of, fake=True).implementation, of.problem(), 30)
    assert held_bytes(implementation, 30, dtype=dtype) == expected


def test_state_bytes_of_a_model_are_those_of_its_layers() -> None:
    """tiny-translator: 2 layers, 4 heads, 8 wide, keys and values of target and of source."""
    cache = 2 * 2 * 4 * 30 * 8 * 4
    assert held_bytes("naive", 30, level="model", preset="tiny-translator") == 2 * 2 * cache
    assert held_bytes("naive", 30, level="block", preset="tiny-translator") == 2 * cache
    assert held_bytes(LSTM, 30, level="model", preset="tiny") == 2 * 2 * 2 * 32 * 4


@pytest.mark.parametrize("key_lengths", [None, (30, 9)])
def test_linear_holds_sums_of_target_and_source(key_lengths: tuple[int, ...] | None) -> None:
    sums = 2 * 4 * 8 * (8 + 1) * 4
    form: dict[str, Any] = {"preset": "tiny-translator", "key_lengths": key_lengths}
    assert held_bytes("linear", 30, level="model", **form) == 2 * 2 * sums
    assert held_bytes("linear", 30, level="block", **form) == 2 * sums


@pytest.mark.parametrize("level", ["block", "model"])
def test_a_step_of_linear_takes_the_same_however_long_the_source(level: str) -> None:
    short, long = (
        predict_counts(case("linear", level=level, preset="tiny-translator", seqlen_k=n)) for n in (200, 2000)
    )
    assert (short.flops, short.operand_bytes) == (long.flops, long.operand_bytes)
    assert short.call_peak_bytes - short.resident_bytes == long.call_peak_bytes - long.resident_bytes


@pytest.mark.parametrize("seqlen_q", [1, 3])
@pytest.mark.parametrize("implementation", ["naive", "sdpa", "linear"])
def test_counts_of_a_layer_s_step_are_those_of_its_attentions(implementation: str, seqlen_q: int) -> None:
    """Of tiny-translator, 32 wide: queries are projected twice, keys and values of new tokens once."""
    of = case(implementation, level="block", preset="tiny-translator", seqlen_q=seqlen_q)
    workload = build_workload(of)
    stated = sum(one.cost.executed_flops or 0 for one in workload.attentions)
    projections = (4 + 2) * 2 * 2 * seqlen_q * 32 * 32
    assert count_call(workload).mixer_flops == stated + projections


def test_what_is_stated_of_cross_attention_while_decoding() -> None:
    """No key is added: a state of sums is read; keys and values are attended to, none is written."""
    for implementation in ("linear", "sdpa", "naive"):
        of = case(implementation, level="block", preset="tiny-translator", key_lengths=(30, 9))
        one = next(one for one in build_workload(of, fake=True).attentions if one.place == "cross")
        if implementation == "linear":
            assert one.asked == reading(one.problem)
            assert one.cost.flops == one.cost.executed_flops == 2 * 8 * 9 * 2 * 4
            assert one.cost.compulsory_bytes == 4 * 2 * 4 * (8 + 8 + 8 * 9)
        else:
            assert one.asked == one.problem
            assert one.cost == one.implementation.cost(one.problem.replace(mode="fwd"))
            assert one.cost.flops == 4 * 8 * 4 * (30 + 9)
            assert one.cost.compulsory_bytes == 4 * 4 * 8 * (2 * 2 + 2 * (30 + 9))


@pytest.mark.parametrize("level", ["attention", "block", "model"])
def test_a_window_and_a_sum_hold_the_same_however_long_the_context(level: str) -> None:
    preset = {} if level == "attention" else {"preset": "tiny"}
    for implementation, grows in (("sliding-window", False), ("linear", False), ("naive", True)):
        short, long = (held_bytes(implementation, n, level=level, **preset) for n in (20, 200))
        assert long == (10 * short if grows else short)


@pytest.mark.parametrize("implementation", ["naive", "sdpa", "linear", "sliding-window"])
@pytest.mark.parametrize("level", ["attention", "block", "model"])
def test_the_prediction_is_what_happens(implementation: str, level: str) -> None:
    preset = {} if level == "attention" else {"preset": "tiny-translator"}
    of = case(implementation, level=level, key_lengths=(30, 9), **preset)
    real, fake = count_call(build_workload(of)), predict_counts(of)
    assert real.resident_bytes == fake.resident_bytes
    assert real.flops == fake.flops
    assert real.call_peak_bytes == fake.call_peak_bytes


def test_resident_is_the_state_and_one_token_not_the_context_beside_it() -> None:
    workload = build_workload(case(batch=1))
    token = (4 + 2 + 2) * 16 * 4
    assert count_call(workload).resident_bytes == token + 2 * 2 * 30 * 16 * 4


@pytest.mark.parametrize("implementation", ["naive", "sdpa", "linear", "sliding-window"])
def test_counts_of_a_core_s_step_are_those_of_its_closed_forms(implementation: str) -> None:
    """Copies that put the state back are in none of them."""
    workload = build_workload(case(implementation, num_kv_heads=4))
    counted, cost = count_call(workload), workload.implementation.cost(workload.problem)
    assert counted.flops == cost.executed_flops
    assert counted.operand_bytes == cost.operand_bytes
    assert counted.call_peak_bytes - counted.resident_bytes == cost.peak_bytes


def test_operand_bytes_of_a_step_follow_the_state() -> None:
    """A cache is read whole, in two products; a window reads as much at 20 tokens as at 200."""
    for implementation, factor in (("naive", 10.0), ("sliding-window", 1.0), ("linear", 1.0)):
        short, long = (
            predict_counts(case(implementation, seqlen_k=n, mask=mask)).operand_bytes
            for n in (200, 2000)
            for mask in [WINDOW if implementation == "sliding-window" else {"name": "causal"}]
        )
        assert long / short == pytest.approx(factor, rel=0.1)


@pytest.mark.parametrize("preset", ["tiny", "tiny-translator"])
def test_a_step_of_a_window_takes_the_same_however_long_the_context(preset: str) -> None:
    """No table of positions is made in it either. (Cross-attention sees the whole source, by sdpa.)"""
    short, long = (
        predict_counts(case("sliding-window", level="model", preset=preset, seqlen_k=n)) for n in (200, 2000)
    )
    assert short.call_peak_bytes - short.resident_bytes == long.call_peak_bytes - long.resident_bytes


def test_a_chunk_of_tokens_is_a_step_too() -> None:
    workload = build_workload(case(seqlen_q=3))
    q, k, v = (workload.inputs[name] for name in "qkv")
    expected = F.scaled_dot_product_attention(
        q, k, v, attn_mask=torch.ones(3, 30, dtype=torch.bool).tril(27), enable_gqa=True
    )
    torch.testing.assert_close(run(workload).out, expected, rtol=1e-5, atol=1e-6)


def test_an_encoder_does_not_decode() -> None:
    record = measure_case(case(level="model", preset="tiny-bert"), COUNTED)
    assert (record.status, record.reason) == (
        "unsupported",
        "an encoder reads whole sequences: it has no mode decode",
    )


@pytest.mark.parametrize("level", ["attention", "model"])
def test_contexts_hold_their_new_token(level: str) -> None:
    preset = {} if level == "attention" else {"preset": "tiny"}
    with pytest.raises(UsageError, match="contexts hold what is new, so at least 1, not 0"):
        build_workload(case(level=level, key_lengths=(30, 0), **preset))


def test_learned_positions_are_as_many_as_the_context_needs() -> None:
    workload = build_workload(case("sdpa", level="model", preset="tiny-gpt2", seqlen_k=700), seed=1)
    assert run(workload).out.shape == (2, 1, 256)
