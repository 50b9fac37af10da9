"""A case's id is stable and injective, and a case survives the way to another process."""

import json
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.contract.errors import UsageError
from attnbench.contract.masks import Causal, Full, SlidingWindow
from attnbench.plan.case import Case, Inputs

GOLDEN = {
    "attention/naive/fwd/causal/n1024/b1-h8-d64/float32/cpu": Case(implementation="naive", seqlen_q=1024),
    "attention/sdpa/bwd/full/n64/b2-h8-g2-d32-v16/bfloat16/cuda": Case(
        implementation="sdpa",
        mode="bwd",
        mask={"name": "full"},
        seqlen_q=64,
        batch=2,
        num_kv_heads=2,
        head_dim=32,
        head_dim_v=16,
        dtype="bfloat16",
        device="cuda",
    ),
    "attention/naive/decode/causal/n4096/b1-h8-d64/float32/cpu": Case(
        implementation="naive", mode="decode", seqlen_q=1, seqlen_k=4096
    ),
    "attention/naive/fwd/window256/q7-k1000/b1-h8-d64/float32/cpu/scale=0.5/lengths=900/start=6": Case(
        implementation="naive",
        mask={"name": "sliding-window", "window_size": 256},
        seqlen_q=7,
        seqlen_k=1000,
        scale=0.5,
        key_lengths=(900,),
        query_start=6,
    ),
    "attention/linear,chunk_size=128,exact=true/fwd/causal/n64/b2-h8-d64/float32/cpu/starts=0,3": Case(
        implementation="linear",
        options={"exact": True, "chunk_size": 128},
        seqlen_q=64,
        batch=2,
        query_start=(0, 3),
    ),
    "attention/.%2Fmine.py#fast/fwd/causal/n64/b1-h8-d64/float32/cpu/cache=warm/threads=2/compile=true": Case(
        implementation="./mine.py#fast", seqlen_q=64, cache="warm", threads=2, compile=True
    ),
    "model:small-decoder/naive/fwd/causal/n256/b1-h4-d64/float32/cpu/inputs=text": Case(
        level="model", preset="small-decoder", implementation="naive", seqlen_q=256, inputs="text"
    ),
}

lengths = st.integers(0, 40)
masks = st.one_of(
    st.sampled_from([{"name": "causal"}, {"name": "full"}]),
    st.builds(
        lambda size, causal: {"name": "sliding-window", "window_size": size, "causal": causal},
        st.integers(1, 40),
        st.booleans(),
    ),
)
tricky = st.one_of(
    st.sampled_from(["a", "a/b", "a,b=1", "a%2Fb", "1", "true", "1.0", "a#b", "", "naive/fwd"]),
    st.text(max_size=3),
)
option_values = st.one_of(st.booleans(), st.integers(-3, 12), st.sampled_from([0.0, 1.0, 0.5, 1e30]), tricky)
cases = st.builds(
    Case,
    implementation=tricky,
    options=st.dictionaries(tricky, option_values, max_size=2),
    mode=st.sampled_from(["fwd", "bwd", "fwd_bwd", "decode"]),
    mask=masks,
    batch=lengths,
    num_heads=lengths,
    num_kv_heads=lengths,
    head_dim=lengths,
    head_dim_v=lengths,
    seqlen_q=lengths,
    seqlen_k=lengths,
    dtype=st.sampled_from(["float64", "float32", "float16", "bfloat16"]),
    device=st.sampled_from(["cpu", "cuda"]),
    scale=st.one_of(st.none(), st.sampled_from([0.5, 1.0, 2e-5])),
    key_lengths=st.one_of(st.none(), st.lists(lengths, max_size=2).map(tuple)),
    query_start=st.one_of(st.none(), lengths, st.lists(lengths, max_size=2).map(tuple)),
    inputs=st.sampled_from(get_args(Inputs)),
    cache=st.sampled_from(["cold", "warm"]),
    threads=st.one_of(st.none(), lengths),
    compile=st.booleans(),
    checkpoint=st.booleans(),
    architecture=st.one_of(st.none(), tricky),
)
small_changes = st.sampled_from(
    [
        ("implementation", "b"),
        ("options", {"a": 1}),
        ("options", {"a": "1"}),
        ("options", {"a": True}),
        ("mode", "decode"),
        ("mask", {"name": "sliding-window", "window_size": 1}),
        ("mask", {"name": "sliding-window", "window_size": 1, "causal": False}),
        ("batch", 41),
        ("num_heads", 41),
        ("num_kv_heads", 41),
        ("head_dim", 41),
        ("head_dim_v", 41),
        ("seqlen_q", 41),
        ("seqlen_k", 41),
        ("dtype", "float16"),
        ("device", "cuda"),
        ("scale", 3.0),
        ("key_lengths", (41,)),
        ("query_start", 41),
        ("query_start", (41,)),
        ("inputs", "text"),
        ("inputs", "large-logits"),
        ("cache", "warm"),
        ("threads", 41),
        ("compile", True),
        ("checkpoint", True),
        ("architecture", "a"),
    ]
)


