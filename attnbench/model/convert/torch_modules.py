"""``torch.nn.Transformer``, ``TransformerEncoder`` and ``MultiheadAttention`` to ours, batch first.

Embeddings stay outside: vectors ``[B, S, dim]`` go in and come out.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from attnbench.contract.errors import UsageError
from attnbench.contract.implementation import Implementation
from attnbench.contract.masks import Causal, Full, Mask, mask_from
from attnbench.contract.mixers import MixerConfig
from attnbench.model.builder import build_model, find_implementation, require_options
from attnbench.model.config import TransformerConfig
from attnbench.model.mixer import AttentionMixer
from attnbench.model.state_dicts import load_weights

from .torch_layers import Stack, attention_weights, common_form, exactly, layer_weights, norm_weights

MaskLike = Mask | str | Mapping[str, Any]


def from_torch(
    module: nn.Module,
    implementation: str | Implementation = "naive",
    *,
    mask: MaskLike | None = None,
    encoder_mask: MaskLike | None = None,
    cross: bool | None = None,
    cross_implementation: str | None = None,
    max_seqlen: int = 1024,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """A module of ``torch.nn`` with ``implementation`` as its attention, in its own dtype, on its own device.

    ``nn.Transformer`` becomes ``model(source, target, source_lengths, target_lengths)`` and
    ``nn.TransformerEncoder`` ``model(x, lengths)``, on embeddings ``[B, S, dim]``. ``nn.MultiheadAttention``
    becomes ``mixer(x, context, lengths) -> (y, None)``, whose context may be a pair: where keys and where
    values come from. Padding stands at the end of a row, and what comes out there means nothing. Ours have no
    dropout: they are equal in evaluation, and in training where the module's dropout is 0.

    Args:
        module: one of the three, with either ``batch_first``; ours is batch first.
        implementation: a name, ``./file.py``, ``package.module:ATTRIBUTE``, or an ``Implementation``.
        mask: of the decoder (default ``Causal()``), or of a ``MultiheadAttention`` (default ``Full()``);
            torch takes it at each call, ours is built with it.
        encoder_mask: of the encoder, default ``Full()``.
        cross: of a ``MultiheadAttention``: keys and values come from a context. By default where their widths
            (``kdim``, ``vdim``) are not that of the queries.
        cross_implementation: what computes cross-attention; None as in ``TransformerConfig``.
        max_seqlen: the length that an implementation's own learned parts are made for.
        options: options of the implementation.

    Raises:
        UsageError: another module, or parts that cannot be carried over: subclasses, activations other than
            relu, gelu and silu, layers of different forms, ``add_bias_kv``, ``add_zero_attn``.
    """
    if not isinstance(module, nn.Module):
        raise UsageError(_needed(module))
    placements = {(parameter.dtype, parameter.device) for parameter in module.parameters()}
    if len(placements) != 1:
        found = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in placements)) or "none"
        raise UsageError(f"module: parameters of one dtype on one device are needed, not {found}")
    dtype, device = placements.pop()
    core = find_implementation(implementation)
    weights: dict[str, Tensor]
    if type(module) is nn.MultiheadAttention:
        form = _attention_form(
            module,
            mask=Full() if mask is None else mask_from(mask),
            cross=cross,
            max_seqlen=max_seqlen,
            dtype=str(dtype).removeprefix("torch."),
            device=str(device),
            options=require_options(options or {}),
        )
        weights = attention_weights(module, "")
        converted: Any = AttentionMixer(form, core)
    else:
        config, weights = _stacks(module)
        config = config.replace(
            mask=Causal() if mask is None else mask,
            encoder_mask=Full() if encoder_mask is None else encoder_mask,
            cross_implementation=cross_implementation,
            max_seqlen=max_seqlen,
        )
        converted = build_model(config, core, dtype=dtype, device=device, options=options)
    load_weights(converted, weights)
    return converted.train(module.training)


def _attention_form(module: nn.MultiheadAttention, *, cross: bool | None, **given: Any) -> MixerConfig:
    same_width = module.kdim == module.vdim == module.embed_dim
    if cross is False and not same_width:
        raise UsageError(
            f"cross: keys of width {module.kdim} and values of width {module.vdim} come from a context"
        )
    return MixerConfig(
        dim=module.embed_dim,
        num_heads=module.num_heads,
        num_kv_heads=module.num_heads,
        head_dim=module.head_dim,
        key_dim=module.kdim,
        value_dim=module.vdim,
        bias=module.in_proj_bias is not None,
        out_bias=module.out_proj.bias is not None,
        cross=not same_width if cross is None else cross,
        **given,
    )


def _stacks(module: nn.Module) -> tuple[TransformerConfig, dict[str, Tensor]]:
    """The config and the weights of an encoder or an encoder-decoder."""
    stacks: dict[str, Stack] = {}
    if type(module) is nn.TransformerEncoder:
        stacks["encoder"] = module
    elif type(module) is nn.Transformer:
        exactly(module.encoder, nn.TransformerEncoder, "encoder")
        exactly(module.decoder, nn.TransformerDecoder, "decoder")
        stacks |= {"encoder": module.encoder, "decoder": module.decoder}
    else:
        raise UsageError(_needed(module))
    form = common_form(stacks)
    depths = {side: len(stack.layers) for side, stack in stacks.items()}
    config = TransformerConfig(
        architecture="encoder-decoder" if "decoder" in stacks else "encoder-only",
        vocab_size=0,
        num_layers=depths.get("decoder", depths["encoder"]),
        num_encoder_layers=depths["encoder"] if "decoder" in stacks else 0,
        position="none",
        head="none",
        **form,
    )
    weights: dict[str, Tensor] = {}
    for side, stack in stacks.items():
        for i, layer in enumerate(stack.layers):
            weights |= layer_weights(layer, f"{side}.layers.{i}", norm_bias=config.norm_bias)
        if stack.norm is not None:
            weights |= norm_weights(stack.norm, f"{side}.norm", bias=config.norm_bias)
    return config, weights


def _needed(module: object) -> str:
    return (
        "module: torch.nn.Transformer, TransformerEncoder or MultiheadAttention is needed, "
        f"not {type(module).__name__}"
    )
