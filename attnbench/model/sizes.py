"""How large a Transformer is, and what surrounds its attention. In: a `TransformerConfig`. Out: exact
integers in closed form; loads no torch.

Letters: X the elements of one ``[B, S, dim]``, F of one ``[B, S, ffn_dim]``, w bytes of an element.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .config import TransformerConfig

STATISTIC_BYTES = 4
"""Of what a norm remembers of a row: float32, whatever the activations are."""

INDEX_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """How many tokens a call reads: of the sequence that is predicted, and of the source of a translation."""

    own: int
    source: int = 0
    positions: int = 0
    """Length of the longest row: tables of positions have as many."""


def num_parameters(config: TransformerConfig) -> int:
    """Number of parameters; tied embeddings count once. What a core learns for itself is not among them."""
    c = config
    norm = c.dim * (2 if c.norm == "layernorm" and c.norm_bias else 1)
    sublayers = _sublayers(c)
    layers = sum(layer.count * (layer.weights + layer.biases + layer.norms * norm) for layer in sublayers)
    stacks = 2 if c.architecture == "encoder-decoder" else 1
    return (
        layers
        + (stacks * norm if c.final_norm else 0)
        + _embedding_parameters(c, norm)
        + _head_parameters(c, norm)
    )


def read_parameters(config: TransformerConfig, tokens: Tokens) -> int:
    """Number of parameters that a call has to read: of a table that is only looked up, a row a token."""
    c = config
    looked_up = []
    shared = c.architecture == "encoder-decoder" and c.shares_tokens
    tied = c.tied_embeddings and _has_head(c)
    if c.vocab_size and not tied and not shared:
        looked_up.append((c.vocab_size, tokens.own))
    if c.architecture == "encoder-decoder" and c.source_vocab_size and not (shared and tied):
        rows = tokens.source + (tokens.own if shared else 0)
        looked_up.append((c.source_vocab_size, rows))
    if c.position == "learned":
        looked_up.append((c.max_seqlen, max(tokens.own, tokens.source)))
    unread = sum(max(0, rows - read) * c.dim for rows, read in looked_up)
    return num_parameters(c) - unread


def dense_flops(config: TransformerConfig, tokens: Tokens) -> int:
    """FLOPs of a forward pass outside of attention: 2 for every weight of a product and every token in it.

    A backward pass has twice as many.
    """
    c = config
    flops = sum(2 * layer.count * layer.products(tokens) for layer in _sublayers(c))
    if _has_head(c):
        dense = c.dim * c.dim if c.head == "masked-language" else 0
        flops += 2 * tokens.own * (c.vocab_size * c.dim + dense)
    return flops


def saved_bytes(config: TransformerConfig, tokens: Tokens, dtype_bytes: int) -> int:
    """Bytes that a forward pass keeps for its backward outside of the attention cores, up to the logits.

    Of a layer the input of each norm and of each product once: 2 X a mixer or feed-forward network, the
    mixer's heads before they are projected, and of the network F before its activation and F behind it (relu
    keeps one, swiglu four). A norm keeps its rows' mean (layernorm) and scale in float32; RMSNorm is one
    operator, as on CUDA, where the CPU's also keeps what it divided. The loss keeps the logarithms of its
    softmax in float32 (``losses.py``).
    """
    c, w = config, dtype_bytes
    return (
        sum(layer.count * layer.saved_bytes(c, tokens, w) for layer in _sublayers(c))
        + _final_saved_bytes(c, tokens, w)
        + loss_bytes(c, tokens, w)
        + (_table_bytes(c, tokens, w) if c.position == "rope" else 0)
    )


def loss_bytes(config: TransformerConfig, tokens: Tokens, dtype_bytes: int) -> int:
    """Bytes that the loss keeps: the logarithms of its softmax, in float32 or wider."""
    return tokens.own * config.vocab_size * max(4, dtype_bytes) if _has_head(config) else 0


def logits_bytes(config: TransformerConfig, tokens: Tokens, dtype_bytes: int) -> int:
    """Bytes of what a forward pass returns: logits, or features of a model without a head."""
    width = config.vocab_size if _has_head(config) else config.dim
    return tokens.own * width * dtype_bytes


def peak_bytes(config: TransformerConfig, tokens: Tokens, dtype_bytes: int, cores: Mapping[str, int]) -> int:
    """Bytes alive at the peak of a forward pass without gradients, beyond weights and tokens.

    Whichever of these holds most: a mixer with q, k and v and what its core allocates, or while it rotates q
    and k in float32; a feed-forward network; the head. Beside them live the embeddings and the layer's
    input, behind a norm its output too, in the network also what the mixer gave. ``cores`` are the peaks of
    the cores by place, as in ``Case.problems``. Temporary copies inside of an operator are not seen.
    """
    c, w = config, dtype_bytes
    inside_head = 2 if c.head == "masked-language" else 1
    found = [inside_head * tokens.own * c.dim * w + logits_bytes(c, tokens, w)]
    for place, core in cores.items():
        crossing, of_source = place == "cross", place == "encoder" and tokens.source > 0
        rows = tokens.source if of_source else tokens.own
        keys = tokens.source if crossing else rows
        layers = c.num_encoder_layers if of_source else c.num_layers
        residuals = (2 if layers > 1 else 1) + crossing + (c.norm_position == "pre")
        outside = residuals * rows * c.dim * w + (0 if of_source else tokens.source * c.dim * w)
        q, k = rows * c.num_heads * c.head_dim, keys * c.num_kv_heads * c.head_dim
        heads = (q + k + keys * c.num_kv_heads * c.head_dim_v) * w
        found.append(outside + heads + core)
        if c.position == "rope" and not crossing:
            found.append(outside + heads + max(_rotation_bytes(q, w), q * w + _rotation_bytes(k, w)))
        hidden = (3 if c.activation == "swiglu" else 2) * rows * c.ffn_dim * w
        found.append(outside + (0 if crossing else rows * c.dim * w) + hidden)
    return max(found) + _table_bytes(c, tokens, w)


def _table_bytes(c: TransformerConfig, tokens: Tokens, w: int) -> int:
    """Of positions that are computed, in float32 or wider: rotary ones, or sinusoids for each embedding."""
    widths = {"rope": c.head_dim, "sinusoidal": c.dim * (2 if tokens.source else 1)}
    return tokens.positions * widths.get(c.position, 0) * max(4, w)


def _rotation_bytes(elements: int, w: int) -> int:
    """While heads are rotated: two halves and both together, beside a wider copy of 16 bits."""
    return (2 * max(4, w) + (4 if w < 4 else 0)) * elements


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """One kind of layer: how many there are, and what one holds."""

    count: int
    weights: int
    biases: int
    norms: int
    source_weights: int
    """Those of them that multiply the source: keys and values of cross-attention."""
    of_source: bool
    """Whether the others multiply the source as well: the layers of an encoder beside a decoder."""
    mixers: int

    def products(self, tokens: Tokens) -> int:
        """Multiply-adds of a call."""
        own = tokens.source if self.of_source else tokens.own
        return (self.weights - self.source_weights) * own + self.source_weights * tokens.source

    def saved_bytes(self, c: TransformerConfig, tokens: Tokens, w: int) -> int:
        """Bytes kept of a call."""
        rows = tokens.source if self.of_source else tokens.own
        hidden = {"relu": 1, "swiglu": 4}.get(c.activation, 2)
        heads = c.num_heads * c.head_dim_v
        elements = rows * (2 * (self.mixers + 1) * c.dim + self.mixers * heads + hidden * c.ffn_dim)
        return elements * w + self.norms * rows * _statistics(c)


def _sublayers(c: TransformerConfig) -> Iterator[_Layer]:
    q, out = c.dim * c.num_heads * c.head_dim, c.num_heads * c.head_dim_v * c.dim
    kv = c.dim * c.num_kv_heads * (c.head_dim + c.head_dim_v)
    qkv_biases = c.num_heads * c.head_dim + c.num_kv_heads * (c.head_dim + c.head_dim_v)
    mixer_biases = (qkv_biases if c.qkv_bias else 0) + (c.dim if c.out_bias else 0)
    into = 2 if c.activation == "swiglu" else 1
    ffn = (into + 1) * c.dim * c.ffn_dim
    ffn_biases = into * c.ffn_dim + c.dim if c.ffn_bias else 0

    def layer(count: int, mixers: int, of_source: bool) -> _Layer:
        return _Layer(
            count=count,
            weights=mixers * (q + kv + out) + ffn,
            biases=mixers * mixer_biases + ffn_biases,
            norms=mixers + 1,
            source_weights=(mixers - 1) * kv,
            of_source=of_source,
            mixers=mixers,
        )

    crossing = c.architecture == "encoder-decoder"
    yield layer(c.num_layers, 2 if crossing else 1, False)
    if crossing:
        yield layer(c.num_encoder_layers, 1, True)


def _has_head(c: TransformerConfig) -> bool:
    return c.head != "none" and c.vocab_size > 0


def _statistics(c: TransformerConfig) -> int:
    return STATISTIC_BYTES * (2 if c.norm == "layernorm" else 1)


def _embedding_parameters(c: TransformerConfig, norm: int) -> int:
    one = (c.num_segments * c.dim) + (norm if c.embedding_norm else 0)
    if c.position == "learned":
        one += c.max_seqlen * c.dim
    tables = c.vocab_size
    if c.architecture == "encoder-decoder":
        one *= 2
        tables = c.source_vocab_size + (0 if c.shares_tokens else c.vocab_size)
    return one + tables * c.dim


def _head_parameters(c: TransformerConfig, norm: int) -> int:
    if not _has_head(c):
        return 0
    own = 0 if c.tied_embeddings else c.vocab_size * c.dim
    bias = c.vocab_size if c.head_bias else 0
    dense = c.dim * c.dim + c.dim + norm if c.head == "masked-language" else 0
    return own + bias + dense


def _final_saved_bytes(c: TransformerConfig, tokens: Tokens, w: int) -> int:
    """What is kept behind the last layer and before the first: inputs of norms and of the head's products."""
    sides = [tokens.own, *([tokens.source] if c.architecture == "encoder-decoder" else [])]
    saved = 0
    for rows in sides:
        kept_norms = (1 if c.final_norm else 0) + (1 if c.embedding_norm else 0)
        saved += kept_norms * rows * (c.dim * w + _statistics(c))
        saved += rows * INDEX_BYTES * (2 if c.position == "learned" else 1)
    if c.architecture == "encoder-decoder":
        saved += tokens.source * c.dim * w  # what every cross-attention reads
    if _has_head(c):
        saved += tokens.own * c.dim * w
    if _has_head(c) and c.head == "masked-language":
        saved += tokens.own * (3 * c.dim * w + _statistics(c))
    return saved
