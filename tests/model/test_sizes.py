"""Sizes in closed form are those of modules: parameters, FLOPs, what autograd keeps, what is alive."""

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from attnbench.measure.attentions import attentions_of
from attnbench.measure.flop_counter import FlopCounter
from attnbench.measure.memory import predict_counts
from attnbench.model.builder import build_model
from attnbench.model.config import TransformerConfig
from attnbench.model.presets import load_preset, preset_names
from attnbench.model.sizes import (
    Tokens,
    dense_flops,
    loss_bytes,
    num_parameters,
    peak_bytes,
    read_parameters,
    saved_bytes,
)
from attnbench.plan.case import Case

BATCH, SEQLEN, SOURCE = 2, 24, 40
FORMS = ("tiny", "tiny-gpt2", "tiny-bert", "tiny-translator")


def tokens_of(config: TransformerConfig, seqlen: int = SEQLEN, source: int = SOURCE) -> Tokens:
    if config.architecture != "encoder-decoder":
        return Tokens(own=BATCH * seqlen, positions=seqlen)
    return Tokens(own=BATCH * seqlen, source=BATCH * source, positions=max(seqlen, source))


def call(name: str, model: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    own, source = (torch.randint(0, 256, (BATCH, n), generator=generator) for n in (SEQLEN, SOURCE))
    out: torch.Tensor = model(source, own) if name == "tiny-translator" else model(own)
    return out


def case_of(name: str, **keys: Any) -> Case:
    lengths = {"seqlen_k": SOURCE} if name == "tiny-translator" else {}
    form: dict[str, Any] = {"level": "model", "preset": name, "seqlen_q": SEQLEN, "batch": BATCH, **lengths}
    return Case(**(form | keys))


@pytest.mark.parametrize("name", preset_names())
def test_parameters_are_those_of_the_module(name: str) -> None:
    with FakeTensorMode():
        assert num_parameters(load_preset(name)) == build_model(name).param_count


@pytest.mark.parametrize(
    "changes",
    [
        {"tied_embeddings": False, "head_bias": True},
        {"qkv_bias": False, "out_bias": False, "ffn_bias": False, "norm_bias": False},
        {"num_kv_heads": 2, "head_dim": 6, "head_dim_v": 10, "ffn_dim": 48},
        {"norm_position": "post", "embedding_norm": True, "head": "none"},
        {"architecture": "encoder-decoder", "num_encoder_layers": 3, "source_vocab_size": 77},
        {"architecture": "encoder-decoder", "shared_embeddings": False, "position": "learned"},
        {"vocab_size": 0},
    ],
    ids=str,
)
def test_so_they_are_whatever_a_field_says(changes: dict[str, Any]) -> None:
    config = load_preset("tiny-gpt2").replace(**changes)
    with FakeTensorMode():
        assert num_parameters(config) == build_model(config).param_count


def test_a_table_that_is_looked_up_is_read_by_rows() -> None:
    config = load_preset("llama-3-8b")
    whole = num_parameters(config)
    assert whole == 8_030_261_248
    assert read_parameters(config, Tokens(own=1, positions=1)) == whole - (128_256 - 1) * 4096
    assert read_parameters(config, Tokens(own=200_000, positions=200_000)) == whole
    tied = load_preset("gpt2")
    assert read_parameters(tied, Tokens(own=1, positions=1)) == num_parameters(tied) - 1023 * 768


@pytest.mark.parametrize("name", FORMS)
def test_flops_outside_of_attention_are_what_a_counter_counts(name: str) -> None:
    with FlopCounter() as counter:
        call(name, build_model(name))
    inside = sum(
        one.layers * one.cost.executed_flops for one in attentions_of(case_of(name, implementation="naive"))
    )
    assert counter.flops - inside == dense_flops(load_preset(name), tokens_of(load_preset(name)))


@pytest.mark.parametrize("name", FORMS)
def test_saved_is_what_autograd_saves(name: str) -> None:
    """On the CPU an RMSNorm also keeps what it divided, once for each norm."""
    config, model, kept = load_preset(name), build_model(name), {}
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage  # held, so that no other takes its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        call(name, model)
    tokens = tokens_of(config)
    cores = attentions_of(case_of(name, implementation="naive", mode="fwd_bwd"))
    stated = saved_bytes(config, tokens, 4) + sum(one.layers * one.cost.saved_bytes for one in cores)
    divided = 2 * config.num_layers + 1 if config.norm == "rmsnorm" else 0
    found = sum(storage.nbytes() for storage in kept.values())
    assert found + loss_bytes(config, tokens, 4) == stated + divided * tokens.own * config.dim * 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("implementation", ["naive", "sdpa"])
@pytest.mark.parametrize("name", [*FORMS, "stdlib-decoder", "small-encoder-decoder"])
def test_the_peak_is_that_of_tensor_lifetimes(name: str, implementation: str, dtype: str) -> None:
    config = load_preset(name)
    case = case_of(name, implementation=implementation, seqlen_q=128, seqlen_k=128, dtype=dtype)
    counts = predict_counts(case)
    cores = {one.place: one.cost.peak_bytes for one in attentions_of(case)}
    stated = peak_bytes(config, tokens_of(config, 128, 128), 2 if dtype == "bfloat16" else 4, cores)
    assert stated == counts.call_peak_bytes - counts.resident_bytes
