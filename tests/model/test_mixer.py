"""The mixer: cross-attention, with a state too, widths of its own, rows of different lengths, refusals."""

import dataclasses
from typing import Any

import pytest
import torch

from attnbench.contract.discovery import get_implementation
from attnbench.contract.errors import UsageError
from attnbench.contract.masks import Causal, Full, Mask, SlidingWindow
from attnbench.contract.mixers import MixerConfig
from attnbench.contract.state import keep
from attnbench.model.lengths import row_lengths
from attnbench.model.mixer import AttentionMixer, mixer_problem
from attnbench.model.weights import draw_weights

CASES: list[tuple[str, Mask]] = [
    ("naive", Causal()),
    ("sdpa", Causal()),
    ("linear", Causal()),
    ("naive", SlidingWindow(4)),
    ("sliding-window", SlidingWindow(4)),
]
IDS = [f"{name}-{mask.slug}" for name, mask in CASES]


def make(name: str = "naive", **fields: Any) -> AttentionMixer:
    form: dict[str, Any] = {"dim": 24, "num_heads": 4, "num_kv_heads": 2, "head_dim": 6, "dtype": "float64"}
    mixer = AttentionMixer(MixerConfig(**(form | fields)), get_implementation(name))
    draw_weights(mixer, seed=0, depth=1)
    return mixer


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_what_is_left_open_is_filled_in():
    config = MixerConfig(dim=24, num_heads=4, num_kv_heads=2, head_dim=6, bias=True)
    assert (config.head_dim_v, config.out_bias, config.key_dim, config.value_dim) == (6, True, 24, 24)
    config = MixerConfig(
        dim=24, num_heads=4, num_kv_heads=2, head_dim=6, head_dim_v=3, out_bias=True, cross=True, key_dim=9
    )
    assert (config.head_dim_v, config.out_bias, config.key_dim, config.value_dim) == (3, True, 9, 24)
    assert (config.bias, mixer_problem(config, 1, 2, 3).head_dim_v) == (False, 3)
    with pytest.raises(UsageError, match=r"key_dim=9, value_dim=24: self-attention makes .* is 24 wide"):
        MixerConfig(dim=24, num_heads=4, num_kv_heads=2, head_dim=6, key_dim=9)


