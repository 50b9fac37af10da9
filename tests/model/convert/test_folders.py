"""Folders of JSON and safetensors: whole, in shards, and of old; what is broken is named."""

import json
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from attnbench.contract.errors import UsageError
from attnbench.model.convert import from_huggingface

CLASSES = ("GPT2LMHeadModel", "LlamaForCausalLM", "Qwen2Model", "BertForMaskedLM", "MarianMTModel")


def same(one, other):
    ours, theirs = one.state_dict(), other.state_dict()
    assert one.config == other.config
    assert list(ours) == list(theirs)
    return all(torch.equal(ours[name], theirs[name]) for name in ours)


def rewrite(folder, **fields):
    path = folder / "config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: value for name, value in config.items() if value != "absent"}))


@pytest.fixture
def folder(zoo, tmp_path):
    """A GPT-2 as save_pretrained writes it."""
    zoo("GPT2LMHeadModel").save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("size", ["1GB", "20KB"], ids=["whole", "shards"])
@pytest.mark.parametrize("class_name", CLASSES)
def test_a_folder_is_its_model_and_needs_no_transformers(zoo, tmp_path, monkeypatch, class_name, size):
    model = zoo(class_name)
    model.save_pretrained(tmp_path, max_shard_size=size)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (size == "20KB")
    expected = from_huggingface(model)
    monkeypatch.setitem(sys.modules, "transformers", None)  # importing it would fail
    assert same(from_huggingface(tmp_path), expected)
    assert same(from_huggingface(str(tmp_path)), expected)


def test_gpt2_of_old_has_no_prefix_and_keeps_its_masks(zoo, folder):
    path = folder / "model.safetensors"
    weights = {name.removeprefix("transformer."): tensor for name, tensor in load_file(path).items()}
    masks = {f"h.{i}.attn.bias": torch.ones(1, 1, 32, 32).tril() for i in range(2)}
    save_file(weights | masks, path)
    assert same(from_huggingface(folder), from_huggingface(zoo("GPT2LMHeadModel")))


def test_bert_of_old_calls_the_parameters_of_its_norms_gamma_and_beta(zoo, tmp_path):
    model = zoo("BertForMaskedLM")
    model.save_pretrained(tmp_path)
    weights = {}
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        leaf = {"weight": "gamma", "bias": "beta"}[name.rpartition(".")[2]] if "LayerNorm" in name else None
        weights[name if leaf is None else f"{name.rpartition('.')[0]}.{leaf}"] = tensor
    left_behind = {"cls.seq_relationship.weight": torch.ones(2, 24), "bert.pooler.dense.bias": torch.ones(24)}
    save_file(weights | left_behind, tmp_path / "model.safetensors")
    assert same(from_huggingface(tmp_path), from_huggingface(model))


def test_llama_of_old_keeps_its_rotary_settings_elsewhere(zoo, tmp_path):
    model = zoo(
        "LlamaForCausalLM", rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 77.0}
    )
    model.save_pretrained(tmp_path)
    old = {"type": "linear", "factor": 2.0}
    rewrite(tmp_path, rope_parameters="absent", rope_theta=77.0, rope_scaling=old)
    assert same(from_huggingface(tmp_path), from_huggingface(model))


def test_a_folder_that_is_none(tmp_path):
    with pytest.raises(UsageError, match="'openai/gpt2' is no folder; nothing is downloaded"):
        from_huggingface("openai/gpt2")
    with pytest.raises(UsageError, match=r"has no config\.json"):
        from_huggingface(tmp_path)


def test_pickles_are_refused_unread(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(UsageError, match=r"has neither model\.safetensors nor"):
        from_huggingface(folder)
    (folder / "pytest_model.bin").write_bytes(b"not even a pickle")
    with pytest.raises(UsageError, match=r"pytest_model\.bin: a pickle can run code .*safetensors"):
        from_huggingface(folder)
    with pytest.raises(UsageError, match="a pickle can run code"):
        from_huggingface(folder / "pytest_model.bin")


def test_files_that_hold_something_else(folder):
    (folder / "model.safetensors").write_bytes(b"PK\x03\x04 a zip, or whatever")
    with pytest.raises(UsageError, match=r"model\.safetensors: no safetensors file"):
        from_huggingface(folder)
    (folder / "config.json").write_text("[1, 2]")
    with pytest.raises(UsageError, match=r"config\.json: a table of fields is needed, not list"):
        from_huggingface(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(UsageError, match=r"config\.json: no JSON"):
        from_huggingface(folder)


def test_an_index_that_lies(folder):
    index = folder / "model.safetensors.index.json"
    for outside in ("../model.safetensors", "", ".", ".."):
        index.write_text(json.dumps({"weight_map": {"transformer.wte.weight": outside}}))
        with pytest.raises(UsageError, match=f"{outside!r} is no file of the folder"):
            from_huggingface(folder)
    index.write_text(json.dumps({"weight_map": {"transformer.wte.weight": "model-2.safetensors"}}))
    with pytest.raises(UsageError, match=r"model-2\.safetensors: no such file"):
        from_huggingface(folder)
    index.write_text(json.dumps({"weight_map": {"transformer.xyz": "model.safetensors"}}))
    with pytest.raises(UsageError, match=r"named but in no file: transformer\.xyz"):
        from_huggingface(folder)
    index.write_text("{}")
    with pytest.raises(UsageError, match="weight_map must name a file"):
        from_huggingface(folder)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "gpt"}, r"model_type 'gpt' is none of bert, gpt2.*did you mean 'gpt2'"),
        ({"model_type": "absent"}, "model_type '' is none of"),
        ({"model_type": ["gpt2"]}, r"model_type \['gpt2'\] is none of"),
        (
            {"architectures": ["GPT2ForTokenClassification"]},
            "there are GPT2LMHeadModel, GPT2Model, not GPT2For",
        ),
        ({"architectures": "absent"}, r"architectures in config\.json must name one class, not \[\]"),
        ({"n_embd": "absent"}, "the config has no n_embd"),
        ({"n_embd": "wide"}, "dim: must be a whole number"),
        ({"quantization_config": {"bits": 4}}, "quantised weights are not unpacked"),
        (
            {"scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx = True cannot be carried",
        ),
        ({"activation_function": "gelu_old"}, "'gelu_old' is none of gelu, gelu_new"),
        ({"activation_function": ["relu"]}, r"activation_function \['relu'\] is none of"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false, not 'no'"),
        ({"add_cross_attention": "no"}, "add_cross_attention must be true or false, not 'no'"),
        ({"n_layer": 3}, r"missing: decoder\.layers\.2\.mixer_norm\.weight, .*nothing was loaded"),
        ({"n_layer": 1}, r"extra: (decoder\.layers\.1\.[\w.]+, ){15}decoder\.layers\.1\.[\w.]+; nothing"),
        ({"vocab_size": 60}, r"embeddings\.token\.weight is \[61, 24\], not \[60, 24\]"),
        ({"tie_word_embeddings": False}, r"missing: head\.weight; nothing was loaded"),
    ],
)
def test_configs_that_do_not_fit(folder, fields, message):
    rewrite(folder, **fields)
    with pytest.raises(UsageError, match=message):
        from_huggingface(folder)