def key(case: Case) -> str:
    """Return the case's data: 1, 1.0 and true differ, a default left out of a mask does not."""
    plain = case.to_dict()
    if plain["mask"]["name"] == "sliding-window":
        plain["mask"] = {"causal": True, **plain["mask"]}
    return json.dumps(plain, sort_keys=True)


@pytest.mark.parametrize("case_id", GOLDEN)
def test_ids_stay_as_they_are(case_id: str) -> None:
    assert GOLDEN[case_id].case_id == case_id


@given(cases, cases)
def test_different_cases_have_different_ids(one: Case, other: Case) -> None:
    assert (one.case_id == other.case_id) == (key(one) == key(other))


@given(cases, small_changes)
def test_every_key_is_in_the_id(case: Case, change: tuple[str, Any]) -> None:
    changed = msgspec.structs.replace(case, **dict([change]))
    assert (changed.case_id == case.case_id) == (key(changed) == key(case))


@given(cases)
def test_survives_json(case: Case) -> None:
    again = Case.from_dict(json.loads(json.dumps(case.to_dict())))
    assert again == case
    assert again.case_id == case.case_id
    assert msgspec.json.decode(msgspec.json.encode(case), type=Case) == case


def test_problem_has_the_same_numbers() -> None:
    case = GOLDEN["attention/sdpa/bwd/full/n64/b2-h8-g2-d32-v16/bfloat16/cuda"]
    problem = case.problem()
    for name in ("batch", "num_heads", "num_kv_heads", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v"):
        assert getattr(problem, name) == getattr(case, name)
    assert (problem.dtype, problem.device, problem.mode) == ("bfloat16", "cuda", "bwd")
    assert problem.mask.name == "full"


def test_problem_takes_mask_and_options() -> None:
    case = Case(
        implementation="linear",
        options={"chunk_size": 32},
        seqlen_q=4,
        mask={"name": "sliding-window", "window_size": 3},
        query_start=9,
    )
    problem = case.problem()
    assert problem.mask == SlidingWindow(3)
    assert problem.option("chunk_size") == 32
    assert problem.query_starts == (9,)
    assert hash(problem) == hash(case.problem())


def test_defaults_are_filled_in() -> None:
    case = Case(implementation="naive", seqlen_q=5)
    assert (case.seqlen_k, case.seqlen, case.num_kv_heads, case.head_dim_v) == (5, 5, 8, 64)
    assert case.problem().mask == Causal()
    assert case.problem().scale is None


def test_dimensions_of_a_model_come_from_its_preset() -> None:
    case = Case(level="model", preset="llama-3-8b", implementation="naive", seqlen_q=5)
    assert (case.num_heads, case.num_kv_heads, case.head_dim, case.head_dim_v) == (32, 8, 128, 128)


@pytest.mark.parametrize(
    ("keys", "mask"),
    [
        ({"preset": "tiny"}, {"name": "causal"}),
        ({"preset": "tiny-bert"}, {"name": "full"}),
        ({"preset": "tiny-gpt2", "architecture": "encoder-only"}, {"name": "full"}),
        ({"preset": "tiny-translator"}, {"name": "causal"}),
        ({"preset": "tiny-bert", "mask": {"name": "causal"}}, {"name": "causal"}),
    ],
)
def test_the_mask_of_a_model_is_that_of_its_preset(keys: dict[str, Any], mask: dict[str, Any]) -> None:
    case = Case(**{"level": "model", "implementation": "naive", "seqlen_q": 5, **keys})
    assert case.mask == mask
    assert case.config().self_mask.to_dict() == mask


WINDOW = {"name": "sliding-window", "window_size": 3}


def test_an_encoder_beside_a_window_sees_it_to_both_sides() -> None:
    keys: dict[str, Any] = {"level": "model", "implementation": "naive", "seqlen_q": 5}
    config = Case(**keys, preset="tiny-translator", mask=WINDOW).config()
    assert (config.mask, config.encoder_mask) == (SlidingWindow(3), SlidingWindow(3, causal=False))
    plain = Case(**keys, preset="tiny-translator").config()
    assert (plain.mask, plain.encoder_mask) == (Causal(), Full())
    alone = Case(**keys, preset="tiny-bert", mask={**WINDOW, "causal": False}).config()
    assert alone.encoder_mask == SlidingWindow(3, causal=False)


def test_every_attention_of_an_architecture_has_its_shape() -> None:
    def shapes(**keys: Any) -> dict[str, tuple[Any, ...]]:
        case = Case(**{"level": "model", "implementation": "naive", "batch": 2, **keys})
        return {
            place: (p.seqlen_q, p.seqlen_k, p.mask.name, p.key_lengths, p.query_start)
            for place, p in case.problems().items()
        }

    two = {"preset": "tiny-translator", "seqlen_q": 4, "seqlen_k": 7, "key_lengths": (7, 3)}
    assert shapes(**two) == {
        "decoder": (4, 4, "causal", (4, 3), None),
        "encoder": (7, 7, "full", (7, 3), None),
        "cross": (4, 7, "full", (7, 3), None),
    }
    assert list(shapes(**two, level="block")) == ["decoder", "cross"]
    assert shapes(**(two | {"mode": "decode", "seqlen_q": 1})) == {
        "decoder": (1, 7, "causal", (7, 3), (6, 2)),
        "cross": (1, 7, "full", (7, 3), None),
    }
    assert shapes(preset="tiny-bert", seqlen_q=5) == {"encoder": (5, 5, "full", None, None)}
    assert shapes(preset="tiny", seqlen_q=5) == {"decoder": (5, 5, "causal", None, None)}


def test_a_preset_is_changed_as_far_as_the_case_says() -> None:
    keys: dict[str, Any] = {"level": "model", "implementation": "naive", "preset": "tiny", "seqlen_q": 5}
    assert Case(**keys).overrides() == {}
    wider = Case(**keys, num_heads=8, checkpoint=True)
    assert wider.overrides() == {
        "checkpoint_activations": True,
        "num_heads": 8,
        "num_kv_heads": 2,
        "head_dim": 8,
        "head_dim_v": 8,
    }
    assert wider.config().head_dim == 8
    assert Case(**(keys | {"seqlen_q": 300})).overrides() == {"max_seqlen": 300}


def test_a_model_needs_a_preset() -> None:
    with pytest.raises(UsageError, match="level 'model' needs a preset"):
        Case(level="model", implementation="naive", seqlen_q=5)
    with pytest.raises(UsageError, match="did you mean 'gpt2'"):
        Case(level="model", preset="gpt-2", implementation="naive", seqlen_q=5)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"sedes": 1}, "unknown field `sedes`"), ({"seqlen_q": "4"}, "got `str` - at `\\$.seqlen_q`")],
)
def test_plain_data_is_checked(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Case.from_dict({"implementation": "naive", "seqlen_q": 4} | change)


def test_a_case_does_not_change() -> None:
    case = Case(implementation="naive", seqlen_q=4)
    with pytest.raises(AttributeError):
        case.batch = 2  # type: ignore[misc]
