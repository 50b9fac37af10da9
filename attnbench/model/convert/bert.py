"""BERT of Hugging Face to ours, without pooler and next-sentence head: they belong to no single token."""

from torch import Tensor

from attnbench.model.config import Head, TransformerConfig

from .families import Family, Tensors, activation, renamed, without_tied
from .sources import Settings

_RULES = {
    "embeddings.word_embeddings": "embeddings.token",
    "embeddings.position_embeddings": "embeddings.position",
    "embeddings.token_type_embeddings": "embeddings.segment",
    "embeddings.LayerNorm": "embeddings.norm",
    "encoder.layer.#.attention.self.query": "encoder.layers.#.mixer.q_proj",
    "encoder.layer.#.attention.self.key": "encoder.layers.#.mixer.k_proj",
    "encoder.layer.#.attention.self.value": "encoder.layers.#.mixer.v_proj",
    "encoder.layer.#.attention.output.dense": "encoder.layers.#.mixer.out_proj",
    "encoder.layer.#.attention.output.LayerNorm": "encoder.layers.#.mixer_norm",
    "encoder.layer.#.intermediate.dense": "encoder.layers.#.ffn.up",
    "encoder.layer.#.output.dense": "encoder.layers.#.ffn.down",
    "encoder.layer.#.output.LayerNorm": "encoder.layers.#.ffn_norm",
    "cls.predictions": "head",
    "cls.predictions.transform.dense": "head.dense",
    "cls.predictions.transform.LayerNorm": "head.norm",
    "cls.predictions.decoder": "head",
}
_IGNORED = r"pooler\..*|cls\.seq_relationship\..*|embeddings\.(position_ids|token_type_ids)"
_LEAVES_OF_OLD = {"gamma": "weight", "beta": "bias"}
"""What a norm's parameters were called in the first checkpoints."""


def _config(settings: Settings, head: Head) -> TransformerConfig:
    settings.refuse("is_decoder", unless=False, why="BERT is an encoder here")
    settings.refuse("add_cross_attention", unless=False, why="an encoder attends to itself alone")
    settings.refuse("position_embedding_type", unless="absolute", why="positions are added to the embeddings")
    return TransformerConfig(
        architecture="encoder-only",
        vocab_size=settings.need("vocab_size"),
        dim=settings.need("hidden_size"),
        num_layers=settings.need("num_hidden_layers"),
        num_heads=settings.need("num_attention_heads"),
        ffn_dim=settings.need("intermediate_size"),
        max_seqlen=settings.need("max_position_embeddings"),
        num_segments=settings.get("type_vocab_size", 2),
        norm_position="post",
        norm_eps=settings.get("layer_norm_eps", 1e-12),
        embedding_norm=True,
        activation=activation(settings, "hidden_act", "gelu"),
        tied_embeddings=settings.get("tie_word_embeddings", True),
        head=head,
        head_bias=head != "none",
    )


def _weights(tensors: Tensors, config: TransformerConfig) -> dict[str, Tensor]:
    named = {}
    for key, tensor in tensors.items():
        path, dot, leaf = key.rpartition(".")
        named[path + dot + _LEAVES_OF_OLD.get(leaf, leaf)] = tensor
    # The head's bias has two names that may have come apart; its decoder's is the one that is added.
    doubled = "cls.predictions.decoder.bias" in named
    ignored = rf"{_IGNORED}|cls\.predictions\.bias" if doubled else _IGNORED
    found = renamed(named, _RULES, prefix="bert.", ignored=ignored)
    return without_tied(found, "head.weight", "embeddings.token.weight") if config.tied_embeddings else found


BERT = Family("bert", {"BertForMaskedLM": "masked-language", "BertModel": "none"}, _config, _weights)
