"""Outputs and generated tokens are those of Hugging Face's own code, on the same random weights."""

from typing import Any

import pytest
import torch

from attnbench.contract.masks import SlidingWindow
from attnbench.model.convert import from_huggingface

FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", {}),
    "gpt2-base": ("GPT2Model", {}),
    "gpt2-relu-unscaled": ("GPT2LMHeadModel", {"activation_function": "relu", "scale_attn_weights": False}),
    "gpt2-untied-inner": ("GPT2LMHeadModel", {"tie_word_embeddings": False, "n_inner": 20}),
    "llama": ("LlamaForCausalLM", {}),
    "llama-base": ("LlamaModel", {}),
    "llama-grouped-wide": ("LlamaForCausalLM", {"num_key_value_heads": 2, "head_dim": 10}),
    "llama-biases-tied": (
        "LlamaForCausalLM",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "qwen2": ("Qwen2ForCausalLM", {"num_key_value_heads": 2}),
    "qwen2-base": ("Qwen2Model", {"num_key_value_heads": 1}),
    "qwen2-window": (
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0, "num_key_value_heads": 4},
    ),
    "bert": ("BertForMaskedLM", {}),
    "bert-base": ("BertModel", {}),
    "bert-relu-untied": ("BertForMaskedLM", {"hidden_act": "relu", "tie_word_embeddings": False}),
    "bert-one-segment": ("BertForMaskedLM", {"type_vocab_size": 1, "hidden_act": "gelu_new"}),
}
TRANSLATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "swish-scaled": ("MarianMTModel", {"activation_function": "swish", "scale_embedding": True}),
    "gelu": ("MarianMTModel", {"activation_function": "gelu"}),
    "odd-width": (
        "MarianMTModel",
        {"d_model": 15, "encoder_attention_heads": 3, "decoder_attention_heads": 3},
    ),
    "two-vocabularies": (
        "MarianMTModel",
        {
            "activation_function": "relu",
            "share_encoder_decoder_embeddings": False,
            "decoder_vocab_size": 67,
        },
    ),
    "untied": ("MarianMTModel", {"tie_word_embeddings": False, "decoder_vocab_size": 61}),
    "base": ("MarianModel", {}),
}
SOFTMAX = ("naive", "sdpa", "sdpa-math", "sdpa-flash", "triton-flash", "sliding-window")


def output(result):
    """Logits, or what the last layer of a base class gives."""
    return result["logits"] if "logits" in result else result["last_hidden_state"]


@torch.no_grad()
def theirs(model, tokens, valid, **given):
    return output(model(input_ids=tokens, attention_mask=valid.long(), **given))


@torch.no_grad()
@pytest.mark.parametrize("form", FORMS)
def test_outputs_at_valid_positions(zoo, dtype, tokens, valid, agree, form):
    class_name, fields = FORMS[form]
    model = zoo(class_name, **fields)
    ours = from_huggingface(model)
    assert next(ours.parameters()).dtype == dtype
    agree(ours(tokens, lengths=valid)[valid], theirs(model, tokens, valid)[valid])
    agree(ours(tokens[:, :1]), theirs(model, tokens[:, :1], valid[:, :1]))


@torch.no_grad()
@pytest.mark.parametrize("form", TRANSLATORS)
def test_translations_at_valid_positions(zoo, dtype, tokens, valid, agree, form):
    class_name, fields = TRANSLATORS[form]
    model = zoo(class_name, **fields)
    target, target_lengths = tokens.flip(1)[:, :9], [9, 2, 5]
    expected = theirs(model, tokens, valid, decoder_input_ids=target)
    actual = from_huggingface(model)(tokens, target, valid, target_lengths)
    for row, count in enumerate(target_lengths):
        agree(actual[row, :count], expected[row, :count])


