"""The suites of the package are what they promise."""

from collections import Counter
from typing import get_args

import pytest

from attnbench.contract.discovery import get_implementation
from attnbench.contract.implementation import refusals
from attnbench.measure.attentions import case_refusals
from attnbench.model.config import Architecture
from attnbench.plan.suite import Suite, load_suite, suite_names

FIVE = {"naive", "sdpa", "triton-flash", "sliding-window", "linear"}


@pytest.fixture(scope="module")
def suites() -> dict[str, Suite]:
    return {name: load_suite(name, device="cpu") for name in suite_names()}


def test_names_are_those_of_the_files(suites: dict[str, Suite]) -> None:
    assert {"quick", "attention", "agreement", "transformers"} <= set(suites)
    assert all(suite.name == name and suite.description for name, suite in suites.items())


def test_quick_has_all_five_at_both_levels(suites: dict[str, Suite]) -> None:
    cases = suites["quick"].cases
    usable = [case for case in cases if not refusals(get_implementation(case.implementation), case.problem())]
    for level in ("attention", "model"):
        assert {case.implementation for case in usable if case.level == level} == FIVE
    attention = [case for case in cases if case.level == "attention"]
    assert {case.seqlen for case in attention if case.mode == "fwd"} == {256, 512, 1024, 2048, 4096}
    assert {case.seqlen for case in attention if case.mode == "fwd_bwd"} == {256, 512, 1024, 2048}
    assert {case.inputs for case in cases if case.level == "model"} == {"text"}


def test_quick_compares_the_window_with_naive(suites: dict[str, Suite]) -> None:
    windowed = [case for case in suites["quick"].cases if case.mask.get("window_size") == 256]
    assert Counter(case.implementation for case in windowed) == {"sliding-window": 9, "naive": 5}


def test_attention_keeps_tokens_and_width(suites: dict[str, Suite]) -> None:
    cases = suites["attention"].cases
    assert len(cases) <= 450
    assert {case.batch * case.seqlen for case in cases} == {16384}
    assert {case.num_heads * case.head_dim for case in cases} == {2048}
    assert {case.head_dim for case in cases} == {64, 128, 256}
    assert {case.dtype for case in cases} == {"bfloat16"}
    assert {case.mode for case in cases} == {"fwd", "fwd_bwd", "decode"}


def test_attention_decodes(suites: dict[str, Suite]) -> None:
    cases = [case for case in suites["attention"].cases if case.mode == "decode"]
    assert Counter(case.implementation for case in cases) == dict.fromkeys(FIVE, 6)
    assert {case.seqlen_q for case in cases} == {1}
    assert {case.mask.get("window_size") for case in cases if case.implementation == "sliding-window"} == {
        1024
    }
    on_gpu = load_suite("attention", device="cuda", device_must_exist=False).cases
    assert not any(case_refusals(case) for case in on_gpu if case.mode == "decode")


def test_transformers_has_every_architecture_mode_and_implementation(suites: dict[str, Suite]) -> None:
    cases = suites["transformers"].cases
    found: Counter[tuple[str, ...]] = Counter(
        (case.level, case.config().architecture, case.mode, case.implementation) for case in cases
    )
    for level in ("block", "model"):
        for architecture in get_args(Architecture):
            modes = ("fwd", "fwd_bwd") if architecture == "encoder-only" else ("fwd", "fwd_bwd", "decode")
            for mode in modes:
                trained = FIVE - {"triton-flash"} if mode == "fwd_bwd" else FIVE
                for name in trained:
                    assert found[level, architecture, mode, name] >= 3, "lengths to see a share grow"


def test_no_case_of_transformers_is_refused(suites: dict[str, Suite]) -> None:
    refused = {case.case_id: case_refusals(case) for case in suites["transformers"].cases}
    assert not any(refused.values())


def test_transformers_measures_the_share(suites: dict[str, Suite]) -> None:
    assert {"latency", "memory", "flops", "share", "optimizer"} <= set(suites["transformers"].measure.metrics)
    assert "share" not in suites["quick"].measure.metrics, "quick keeps to its minute"


def test_agreement_covers_the_awkward(suites: dict[str, Suite]) -> None:
    suite = suites["agreement"]
    assert suite.measure.metrics == ("agreement",)
    for name in FIVE:
        cases = [case for case in suite.cases if case.implementation == name]
        assert {case.seqlen for case in cases} >= {1, 2, 7, 63, 64, 65, 127, 129, 1000}
        assert {case.dtype for case in cases} == {"float32", "float16"}
        assert any(case.num_kv_heads != case.num_heads for case in cases)
        assert any(case.seqlen_q > case.seqlen_k for case in cases)
        assert any(case.seqlen_q < case.seqlen_k for case in cases)
        assert any(case.key_lengths for case in cases)


def test_no_case_of_agreement_is_refused_forward(suites: dict[str, Suite]) -> None:
    refused = {
        case.case_id: reasons
        for case in suites["agreement"].cases
        if case.mode == "fwd"
        and (reasons := refusals(get_implementation(case.implementation), case.problem()))
    }
    assert not refused