@pytest.mark.parametrize("lengths", [None, [7, 5], [7, 0]], ids=["whole", "ragged", "empty"])
@pytest.mark.parametrize("name", ["naive", "sdpa"])
def test_keys_and_values_of_other_widths_are_those_of_torch(name, lengths):
    mixer = make(name, num_kv_heads=4, cross=True, bias=True, key_dim=10, value_dim=17)
    theirs = torch.nn.MultiheadAttention(24, 4, kdim=10, vdim=17, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        for which in ("q", "k", "v"):
            ours = mixer.get_submodule(f"{which}_proj")
            theirs.get_parameter(f"{which}_proj_weight").copy_(ours.get_parameter("weight"))
        theirs.out_proj.load_state_dict(mixer.out_proj.state_dict())
    x, keys, values = drawn(2, 3, 24), drawn(2, 7, 10, seed=1), drawn(2, 7, 17, seed=2)
    padding = None if lengths is None else torch.arange(7) >= torch.tensor(lengths)[:, None]
    expected = theirs(x, keys, values, key_padding_mask=padding, need_weights=False)[0]
    actual, state = mixer(x, (keys, values), lengths)
    assert state is None
    rows = slice(None) if lengths is None or min(lengths) else slice(1)
    torch.testing.assert_close(actual[rows], expected[rows], rtol=1e-12, atol=1e-12)
    assert actual.isfinite().all()


@pytest.mark.parametrize("as_mask", [False, True], ids=["lengths", "mask"])
@pytest.mark.parametrize("name", ["naive", "sdpa", "linear"])
@torch.no_grad()
def test_a_context_is_read_once_and_remembered(name, as_mask):
    mixer = make(name, cross=True, mask=Causal())
    x, context, counts = drawn(2, 9, 24), drawn(2, 5, 24, seed=1), [5, 3]
    lengths = torch.arange(5) < torch.tensor(counts)[:, None] if as_mask else counts
    whole, _ = mixer(x, context, lengths)
    changed = context.clone()
    changed[1, 3:] = torch.nan
    state = mixer.new_state(2, 9)
    pieces = [mixer(x[:, :4], changed, lengths, state)[0]]
    restore = keep(state)
    for _ in range(2):
        restore()
        rest = [mixer(x[:, t : t + 1], state=state)[0] for t in range(4, 9)]
        torch.testing.assert_close(torch.cat([*pieces, *rest], dim=1), whole, rtol=0, atol=1e-12)
    # Every query sees the whole context, whatever the mask of self-attention.
    alone, _ = mixer(x[1:], context[1:, :3])
    torch.testing.assert_close(whole[1:], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dtype", "atol"), [("float64", 1e-12), ("float32", 1e-5)])
@pytest.mark.parametrize("lengths", [None, [300, 7], [300, 0]], ids=["whole", "ragged", "empty"])
@torch.no_grad()
def test_linear_remembers_sums_of_its_context_and_no_keys(lengths, dtype, atol):
    mixer = make("linear", cross=True, dtype=dtype, head_dim_v=5)
    x, context = drawn(2, 6, 24).to(mixer.q_proj.weight.dtype), drawn(2, 300, 24, seed=1)
    context = context.to(x.dtype)
    whole, _ = mixer(x, context, lengths)
    state = mixer.new_state(2, 6)
    pieces = [mixer(x[:, :3], context, lengths, state)[0]]
    assert state.keys_values is None
    assert state.core.sums.shape == (2, 2, 6, 6)
    assert state.lengths == state.core.lengths == tuple(lengths or [300, 300])
    sums, restore = state.core.sums.clone(), keep(state)
    for _ in range(2):
        assert restore() is state
        rest = [mixer(x[:, t : t + 1], state=state)[0] for t in range(3, 6)]
        torch.testing.assert_close(torch.cat([*pieces, *rest], dim=1), whole, rtol=0, atol=atol)
    assert torch.equal(state.core.sums, sums)


@torch.no_grad()
def test_a_core_that_cannot_read_its_state_keeps_keys_and_values():
    mixer = make("linear", cross=True)
    mixer.implementation = dataclasses.replace(mixer.implementation, read=None)
    state = mixer.new_state(2, 6)
    mixer(drawn(2, 1, 24), drawn(2, 9, 24, seed=1), state=state)
    assert state.core is None
    assert [tuple(each.shape) for each in state.keys_values] == [(2, 2, 9, 6)] * 2


@pytest.mark.parametrize("name", ["naive", "linear"])
@torch.no_grad()
def test_restoring_an_empty_state_forgets_the_context(name):
    mixer = make(name, cross=True)
    state = mixer.new_state(1, 4)
    restore = keep(state)
    assert state.empty
    first, _ = mixer(drawn(1, 1, 24), drawn(1, 3, 24, seed=1), state=state)
    assert not state.empty
    assert restore() is state
    assert state.empty
    again, _ = mixer(drawn(1, 1, 24), drawn(1, 3, 24, seed=1), state=state)
    assert torch.equal(first, again)


@torch.no_grad()
def test_a_context_is_refused_where_it_does_not_belong():
    mixer, x = make(cross=True), drawn(2, 3, 24)
    with pytest.raises(UsageError, match="context: cross-attention needs one"):
        mixer(x)
    state = mixer.new_state(2, 4)
    with pytest.raises(UsageError, match="context: cross-attention needs one"):
        mixer(x, state=state)
    for context, message in (
        (x[:1], r"keys come from \[2, 3, 24\], not \[1, 3, 24\]"),
        (x[..., :5], r"keys come from \[2, 3, 24\], not \[2, 3, 5\]"),
        ((x, x[:, :2]), r"values come from \[2, 3, 24\], not \[2, 2, 24\]"),
    ):
        with pytest.raises(UsageError, match=f"context: {message}"):
            mixer(x, context, state=state)
    with pytest.raises(UsageError, match=r"lengths: 2 whole numbers from 0 to 3 are needed"):
        mixer(x, x, [4, 1], state)
    with pytest.raises(UsageError, match="state: made for 2 rows, x has 1"):
        mixer(x[:1], x[:1], state=state)
    plain = dataclasses.replace(
        mixer.implementation, supports=mixer.implementation.supports - {"key-lengths"}
    )
    mixer.implementation = plain
    with pytest.raises(UsageError, match="naive does not support key-lengths"):
        mixer(x, x, [3, 1], state)
    assert state.empty
    mixer(x, x, state=state)
    for again in ({"context": x}, {"lengths": [1, 1]}):
        with pytest.raises(UsageError, match="context, lengths: the state holds them already"):
            mixer(x, state=state, **again)
    with pytest.raises(UsageError, match="context: self-attention takes none"):
        make()(x, x)


@pytest.mark.parametrize("rotary", [True, False], ids=["rotary", "plain"])
@pytest.mark.parametrize(("name", "mask"), CASES, ids=IDS)
@torch.no_grad()
def test_rows_of_different_lengths_decode_as_each_would_alone(name, mask, rotary):
    mixer = make(name, mask=mask, rotary=rotary)
    x = drawn(3, 20, 24)
    whole, _ = mixer(x)
    state = mixer.new_state(3, 20)
    for size, added in ((9, [9, 2, 0]), (4, [1, 4, 3]), (1, [1, 1, 1]), (1, None), (6, [6, 0, 5])):
        starts = state.lengths
        counts = [size] * 3 if added is None else added
        chunk = torch.full((3, size, 24), 3.0, dtype=torch.float64)
        for b, count in enumerate(counts):
            chunk[b, :count] = x[b, starts[b] : starts[b] + count]
        y, same = mixer(chunk, lengths=added, state=state)
        assert same is state
        assert y.isfinite().all()
        for b, count in enumerate(counts):
            expected = whole[b, starts[b] : starts[b] + count]
            torch.testing.assert_close(y[b, :count], expected, rtol=0, atol=1e-12)
    assert state.lengths == (18, 8, 10)


@pytest.mark.parametrize(("name", "mask"), CASES, ids=IDS)
@torch.no_grad()
def test_a_chunk_that_is_refused_moves_no_state(name, mask):
    mixer = make(name, mask=mask, rotary=True)
    state = mixer.new_state(2, 4)
    mixer(drawn(2, 3, 24), state=state)
    with pytest.raises(UsageError, match="state: made for 4 positions, 5 are needed"):
        mixer(drawn(2, 2, 24), state=state)
    with pytest.raises(UsageError, match="state: made for 2 rows, x has 1"):
        mixer(drawn(1, 1, 24), state=state)
    assert state.lengths == state.core.lengths == (3, 3)


@torch.no_grad()
def test_a_state_lies_where_the_weights_lie_and_has_their_type():
    mixer = make(dtype="float32").double()
    assert mixer.new_state(2, 4).core.k.dtype == torch.float64
    assert make(mask=SlidingWindow(3)).new_state(2, 1 << 20).core.k.shape == (2, 2, 3, 6)


def test_a_padding_mask_counts_the_valid_positions():
    mask = torch.tensor([[True, True, False], [False] * 3, [True] * 3])
    assert row_lengths(mask, 3, 3) == (2, 0, 3)
    assert row_lengths(torch.zeros(2, 0, dtype=torch.bool), 2, 0) == (0, 0)
    x, mixer = drawn(3, 3, 24), make()
    assert torch.equal(mixer(x, lengths=mask)[0], mixer(x, lengths=[2, 0, 3])[0])


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (torch.ones(2, 4, dtype=torch.bool), r"a padding mask of shape \[2, 3\] is needed, not \[2, 4\]"),
        (torch.ones(2, dtype=torch.bool), r"a padding mask of shape \[2, 3\] is needed, not \[2\]"),
        (torch.tensor([[False, True, True], [True] * 3]), "a padding mask is true first and false after"),
        (torch.tensor([[True, False, True], [True] * 3]), "a padding mask is true first and false after"),
        (torch.tensor([-1, 2]), r"2 whole numbers from 0 to 3 are needed, one for each row, not \[-1, 2\]"),
        (torch.tensor([4, 2]), r"2 whole numbers from 0 to 3 are needed, one for each row, not \[4, 2\]"),
        (torch.tensor([1.0, 2.0]), r"2 whole numbers .*, not \[1.0, 2.0\]"),
        ([True, False], r"2 whole numbers .*, not \[True, False\]"),
        ([1, 2, 3], r"2 whole numbers .*, not \[1, 2, 3\]"),
        (torch.ones(2, 3, dtype=torch.int64), r"2 whole numbers .*, not \[\[1, 1, 1\], \[1, 1, 1\]\]"),
    ],
)
def test_lengths_that_are_none_are_refused_by_the_name_of_the_argument(lengths, message):
    with pytest.raises(UsageError, match=f"source_lengths: {message}"):
        row_lengths(lengths, 2, 3, name="source_lengths")


@pytest.mark.parametrize("mode", ["full", "window"])
def test_masks_that_look_ahead_see_what_the_state_holds(mode):
    mask = Full() if mode == "full" else SlidingWindow(3, causal=False)
    mixer, x = make(mask=mask), drawn(2, 8, 24)
    with torch.no_grad():
        state = mixer.new_state(2, 8)
        mixer(x[:, :5], state=state)
        rest, _ = mixer(x[:, 5:], state=state)
        torch.testing.assert_close(rest, mixer(x)[0][:, 5:], rtol=0, atol=1e-12)
