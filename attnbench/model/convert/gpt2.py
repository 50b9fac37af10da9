"""GPT-2 of Hugging Face to ours: its ``Conv1D`` keeps matrices transposed, and q, k and v in one."""

from torch import Tensor

from attnbench.model.config import Head, TransformerConfig

from .families import Family, Tensors, activation, renamed, without_tied
from .sources import Settings

_RULES = {
    "wte": "embeddings.token",
    "wpe": "embeddings.position",
    "h.#.ln_1": "decoder.layers.#.mixer_norm",
    "h.#.attn.c_attn": "decoder.layers.#.mixer.qkv",
    "h.#.attn.c_proj": "decoder.layers.#.mixer.out_proj",
    "h.#.ln_2": "decoder.layers.#.ffn_norm",
    "h.#.mlp.c_fc": "decoder.layers.#.ffn.up",
    "h.#.mlp.c_proj": "decoder.layers.#.ffn.down",
    "ln_f": "decoder.norm",
    "lm_head": "head",
}
_TRANSPOSED = (".qkv.weight", ".out_proj.weight", ".up.weight", ".down.weight")
_MASKS = r"h\.\d+\.attn\.(bias|masked_bias)"
"""Buffers that hold the causal mask, in files of old."""


def _config(settings: Settings, head: Head) -> TransformerConfig:
    settings.refuse(
        "scale_attn_by_inverse_layer_idx", unless=False, why="all layers scale their scores alike"
    )
    settings.refuse("add_cross_attention", unless=False, why="a decoder-only model attends to itself alone")
    dim, heads = settings.need("n_embd"), settings.need("n_head")
    return TransformerConfig(
        vocab_size=settings.need("vocab_size"),
        dim=dim,
        num_layers=settings.need("n_layer"),
        num_heads=heads,
        ffn_dim=settings.get("n_inner", 4 * dim),
        max_seqlen=settings.need("n_positions"),
        norm_eps=settings.get("layer_norm_epsilon", 1e-5),
        activation=activation(settings, "activation_function", "gelu_new"),
        scale=None if settings.get("scale_attn_weights", True) else 1.0,
        tied_embeddings=settings.get("tie_word_embeddings", True),
        head=head,
    )


def _weights(tensors: Tensors, config: TransformerConfig) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, tensor in renamed(tensors, _RULES, prefix="transformer.", ignored=_MASKS).items():
        ours = tensor.T if name.endswith(_TRANSPOSED) and tensor.ndim == 2 else tensor
        if ".qkv." not in name or len(ours) % 3:
            found[name] = ours
            continue
        for letter, part in zip("qkv", ours.chunk(3), strict=True):
            found[name.replace(".qkv.", f".{letter}_proj.")] = part
    return without_tied(found, "head.weight", "embeddings.token.weight") if config.tied_embeddings else found


GPT2 = Family("gpt2", {"GPT2LMHeadModel": "linear", "GPT2Model": "none"}, _config, _weights)
