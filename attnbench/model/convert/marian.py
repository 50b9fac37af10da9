"""Marian, the encoder-decoder of the OPUS translations, of Hugging Face to ours."""

from torch import Tensor

from attnbench.contract.errors import UsageError
from attnbench.model.config import Head, TransformerConfig

from .families import Family, Tensors, activation, renamed, without_tied
from .sources import Settings

_LAYER = {
    "self_attn.q_proj": "mixer.q_proj",
    "self_attn.k_proj": "mixer.k_proj",
    "self_attn.v_proj": "mixer.v_proj",
    "self_attn.out_proj": "mixer.out_proj",
    "self_attn_layer_norm": "mixer_norm",
    "encoder_attn.q_proj": "cross.q_proj",
    "encoder_attn.k_proj": "cross.k_proj",
    "encoder_attn.v_proj": "cross.v_proj",
    "encoder_attn.out_proj": "cross.out_proj",
    "encoder_attn_layer_norm": "cross_norm",
    "fc1": "ffn.up",
    "fc2": "ffn.down",
    "final_layer_norm": "ffn_norm",
}
_RULES = {
    "encoder.embed_tokens": "source_embeddings.token",
    "decoder.embed_tokens": "target_embeddings.token",
    "lm_head": "head",
    **{
        f"{side}.layers.#.{theirs}": f"{side}.layers.#.{ours}"
        for side in ("encoder", "decoder")
        for theirs, ours in _LAYER.items()
    },
}
_SINUSOIDS = r"(encoder|decoder)\.embed_positions\.weight"


def _config(settings: Settings, head: Head) -> TransformerConfig:
    vocab_size = settings.need("vocab_size")
    target_vocab_size = settings.get("decoder_vocab_size", vocab_size)
    tied = settings.get("tie_word_embeddings", True)
    return TransformerConfig(
        architecture="encoder-decoder",
        vocab_size=target_vocab_size,
        source_vocab_size=vocab_size,
        shared_embeddings=tied and settings.get("share_encoder_decoder_embeddings", True),
        dim=settings.need("d_model"),
        num_layers=settings.need("decoder_layers"),
        num_encoder_layers=settings.need("encoder_layers"),
        num_heads=_same_on_both_sides(settings, "attention_heads"),
        ffn_dim=_same_on_both_sides(settings, "ffn_dim"),
        max_seqlen=settings.need("max_position_embeddings"),
        norm_position="post",
        activation=activation(settings, "activation_function", "gelu"),
        position="sinusoidal",
        sinusoids="halves",
        scale_embeddings=settings.get("scale_embedding", False),
        tied_embeddings=tied,
        head=head,
        head_bias=head != "none",
        start_token=settings.need("decoder_start_token_id"),
    )


def _same_on_both_sides(settings: Settings, name: str) -> int:
    encoder, decoder = settings.need(f"encoder_{name}"), settings.need(f"decoder_{name}")
    if encoder != decoder:
        raise UsageError(
            f"{settings.where}: encoder_{name} = {encoder} and decoder_{name} = {decoder} must be the same"
        )
    return int(encoder)


def _weights(tensors: Tensors, config: TransformerConfig) -> dict[str, Tensor]:
    given = {key.removeprefix("model."): tensor for key, tensor in tensors.items()}
    shared = given.pop("shared.weight", None)
    if shared is not None:
        given = {"encoder.embed_tokens.weight": shared, "decoder.embed_tokens.weight": shared} | given
    bias = given.pop("final_logits_bias", None)
    found = renamed(given, _RULES, prefix="model.", ignored=_SINUSOIDS)
    if bias is not None:
        found["head.bias"] = bias.squeeze(0)
    return (
        without_tied(found, "head.weight", "target_embeddings.token.weight")
        if config.tied_embeddings
        else found
    )


MARIAN = Family("marian", {"MarianMTModel": "linear", "MarianModel": "none"}, _config, _weights)
