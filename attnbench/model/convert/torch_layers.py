"""The layers of ``torch.nn`` taken apart. In: modules. Out: their common form, and weights by our names."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnbench.contract.errors import UsageError
from attnbench.model.config import Activation

Stack = nn.TransformerEncoder | nn.TransformerDecoder

_ACTIVATIONS: dict[Callable[..., Tensor], Activation] = {
    F.relu: "relu",
    torch.relu: "relu",
    F.gelu: "gelu",
    F.silu: "silu",
}


def exactly(part: object, kind: type[nn.Module], place: str) -> None:
    """Raise ``UsageError`` unless ``part`` is of that class itself: a subclass may compute anything."""
    if type(part) is not kind:
        raise UsageError(f"module: {place} must be torch.nn.{kind.__name__}, not {type(part).__name__}")


def common_form(stacks: Mapping[str, Stack]) -> dict[str, Any]:
    """The fields of ``TransformerConfig`` that layers and final norms have in common.

    Raises:
        UsageError: parts of other classes, an activation that is not built here, or layers that differ.
    """
    facts: dict[str, set[Any]] = defaultdict(set)
    norm_biases: set[bool] = set()
    for side, stack in stacks.items():
        norms = {f"{side}.norm": stack.norm} if stack.norm is not None else {}
        facts["final_norm"].add(stack.norm is not None)
        for i, layer in enumerate(stack.layers):
            place = f"{side}.layers.{i}"
            exactly(
                layer, nn.TransformerDecoderLayer if side == "decoder" else nn.TransformerEncoderLayer, place
            )
            attentions, affine, layer_norms = _parts(layer, place)
            norms |= layer_norms
            for attention in attentions.values():
                facts["dim"].add(attention.embed_dim)
                facts["num_heads"].add(attention.num_heads)
                facts["qkv_bias"].add(attention.in_proj_bias is not None)
                facts["out_bias"].add(attention.out_proj.bias is not None)
            facts["ffn_dim"].add(layer.linear1.out_features)
            facts["ffn_bias"] |= {linear.bias is not None for linear in affine.values()}
            facts["activation"].add(_activation(layer.activation, place))
            facts["norm_position"].add("pre" if layer.norm_first else "post")
        for place, norm in norms.items():
            exactly(norm, nn.LayerNorm, place)
            facts["norm_eps"].add(norm.eps)
            norm_biases.add(norm.bias is not None)
    if not facts["dim"]:
        raise UsageError("module: it has no layers")
    for name, values in facts.items():
        if len(values) > 1:
            found = ", ".join(sorted(map(str, values)))
            raise UsageError(f"module: its layers differ in {name} ({found}), and ours are all alike")
    return {name: values.pop() for name, values in facts.items()} | {"norm_bias": any(norm_biases)}


def layer_weights(layer: nn.Module, place: str, *, norm_bias: bool) -> dict[str, Tensor]:
    """The weights of a layer of encoder or decoder, by the names of our layer at ``place``."""
    attentions, affine, norms = _parts(layer, place)
    found: dict[str, Tensor] = {}
    for ours, attention in zip(("mixer", "cross"), attentions.values(), strict=False):
        found |= attention_weights(attention, f"{place}.{ours}.")
    for ours, linear in zip(("ffn.up", "ffn.down"), affine.values(), strict=True):
        found |= _named(linear, f"{place}.{ours}")
    ours_in_order = (
        ("mixer_norm", "cross_norm", "ffn_norm") if len(norms) == 3 else ("mixer_norm", "ffn_norm")
    )
    for ours, norm in zip(ours_in_order, norms.values(), strict=True):
        found |= norm_weights(norm, f"{place}.{ours}", bias=norm_bias)
    return found


def attention_weights(module: nn.MultiheadAttention, prefix: str) -> dict[str, Tensor]:
    """The weights of one attention; q, k and v stand in one matrix unless their inputs differ in width.

    Raises:
        UsageError: it adds keys of its own.
    """
    if module.bias_k is not None or module.add_zero_attn:
        raise UsageError("module: add_bias_kv and add_zero_attn add keys that stand at no position")
    if module.in_proj_weight is not None:
        parts = module.in_proj_weight.chunk(3)
    else:
        parts = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    found = {f"{prefix}{letter}_proj.weight": part for letter, part in zip("qkv", parts, strict=True)}
    if module.in_proj_bias is not None:
        biases = zip("qkv", module.in_proj_bias.chunk(3), strict=True)
        found |= {f"{prefix}{letter}_proj.bias": part for letter, part in biases}
    return found | _named(module.out_proj, f"{prefix}out_proj")


def norm_weights(norm: Any, place: str, *, bias: bool) -> dict[str, Tensor]:
    """Scale and shift of a norm; one without them scales by 1, and shifts by 0 where others have a bias."""
    found: dict[str, Tensor] = {}
    found[f"{place}.weight"] = torch.ones(norm.normalized_shape) if norm.weight is None else norm.weight
    if bias:
        found[f"{place}.bias"] = torch.zeros(norm.normalized_shape) if norm.bias is None else norm.bias
    return found


def _parts(
    layer: Any, place: str
) -> tuple[dict[str, nn.MultiheadAttention], dict[str, nn.Linear], dict[str, nn.LayerNorm]]:
    """The attentions, linear maps and norms of a layer in the order in which they act, checked by class."""
    decoding = isinstance(layer, nn.TransformerDecoderLayer)
    named = {
        kind: {f"{place}.{name}": getattr(layer, name) for name in names}
        for kind, names in (
            (nn.MultiheadAttention, ("self_attn", "multihead_attn") if decoding else ("self_attn",)),
            (nn.Linear, ("linear1", "linear2")),
            (nn.LayerNorm, ("norm1", "norm2", "norm3") if decoding else ("norm1", "norm2")),
        )
    }
    for kind, parts in named.items():
        for name, part in parts.items():
            exactly(part, kind, name)
    attentions, affine, norms = named.values()
    return attentions, affine, norms


def _named(module: nn.Module, place: str) -> dict[str, Tensor]:
    return {f"{place}.{name}": parameter for name, parameter in module.named_parameters()}


def _activation(function: Any, place: str) -> Activation:
    if isinstance(function, partial) and function.func is F.gelu and not function.args:
        function = nn.GELU(**function.keywords)
    if type(function) is nn.GELU:
        return "gelu" if function.approximate == "none" else "gelu-tanh"
    if type(function) in (nn.ReLU, nn.SiLU):
        return "relu" if type(function) is nn.ReLU else "silu"
    found = _ACTIVATIONS.get(function)
    if found is None:
        known = ", ".join(dict.fromkeys(_ACTIVATIONS.values()))
        raise UsageError(f"module: the activation of {place} must be one of {known}, not {function!r}")
    return found
