"""What a preset would take, against calculations by hand."""

import pytest

from attnbench.contract.errors import UsageError
from attnbench.device.datasheets import datasheets
from attnbench.measure.estimate import MODES, THE_FIVE, Estimate, device_keys, estimate

N = 131_072
LLAMA_WEIGHTS = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
"""Of the products in the layers of LLaMA 3 8B: q and out, k and v, the feed-forward network."""
LLAMA_HEAD = 4096 * 128_256


def of_llama(implementation: str, seqlen: int = N) -> Estimate:
    return estimate("llama-3-8b", seqlen, implementation, devices=("h100-sxm5",))


def test_the_scores_and_the_cache_of_llama_at_128k() -> None:
    naive = of_llama("naive")
    assert naive.score_bytes_per_head == N * N * 2 == 34_359_738_368
    assert naive.score_bytes_per_layer == 32 * 34_359_738_368
    assert naive.score_bytes == 32 * 32 * 34_359_738_368
    assert naive.cache_bytes == 2 * 32 * 8 * 128 * N * 2 == 17_179_869_184
    for name in ("sdpa", "triton-flash", "sliding-window", "linear"):
        assert of_llama(name).score_bytes_per_head == of_llama(name).score_bytes == 0
    assert of_llama("sdpa").cache_bytes == of_llama("triton-flash").cache_bytes == naive.cache_bytes
    assert of_llama("sliding-window").cache_bytes == 2 * 32 * 8 * 128 * 4096 * 2
    # Of linear attention a state of D × (Dv + 1) float32 numbers for each key head.
    assert of_llama("linear").cache_bytes == 32 * 8 * 128 * 129 * 4


