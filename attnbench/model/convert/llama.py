"""LLaMA and Qwen2 of Hugging Face to ours: RMSNorm, rotary positions, grouped heads, SwiGLU."""

from typing import Any

from torch import Tensor

from attnbench.contract.errors import UsageError
from attnbench.contract.masks import Causal, Mask, SlidingWindow
from attnbench.model.config import Head, TransformerConfig

from .families import Family, Tensors, activation, renamed, without_tied
from .rotary import rotary_settings
from .sources import Settings

_RULES = {
    "embed_tokens": "embeddings.token",
    "layers.#.input_layernorm": "decoder.layers.#.mixer_norm",
    "layers.#.self_attn.q_proj": "decoder.layers.#.mixer.q_proj",
    "layers.#.self_attn.k_proj": "decoder.layers.#.mixer.k_proj",
    "layers.#.self_attn.v_proj": "decoder.layers.#.mixer.v_proj",
    "layers.#.self_attn.o_proj": "decoder.layers.#.mixer.out_proj",
    "layers.#.post_attention_layernorm": "decoder.layers.#.ffn_norm",
    "layers.#.mlp.gate_proj": "decoder.layers.#.ffn.gate",
    "layers.#.mlp.up_proj": "decoder.layers.#.ffn.up",
    "layers.#.mlp.down_proj": "decoder.layers.#.ffn.down",
    "norm": "decoder.norm",
    "lm_head": "head",
}
_FREQUENCIES = r"(layers\.\d+\.self_attn\.)?rotary_emb\..*"
"""Buffers that follow from the config, in files of old."""


def _shared_config(settings: Settings, head: Head, **own: Any) -> TransformerConfig:
    if activation(settings, "hidden_act", "silu") != "silu":
        raise UsageError(f"{settings.where}: hidden_act must be silu, the gate of SwiGLU")
    base, scaling = rotary_settings(settings)
    heads = settings.need("num_attention_heads")
    longest = settings.need("max_position_embeddings")
    if scaling is not None and scaling.follows_length:
        longest = scaling.original_max_seqlen
    return TransformerConfig(
        vocab_size=settings.need("vocab_size"),
        dim=settings.need("hidden_size"),
        num_layers=settings.need("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=settings.get("num_key_value_heads", heads),
        head_dim=settings.get("head_dim", 0),
        ffn_dim=settings.need("intermediate_size"),
        max_seqlen=longest,
        norm="rmsnorm",
        norm_eps=settings.get("rms_norm_eps", 1e-6),
        activation="swiglu",
        position="rope",
        rope_base=base,
        rope_scaling=scaling,
        tied_embeddings=settings.get("tie_word_embeddings", False),
        head=head,
        **own,
    )


def _llama_config(settings: Settings, head: Head) -> TransformerConfig:
    bias = settings.get("attention_bias", False)
    return _shared_config(
        settings, head, qkv_bias=bias, out_bias=bias, ffn_bias=settings.get("mlp_bias", False)
    )


def _qwen2_config(settings: Settings, head: Head) -> TransformerConfig:
    return _shared_config(
        settings, head, qkv_bias=True, out_bias=False, ffn_bias=False, mask=_qwen2_mask(settings)
    )


def _qwen2_mask(settings: Settings) -> Mask:
    """Causal, or the sliding window where all layers have it.

    Layers from ``max_window_layers`` on have it; transformers 5 lists them in ``layer_types``.
    """
    window = settings.get("sliding_window", None) if settings.get("use_sliding_window", False) else None
    count = settings.need("num_hidden_layers")
    first = settings.get("max_window_layers", 28)
    kinds = settings.get("layer_types", None) or [
        "sliding_attention" if window is not None and i >= first else "full_attention" for i in range(count)
    ]
    if set(kinds) == {"full_attention"}:
        return Causal()
    if set(kinds) == {"sliding_attention"} and window is not None:
        return SlidingWindow(window)
    sliding = sum(kind == "sliding_attention" for kind in kinds)
    raise UsageError(
        f"{settings.where}: {sliding} of {count} layers have a sliding window ({window}), and all "
        "layers must have one mask"
    )


def _weights(tensors: Tensors, config: TransformerConfig) -> dict[str, Tensor]:
    found = renamed(tensors, _RULES, prefix="model.", ignored=_FREQUENCIES)
    return without_tied(found, "head.weight", "embeddings.token.weight") if config.tied_embeddings else found


LLAMA = Family("llama", {"LlamaForCausalLM": "linear", "LlamaModel": "none"}, _llama_config, _weights)
QWEN2 = Family("qwen2", {"Qwen2ForCausalLM": "linear", "Qwen2Model": "none"}, _qwen2_config, _weights)