@torch.no_grad()
def test_segments(zoo, dtype, tokens, valid, agree):
    model = zoo("BertModel")
    segments = (torch.arange(12) >= 4).long().expand(3, -1)
    expected = theirs(model, tokens, valid, token_type_ids=segments)
    actual = from_huggingface(model)(tokens, lengths=valid, segments=segments)
    agree(actual[valid], expected[valid])
    assert (expected - theirs(model, tokens, valid))[valid].abs().max() > 0.1


@torch.no_grad()
@pytest.mark.parametrize("dtype", ["float32"], indirect=True)
@pytest.mark.parametrize("name", SOFTMAX)
@pytest.mark.parametrize("form", ["gpt2", "llama-grouped-wide", "bert", "marian"])
def test_every_softmax_implementation(zoo, dtype, tokens, valid, agree, form, name):
    tokens, valid = tokens[:2, :9], valid[:2, :9]
    windows = {"mask": SlidingWindow(16), "encoder_mask": SlidingWindow(16, causal=False)}
    overrides: dict[str, Any] = windows if name == "sliding-window" else {}
    if form == "marian":
        model = zoo("MarianMTModel")
        expected = theirs(model, tokens, valid, decoder_input_ids=tokens.flip(1))
        actual = from_huggingface(model, name, **overrides)(tokens, tokens.flip(1), valid)
        agree(actual, expected)
    else:
        class_name, fields = FORMS[form]
        model = zoo(class_name, **fields)
        actual = from_huggingface(model, name, **overrides)(tokens, lengths=valid)
        agree(actual[valid], theirs(model, tokens, valid)[valid])


def test_padding_changes_nothing_at_valid_positions(zoo, tokens, valid):
    ours = from_huggingface(zoo("BertForMaskedLM"), "sdpa")
    other = torch.where(valid, tokens, 59)
    assert not torch.equal(other, tokens)
    assert torch.equal(ours(tokens, lengths=valid)[valid], ours(other, lengths=valid)[valid])


@pytest.mark.parametrize("form", ["gpt2", "llama-grouped-wide"])
def test_greedy_continuations_of_prompts_of_mixed_lengths(zoo, dtype, tokens, valid, form):
    class_name, fields = FORMS[form]
    model = zoo(class_name, **fields)
    found = from_huggingface(model).generate(tokens, 10, lengths=valid)
    for row, count in enumerate(valid.sum(1).tolist()):
        prompt = tokens[row : row + 1, :count]
        whole = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=10, pad_token_id=0
        )
        assert torch.equal(found[row], whole[0, count:])
    assert len(found.unique()) > 5


def test_greedy_translations(zoo, dtype, tokens, valid):
    # Tied, deeper or with wider layers, so small a model repeats one token for ever.
    narrow = {"decoder_layers": 1, "encoder_ffn_dim": 4, "decoder_ffn_dim": 4}
    model = zoo("MarianMTModel", scale_embedding=True, tie_word_embeddings=False, **narrow)
    whole = model.generate(
        tokens, attention_mask=valid.long(), do_sample=False, num_beams=1, max_new_tokens=10
    )
    found = from_huggingface(model).generate(tokens, 10, lengths=valid)
    assert torch.equal(found, whole[:, 1:])
    assert len(found.unique()) > 3


def test_dtype_is_that_of_the_model_unless_given(zoo):
    model = zoo("GPT2Model").half()
    assert from_huggingface(model).embeddings.token.weight.dtype == torch.float16
    assert from_huggingface(model, dtype="bfloat16").embeddings.token.weight.dtype == torch.bfloat16


def test_sizes_follow_the_model(zoo):
    config = from_huggingface(zoo("LlamaForCausalLM", num_key_value_heads=2, rms_norm_eps=1e-4)).config
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 6)
    assert (config.norm_eps, config.ffn_dim, config.max_seqlen) == (1e-4, 40, 32)
    translator = from_huggingface(zoo("MarianMTModel")).config
    assert (translator.start_token, translator.num_encoder_layers, translator.num_layers) == (60, 2, 3)
