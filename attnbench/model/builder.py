"""A preset or a config and an implementation in, a model or one layer of it out, with its weights."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from attnbench.contract.discovery import get_implementation
from attnbench.contract.errors import UsageError, nearest
from attnbench.contract.implementation import Implementation, refusals, require_support
from attnbench.contract.masks import Full
from attnbench.contract.mixers import MixerConfig
from attnbench.contract.problem import DTYPE_BYTES

from .blocks import TransformerBlock
from .config import TransformerConfig
from .encoder_decoder import EncoderDecoder
from .mixer import AttentionMixer, mixer_problem
from .positions import RotaryPositions
from .presets import load_preset, require_trained_form
from .pretrained import load_trained
from .transformer import DecoderOnly, EncoderOnly
from .weights import draw_weights, generator_for, seeded

CROSS_DEFAULT = "sdpa"
"""What computes cross-attention where the implementation cannot."""


def build_model(
    preset_or_config: str | TransformerConfig,
    implementation: str | Implementation = "naive",
    *,
    seed: int = 0,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
    options: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> Any:
    """A Transformer with ``implementation`` in every layer; ``overrides`` are fields of the config.

    It is a ``DecoderOnly``, an ``EncoderOnly`` or an ``EncoderDecoder``, as ``architecture`` says.

    Weights depend on ``seed`` and on their names alone: they are the same for every implementation, which may
    add parameters of its own. Under fake tensors nothing is drawn. An implementation without a backward pass
    refuses calls that autograd records: call the model under ``torch.no_grad()``. A preset with trained
    weights, named rather than given as a config, brings those instead, and refuses overrides they do not fit.

    Args:
        preset_or_config: a name of ``presets.toml``, or a ``TransformerConfig``.
        implementation: a name, ``./file.py``, ``package.module:ATTRIBUTE``, or an ``Implementation``.
        seed: of the weights.
        dtype: of weights and activations; weights are drawn in float32 and rounded.
        device: where the weights are.
        options: options of the implementation.
        overrides: fields of ``TransformerConfig`` that replace the preset's.

    Raises:
        UsageError: an unknown preset, field or implementation, or a form that the implementation does not
            support.
    """
    config = _config(preset_or_config, overrides)
    factory = MixerBuilder(config, implementation, seed, _dtype(dtype), _device(device), options or {})
    model = ARCHITECTURES[config.architecture](config, factory, dtype=factory.dtype, device=factory.device)
    model.implementation, model.cross_implementation = factory.core.name, factory.cross_name
    draw_weights(model, seed=seed, depth=config.num_layers)
    if isinstance(preset_or_config, str):
        load_trained(preset_or_config, model)
    return model


ARCHITECTURES: dict[str, type[DecoderOnly] | type[EncoderOnly] | type[EncoderDecoder]] = {
    "decoder-only": DecoderOnly,
    "encoder-only": EncoderOnly,
    "encoder-decoder": EncoderDecoder,
}


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
    """One layer of that Transformer: ``block(x, lengths=None, state=None) -> (y, state)``.

    ``x`` and ``y`` are ``[B, S, dim]``; arguments and errors as in ``build_model``. Of an encoder-decoder it
    is a decoder layer, whose cross-attention reads ``context [B, Sk, dim]``. Trained weights are those of the
    first layer.
    """
    config = _config(preset_or_config, overrides)
    factory = MixerBuilder(config, implementation, seed, _dtype(dtype), _device(device), options or {})
    crossing = config.architecture == "encoder-decoder"
    side = "encoder" if config.architecture == "encoder-only" else "decoder"
    block = TransformerBlock(
        config,
        factory(f"{side}.mixer"),
        factory(f"{side}.cross") if crossing else None,
        dtype=factory.dtype,
        device=factory.device,
    )
    draw_weights(block, seed=seed, depth=config.num_layers)
    if isinstance(preset_or_config, str):
        load_trained(preset_or_config, block, place=f"{side}.layers.0.")
    return block


def _config(preset_or_config: str | TransformerConfig, overrides: dict[str, Any]) -> TransformerConfig:
    if isinstance(preset_or_config, TransformerConfig):
        return preset_or_config.replace(**overrides)
    if not isinstance(preset_or_config, str):
        raise UsageError(
            "preset_or_config: the name of a preset or a TransformerConfig is needed, "
            f"not {type(preset_or_config).__name__}"
        )
    config = load_preset(preset_or_config).replace(**overrides)
    require_trained_form(preset_or_config, config)
    return config


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise UsageError(f"dtype: {name!r} is none of {', '.join(DTYPE_BYTES)}{nearest(name, DTYPE_BYTES)}")
    found: torch.dtype = getattr(torch, name)
    return found


def _device(device: str | torch.device) -> str:
    """Return the device's name, of one on which tensors can be made."""
    if not isinstance(device, str | torch.device):
        raise UsageError(f"device: a name such as 'cpu' or 'cuda' is needed, not {device!r}")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).split("\n")[0]
        raise UsageError(f"device: {str(device)!r} cannot be used here: {reason}") from None
    return str(device)


