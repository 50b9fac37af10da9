"""A preset or a config and an implementation in, a model or one layer of it out, with its weights drawn."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from attnbench.contract.discovery import get_implementation
from attnbench.contract.errors import UsageError, nearest
from attnbench.contract.implementation import Implementation
from attnbench.contract.mixers import MixerConfig
from attnbench.contract.problem import DTYPE_BYTES

from .config import TransformerConfig, unbuilt
from .mixer import AttentionMixer, mixer_problem, require_support, rotary_positions
from .presets import load_preset
from .transformer import MixerFactory, Transformer, TransformerBlock
from .weights import draw_weights, generator_for, seeded


def build_model(
    preset_or_config: str | TransformerConfig,
    implementation: str | Implementation = "naive",
    *,
    seed: int = 0,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
    options: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> Transformer:
    """A Transformer with ``implementation`` in every layer; ``overrides`` are fields of the config.

    Weights depend on ``seed`` and on their names alone: they are the same for every implementation, which may
    add parameters of its own. Under fake tensors nothing is drawn. An implementation without a backward pass
    refuses calls that autograd records: call the model under ``torch.no_grad()``.

    Args:
        preset_or_config: a name of ``presets.toml``, or a ``TransformerConfig``.
        implementation: a name, ``./file.py``, ``package.module:ATTRIBUTE``, or an ``Implementation``.
        seed: of the weights.
        dtype: of weights and activations; weights are drawn in float32 and rounded.
        device: where the weights are.
        options: options of the implementation.
        overrides: fields of ``TransformerConfig`` that replace the preset's.

    Raises:
        UsageError: an unknown preset, field or implementation, an architecture that is not built yet, or a
            form that the implementation does not support.
    """
    config = _config(preset_or_config, overrides)
    torch_dtype = _dtype(dtype)
    factory = _mixer_factory(config, implementation, seed, torch_dtype, str(device), options or {})
    model = Transformer(config, factory, dtype=torch_dtype, device=str(device))
    draw_weights(model, seed=seed, depth=config.num_layers)
    return model


def build_block(
    preset_or_config: str | TransformerConfig,
    implementation: str | Implementation = "naive",
    *,
    seed: int = 0,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
    options: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> TransformerBlock:
    """One decoder layer of that Transformer: ``block(x, lengths=None, state=None) -> (y, state)``.

    ``x`` and ``y`` are ``[B, S, dim]``; arguments and errors as in ``build_model``.
    """
    config = _config(preset_or_config, overrides)
    torch_dtype = _dtype(dtype)
    factory = _mixer_factory(config, implementation, seed, torch_dtype, str(device), options or {})
    block = TransformerBlock(config, factory("mixer"), dtype=torch_dtype, device=str(device))
    draw_weights(block, seed=seed, depth=config.num_layers)
    return block


def _config(preset_or_config: str | TransformerConfig, overrides: dict[str, Any]) -> TransformerConfig:
    config = load_preset(preset_or_config) if isinstance(preset_or_config, str) else preset_or_config
    config = config.replace(**overrides)
    if reason := unbuilt(config.architecture):
        raise UsageError(reason)
    return config


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise UsageError(f"dtype: {name!r} is none of {', '.join(DTYPE_BYTES)}{nearest(name, DTYPE_BYTES)}")
    found: torch.dtype = getattr(torch, name)
    return found


def _mixer_factory(
    config: TransformerConfig,
    implementation: str | Implementation,
    seed: int,
    dtype: torch.dtype,
    device: str,
    options: Mapping[str, Any],
) -> MixerFactory:
    core = get_implementation(implementation) if isinstance(implementation, str) else implementation
    rotary = config.position == "rope"
    table = rotary_positions(config.head_dim, config.rope_base) if rotary else None
    mixer_config = MixerConfig(
        dim=config.dim,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        mask=config.mask,
        max_seqlen=config.max_seqlen,
        rotary=rotary,
        rope_base=config.rope_base,
        bias=config.qkv_bias,
        dtype=str(dtype).removeprefix("torch."),
        device=device,
        options=options,
    )

    def make(place: str) -> nn.Module:
        generator = generator_for(seed, place)
        if core.make_mixer is None:
            return AttentionMixer(
                mixer_config,
                core,
                head_dim_v=config.head_dim_v,
                out_bias=config.out_bias,
                table=table,
                generator=generator,
            )
        require_support(core, mixer_problem(mixer_config, 1, config.max_seqlen, config.max_seqlen))
        with seeded(generator.initial_seed(), device):
            mixer = core.make_mixer(mixer_config)
        if not isinstance(mixer, nn.Module):
            raise UsageError(
                f"{core.name}: make_mixer must return a torch.nn.Module, not {type(mixer).__name__}"
            )
        return mixer

    return make
