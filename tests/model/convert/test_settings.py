"""What a model of Hugging Face can do and ours cannot is refused in one line, never dropped."""

import pytest
import torch

from attnbench.contract.errors import UsageError
from attnbench.contract.masks import Causal, SlidingWindow
from attnbench.model.convert import from_huggingface


def window(zoo, **fields):
    return zoo("Qwen2ForCausalLM", use_sliding_window=True, sliding_window=5, **fields)


def test_a_window_in_all_layers_is_the_mask(zoo):
    assert from_huggingface(window(zoo, max_window_layers=0)).config.mask == SlidingWindow(5)
    assert from_huggingface(window(zoo, max_window_layers=2)).config.mask == Causal()
    assert from_huggingface(zoo("Qwen2ForCausalLM", sliding_window=5)).config.mask == Causal()


def test_layers_of_different_masks(zoo):
    with pytest.raises(UsageError, match=r"1 of 2 layers have a sliding window \(5\)"):
        from_huggingface(window(zoo, max_window_layers=1))


@pytest.mark.parametrize(
    ("class_name", "fields", "message"),
    [
        ("LlamaForCausalLM", {"hidden_act": "gelu"}, "hidden_act must be silu"),
        ("LlamaForCausalLM", {"hidden_act": "tanh"}, "hidden_act 'tanh' is none of"),
        ("BertModel", {"is_decoder": True}, "is_decoder = True cannot be carried over"),
        ("BertForSequenceClassification", {}, "there are BertForMaskedLM, BertModel, not BertForSequence"),
        ("MarianMTModel", {"decoder_ffn_dim": 8}, "encoder_ffn_dim = 40 and decoder_ffn_dim = 8"),
        ("MarianMTModel", {"decoder_attention_heads": 2}, "encoder_attention_heads = 4 and decoder"),
    ],
)
def test_what_cannot_be_carried_over(hf, zoo, class_name, fields, message):
    if class_name == "BertForSequenceClassification":
        model = hf.BertForSequenceClassification(zoo("BertModel").config)
    else:
        model = zoo(class_name, **fields)
    with pytest.raises(UsageError, match=message):
        from_huggingface(model)


def test_a_head_that_says_it_is_tied_and_is_not(zoo):
    model = zoo("GPT2LMHeadModel", tie_word_embeddings=False)
    model.config.tie_word_embeddings = True
    with pytest.raises(UsageError, match=r"tie_word_embeddings: .*pass tied_embeddings=False"):
        from_huggingface(model)
    untied = from_huggingface(model, tied_embeddings=False)
    assert torch.equal(untied.head.weight, model.lm_head.weight)


def test_things_that_are_no_models_of_hugging_face():
    with pytest.raises(UsageError, match=r"Linear has no config of Hugging Face; from_torch takes modules"):
        from_huggingface(torch.nn.Linear(2, 2))
    with pytest.raises(UsageError, match="a model of Hugging Face or a folder, not dict"):
        from_huggingface({})  # type: ignore[arg-type]  # what is refused


def test_overrides_that_no_config_has(zoo):
    with pytest.raises(UsageError, match=r"msak: no field of TransformerConfig.*did you mean 'mask'"):
        from_huggingface(zoo("GPT2Model"), msak=Causal())