def test_the_flops_of_llama_at_128k() -> None:
    pairs = N * (N + 1) // 2
    attention = 32 * 32 * pairs * 2 * (128 + 128)
    dense = 2 * N * (LLAMA_WEIGHTS + LLAMA_HEAD)
    assert attention + dense == 6_470_935_167_107_072
    for name in ("naive", "sdpa", "triton-flash"):
        work = of_llama(name).work
        assert work["fwd"].attention_flops == attention
        assert work["fwd"].flops == attention + dense
        # Two products become four in the backward pass, one becomes two.
        assert work["fwd_bwd"].flops == 3 * (attention + dense)
        token = 2 * (LLAMA_WEIGHTS + LLAMA_HEAD) + 32 * 32 * N * 2 * (128 + 128)
        assert work["decode"].flops == token
    window = 32 * 32 * (4096 * 4097 // 2 + (N - 4096) * 4096) * 2 * (128 + 128)
    assert of_llama("sliding-window").work["fwd"].attention_flops == window
    # Each query goes through a state and each key into one.
    state = 32 * (32 + 8) * N * 2 * 128 * 129
    assert of_llama("linear").work["fwd"].attention_flops == state


def test_activations_of_llama_at_128k() -> None:
    dim, ffn, heads, kv, vocab = 4096, 14336, 4096, 1024, 128_256
    table = N * 128 * 4
    logits = N * (dim + vocab) * 2
    naive, sdpa = of_llama("naive"), of_llama("sdpa")
    assert sdpa.inference_activation_bytes == logits + table
    # Scores before and behind the mask, with it; embeddings, the layer's input, a norm's output, q, k, v.
    scores = 32 * N * N * 2
    assert naive.inference_activation_bytes == 2 * scores + N * N + N * (3 * dim + heads + 2 * kv) * 2 + table
    norms, lse = 2 * 4 * N, 32 * 4 * N
    layer = N * 2 * (4 * dim + heads + 4 * ffn) + norms
    cores = N * 2 * (heads + 2 * kv)
    rest = N * (2 * dim * 2 + 4 + 8 + 4 * vocab) + table
    assert sdpa.training_activation_bytes == 32 * (layer + cores + N * heads * 2 + lse) + rest
    assert naive.training_activation_bytes == 32 * (layer + cores + scores + N * N) + rest


def test_the_least_times_of_llama_on_an_h100() -> None:
    found = {(one.mode, one.part): one for one in of_llama("sdpa").bounds}
    assert set(found) == {(mode, part) for mode in MODES for part in ("model", "attention")}
    prefill = found["fwd", "model"]
    assert prefill.matmul_ms == pytest.approx(6_470_935_167_107_072 / 989.4e12 * 1e3)
    # Weights, tokens, logits; of the table of tokens, which is longer than the sequence or not, what is read.
    weights = (LLAMA_WEIGHTS + LLAMA_HEAD + 65 * 4096 + 128_256 * 4096) * 2
    assert prefill.memory_ms == pytest.approx((weights + N * 8 + N * 128_256 * 2) / 3.35e12 * 1e3)
    assert (prefill.lower_bound_ms, prefill.limit) == (prefill.matmul_ms, "matmul")
    token = found["decode", "model"]
    read = (LLAMA_WEIGHTS + LLAMA_HEAD + 65 * 4096 + 4096) * 2 + 17_179_869_184
    # Beside weights and cache a token, its logits, and its own key and value written.
    assert token.memory_ms == pytest.approx((read + 8 + 128_256 * 2) / 3.35e12 * 1e3, rel=1e-4)
    assert (token.lower_bound_ms, token.limit) == (token.memory_ms, "memory")
    core = found["fwd", "attention"]
    assert core.memory_ms == pytest.approx(32 * N * (2 * 4096 + 2 * 1024) * 2 / 3.35e12 * 1e3)


@pytest.mark.parametrize("preset", ["transformer-base", "bert-base", "gpt2", "qwen2.5-7b", "tiny"])
@pytest.mark.parametrize("implementation", THE_FIVE)
def test_every_preset_has_every_figure(preset: str, implementation: str) -> None:
    one = estimate(preset, 512, implementation, batch=3, window=64)
    assert one.unsupported == []
    assert (one.mask.startswith("window64")) == (implementation == "sliding-window")
    decodes = preset != "bert-base"
    assert set(one.work) == set(MODES if decodes else MODES[:2])
    assert (one.cache_bytes is not None) == decodes
    assert one.inference_activation_bytes > 0
    assert one.training_activation_bytes > one.score_bytes
    assert len(one.bounds) == len(datasheets()) * len(one.work) * 2
    assert all(bound.lower_bound_ms == max(bound.matmul_ms, bound.memory_ms) > 0 for bound in one.bounds)


def test_float32_may_go_through_tf32_three_for_one() -> None:
    bounds = {
        dtype: estimate("tiny", 512, "sdpa", dtype=dtype, devices=("a100-sxm4-80gb",)).bounds[0]
        for dtype in ("float32", "bfloat16")
    }
    assert bounds["float32"].matmul_ms == pytest.approx(bounds["bfloat16"].matmul_ms * 312 / (156 / 3))
    assert estimate("tiny", 512, "sdpa", dtype="float64").bounds == []


def test_what_cannot_run_says_why_and_has_no_figures() -> None:
    one = estimate("tiny", 64, "triton-flash", dtype="float64")
    assert one.unsupported
    assert (one.score_bytes, one.cache_bytes, one.training_activation_bytes) == (None, None, None)
    assert (one.work, one.bounds) == ({}, [])


def test_a_family_of_devices_has_one_name() -> None:
    assert device_keys("h100") == ["h100-sxm5", "h100-pcie", "h100-nvl"]
    assert device_keys("H200") == device_keys("NVIDIA H200") == ["h200"]
    assert device_keys("rtx-6000-ada") == ["rtx-6000-ada"]
    with pytest.raises(UsageError, match=r"unknown device 'h10' \(did you mean 'h100'\?\)"):
        device_keys("h10")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"preset": "lama-3-8b"}, "did you mean 'llama-3-8b'"),
        ({"implementation": "naiv"}, "did you mean 'naive'"),
        ({"dtype": "bfloat"}, "did you mean 'bfloat16'"),
        ({"seqlen": 0}, "seqlen: at least 1"),
        ({"seqlen": 1 << 40}, "seqlen: at most 16384k"),
        ({"batch": 0}, "batch: at least 1"),
        ({"window": 0}, "window: at least 1"),
    ],
    ids=str,
)
def test_a_mistake_names_what_was_meant(changes, complaint) -> None:
    with pytest.raises(UsageError, match=complaint):
        estimate(**({"preset": "tiny", "seqlen": 64, "implementation": "naive"} | changes))
