"""Rotary frequencies for long contexts: the formulas of the papers, and those of Hugging Face's own code."""

import math
from typing import Any

import pytest
import torch

from attnbench.contract.errors import UsageError
from attnbench.model.builder import build_model
from attnbench.model.positions import RotaryPositions, rotary_table
from attnbench.model.rope import RopeScaling, rope_scaling_from, rotary_frequencies
from attnbench.model.text import stdlib_tokens

BASE, WIDTH, ORIGINAL = 10000.0, 16, 64
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 3.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {"factor": 4.0},
    "yarn-mscale": {"factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.9, "beta_fast": 16.0, "beta_slow": 2.0},
    "longrope": {
        "factor": 4.0,
        "short_factor": [1.0 + 0.1 * i for i in range(WIDTH // 2)],
        "long_factor": [2.0 + 0.5 * i for i in range(WIDTH // 2)],
    },
}


def scaling(name: str) -> RopeScaling:
    return RopeScaling(kind=name.split("-")[0], original_max_seqlen=ORIGINAL, **SCALINGS[name])  # type: ignore[arg-type]  # a name of the table


@pytest.mark.parametrize("seqlen", [32, 64, 65, 200])
@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_are_those_of_hugging_face(name: str, seqlen: int) -> None:
    transformers = pytest.importorskip("transformers", reason="compares with the extra hf")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kind = name.split("-")[0]
    parameters = {
        "rope_type": kind,
        "rope_theta": BASE,
        "original_max_position_embeddings": ORIGINAL,
        **SCALINGS[name],
    }
    config = transformers.LlamaConfig(
        hidden_size=2 * WIDTH,
        num_attention_heads=2,
        max_position_embeddings=ORIGINAL if kind == "dynamic" else 4 * ORIGINAL,
        rope_parameters=parameters,
    )
    theirs, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=seqlen)
    ours = torch.tensor(rotary_frequencies(WIDTH, BASE, scaling(name), seqlen), dtype=torch.float64)
    torch.testing.assert_close(ours, theirs.double(), rtol=2e-6, atol=0)
    assert scaling(name).table_factor == pytest.approx(factor, rel=1e-12)


def test_linear_scaling_is_a_division_of_positions() -> None:
    stretched = rotary_table(40, WIDTH, BASE, scaling=RopeScaling(kind="linear", factor=4.0))
    torch.testing.assert_close(stretched[::4], rotary_table(10, WIDTH, BASE), rtol=1e-12, atol=1e-12)


def test_llama3_keeps_fast_pairs_and_divides_slow_ones() -> None:
    plain = rotary_frequencies(WIDTH, BASE, None, 0)
    scaled = rotary_frequencies(WIDTH, BASE, scaling("llama3"), 0)
    for frequency, found in zip(plain, scaled, strict=True):
        turns = ORIGINAL * frequency / (2 * math.pi)
        if turns >= 4:
            assert found == frequency
        elif turns <= 1:
            assert found == frequency / 8
        else:
            assert frequency / 8 < found < frequency


def test_yarn_multiplies_the_table() -> None:
    table = rotary_table(5, WIDTH, BASE, scaling=scaling("yarn"))
    assert table[0, : WIDTH // 2].tolist() == [0.1 * math.log(4) + 1] * (WIDTH // 2)


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_what_follows_the_length_changes_beyond_the_original_and_not_before(name: str) -> None:
    like = torch.zeros(1, dtype=torch.float64)

    def rows(seqlen: int) -> torch.Tensor:
        return RotaryPositions(WIDTH, BASE, scaling(name), seqlen).rows((0,), 10, like)

    assert torch.equal(rows(ORIGINAL), rows(1))
    assert not torch.equal(rows(2 * ORIGINAL), rows(ORIGINAL))


def scaled_model(name: str, core: str = "sdpa", **overrides: Any) -> Any:
    return build_model(
        "tiny", core, dtype="float64", head_dim=WIDTH, rope_scaling=scaling(name), max_seqlen=256, **overrides
    )


@pytest.mark.parametrize("room", [160, 200])
@pytest.mark.parametrize("core", ["naive", "sdpa", "linear"])
@pytest.mark.parametrize("name", SCALINGS)
@torch.no_grad()
def test_decoding_equals_one_pass_whatever_the_state_is_made_for(name: str, core: str, room: int) -> None:
    model = scaled_model(name, core)
    tokens, lengths = stdlib_tokens(2, 160), [96, 20]
    state, whole = model.new_state(2, room), model(tokens)
    first = model(tokens[:, :96], lengths, state)
    for b, n in enumerate(lengths):
        torch.testing.assert_close(first[b, :n], whole[b, :n], rtol=0, atol=1e-12)
    for size in (1, 40, 1, 3):
        begins = state.lengths
        piece = torch.stack([tokens[b, n : n + size] for b, n in enumerate(begins)])
        out = model(piece, state=state)
        for b, n in enumerate(begins):
            torch.testing.assert_close(out[b], whole[b, n : n + size], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", SCALINGS)
@torch.no_grad()
def test_neither_padding_nor_what_is_still_to_come_changes_a_row(name: str) -> None:
    model = scaled_model(name)
    tokens = stdlib_tokens(2, 120)
    padded = model(tokens, lengths=[50, 12])
    torch.testing.assert_close(padded[0, :50], model(tokens[:1, :50])[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(padded[1, :12], model(tokens[1:, :12])[0], rtol=0, atol=1e-12)
    prompt = tokens[:, :60]
    assert torch.equal(model.generate(prompt, 40)[:, :4], model.generate(prompt, 4))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "ntk"}, "kind 'ntk' is none of linear, dynamic, llama3, yarn, longrope"),
        ({"kind": "yan"}, r"did you mean 'yarn'\?"),
        ({"factor": 2.0}, "needs a kind"),
        ({"kind": "linear", "factor": 0.5}, "factor must be a number of at least 1, not 0.5"),
        ({"kind": "linear", "factro": 2.0}, r"no field 'factro' \(did you mean 'factor'\?\)"),
        ({"kind": "dynamic", "factor": 2.0}, "needs original_max_seqlen"),
        ({"kind": "llama3", "original_max_seqlen": 8, "low_freq_factor": 4.0}, "0 < low_freq_factor"),
        ({"kind": "yarn", "original_max_seqlen": 8, "beta_slow": 40.0}, "0 < beta_slow < beta_fast"),
        ({"kind": "yarn", "original_max_seqlen": 8, "attention_factor": 0.0}, "attention_factor must be"),
        ({"kind": "longrope", "original_max_seqlen": 8, "long_factor": [-1.0]}, "must hold positive numbers"),
        ("linear", "a table with a kind is needed"),
    ],
)
def test_what_cannot_be_is_refused(given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rope_scaling_from(given)


def test_a_config_checks_that_scaling_and_positions_belong_together() -> None:
    with pytest.raises(UsageError, match="rope_scaling: scales rotary positions, and position is 'learned'"):
        build_model("tiny-gpt2", rope_scaling={"kind": "linear", "factor": 2.0})
    with pytest.raises(UsageError, match="short_factor needs 4 numbers, one for each pair, not 8"):
        build_model("tiny", rope_scaling=scaling("longrope"))


def test_is_plain_data_and_back() -> None:
    for name in SCALINGS:
        assert rope_scaling_from(scaling(name).to_dict()) == scaling(name)
        assert hash(scaling(name)) == hash(scaling(name))