class MixerBuilder:
    """Makes the mixer of each place: ``encoder.…``, ``decoder.…``, and ``….cross`` over a source.

    ``cross_name`` says what computes cross-attention: ``config.cross_implementation``, else the
    implementation itself if it supports a full mask with Sq != Sk, else sdpa; None where there is none.
    """

    def __init__(
        self,
        config: TransformerConfig,
        implementation: str | Implementation,
        seed: int,
        dtype: torch.dtype,
        device: str,
        options: Mapping[str, Any],
    ) -> None:
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
            raise UsageError(f"seed: a whole number of at least 0 is needed, not {seed!r}")
        self.config, self.seed, self.dtype, self.device = config, seed, dtype, device
        self.options = require_options(options)
        self.core = find_implementation(implementation)
        rotary = config.position == "rope"
        self.table = (
            RotaryPositions(config.head_dim, config.rope_base, config.rope_scaling, config.max_seqlen)
            if rotary
            else None
        )
        self.cross_core = self._cross_core() if config.architecture == "encoder-decoder" else None
        self.cross_name = None if self.cross_core is None else self.cross_core.name

    def __call__(self, place: str) -> nn.Module:
        """The mixer of one place, its own weights drawn by the place's name."""
        generator = generator_for(self.seed, place)
        if place.endswith(".cross"):
            assert self.cross_core is not None
            own = self.cross_core is self.core
            return AttentionMixer(
                self._cross_form(self.options if own else {}), self.cross_core, generator=generator
            )
        mask = self.config.encoder_mask if place.startswith("encoder") else self.config.mask
        form = self._form(mask=mask, rotary=self.table is not None, options=self.options)
        if self.core.make_mixer is None:
            return AttentionMixer(form, self.core, table=self.table, generator=generator)
        longest = self.config.max_seqlen
        require_support(self.core, mixer_problem(form, 1, longest, longest))
        with seeded(generator.initial_seed(), self.device):
            mixer = self.core.make_mixer(form)
        if not isinstance(mixer, nn.Module):
            raise UsageError(
                f"{self.core.name}: make_mixer must return a torch.nn.Module, not {type(mixer).__name__}"
            )
        if "decode" in self.core.supports and not callable(getattr(mixer, "new_state", None)):
            raise UsageError(
                f"{self.core.name}: it supports decode, and the module of its make_mixer has no new_state"
            )
        return mixer

    def _form(self, **given: Any) -> MixerConfig:
        config = self.config
        return MixerConfig(
            dim=config.dim,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            head_dim_v=config.head_dim_v,
            max_seqlen=config.max_seqlen,
            rope_base=config.rope_base,
            bias=config.qkv_bias,
            out_bias=config.out_bias,
            scale=config.scale,
            dtype=str(self.dtype).removeprefix("torch."),
            device=self.device,
            **given,
        )

    def _cross_form(self, options: Mapping[str, Any]) -> MixerConfig:
        return self._form(mask=Full(), cross=True, options=options)

    def _cross_core(self) -> Implementation:
        if self.config.cross_implementation is not None:
            return get_implementation(self.config.cross_implementation)
        if self.core.make_mixer is None:
            longest = self.config.max_seqlen
            crossing = mixer_problem(self._cross_form(self.options), 1, longest, longest + 1)
            if not refusals(self.core, crossing):
                return self.core
        return get_implementation(CROSS_DEFAULT)


def find_implementation(implementation: str | Implementation) -> Implementation:
    """Return the implementation of a name, or the one given.

    Raises:
        UsageError: an unknown name, or neither of the two.
    """
    if isinstance(implementation, Implementation):
        return implementation
    if not isinstance(implementation, str):
        raise UsageError(
            f"implementation: a name or an Implementation is needed, not {type(implementation).__name__}"
        )
    return get_implementation(implementation)


def require_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of an implementation; raise ``UsageError`` for what is no table of them."""
    if not isinstance(options, Mapping):
        raise UsageError(f"options: a table of names and values is needed, not {options!r}")
    return options
