"""The mixers' share of a block and of a model: closed forms, known answers, a clock that is told the time."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnbench.measure.borders import Inside, borders, mixers_of
from attnbench.measure.counting import count_call
from attnbench.measure.lifetimes import LifetimeTracker
from attnbench.measure.memory import predict_counts
from attnbench.measure.pipeline import measure_case
from attnbench.measure.share import LONG_CALL_MS, latency_fraction, measure_share
from attnbench.measure.stopping import FLOOR
from attnbench.measure.workload import Workload, build_workload
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings

QUICK = MeasureSettings(latency_budget_s=0.02, warmup_s=0.0, min_samples=3, reference_rows=64)
KIB = 1024


def case(**keys: Any) -> Case:
    return Case.from_dict(
        {"implementation": "naive", "level": "block", "preset": "tiny", "seqlen_q": 64, **keys}
    )


@pytest.mark.parametrize(("mode", "times"), [("fwd", 1), ("bwd", 2), ("fwd_bwd", 3)])
@pytest.mark.parametrize("level", ["block", "model"])
def test_flops_are_those_of_the_closed_form(mode: str, times: int, level: str) -> None:
    """tiny: dim 32, 4 heads on 2, feed-forward 64 with a gate, 2 layers, 256 tokens.

    A backward pass is two products for each of the forward's, naive's over all pairs.
    """
    batch, n, dim, heads_dim, groups_dim, ffn, vocab = 2, 64, 32, 32, 16, 64, 256
    projections = 2 * batch * n * (2 * dim * heads_dim + 2 * dim * groups_dim)
    core = 2 * batch * n * n * 2 * heads_dim
    mixer, rest = projections + core, 2 * batch * n * 3 * dim * ffn
    if level == "model":
        # The loss of a model is of every token but the last; the head runs on all of them.
        mixer, rest = 2 * mixer, 2 * rest + 2 * batch * n * dim * vocab
    counted = predict_counts(case(mode=mode, batch=batch, level=level))
    assert counted.mixer_flops == times * mixer
    assert counted.flops == times * (mixer + rest)
    section = measure_share(build_workload(case(mode=mode, batch=batch, level=level)), counted, {})
    assert section is not None
    assert section.flops_fraction == mixer / (mixer + rest)


def test_kernels_are_the_mixers() -> None:
    """Interpreted: the operator states the FLOPs of its kernel."""
    workload = build_workload(case(implementation="triton-flash", num_heads=4), fake=False)
    section = measure_share(workload, count_call(workload), {})
    assert section is not None
    counted = count_call(workload)
    assert counted.kernel_flops == workload.implementation.cost(workload.problem).executed_flops
    assert section.flops_fraction == counted.mixer_flops / counted.flops


class Toy(nn.Module):
    """A layer that holds at most 2 KiB of its mixer's, and later 3 KiB of its own."""

    class Mixer(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, None]:
            y = x + 1
            return y, None

    def __init__(self) -> None:
        super().__init__()
        self.mixer = Toy.Mixer()

    def forward(self, x: Tensor) -> Tensor:
        first, _ = self.mixer(x)
        second, _ = self.mixer(x)
        y = first * second
        del first, second
        return torch.cat((y, y, y))


def test_bytes_belong_to_who_made_them_and_each_peak_is_at_its_moment() -> None:
    toy, inside, x = Toy(), Inside(), torch.ones(256)
    with LifetimeTracker(inside=inside.__bool__) as tracker, borders(toy, inside.enter, inside.leave):
        tracker.hold([x])
        tracker.reset_peak()
        y = toy(x)
    assert (tracker.peak_bytes, tracker.peak_inside_bytes) == (5 * KIB, 2 * KIB)
    assert (tracker.live_bytes, tracker.live_inside_bytes) == (4 * KIB, 0)
    assert not inside
    del y


@pytest.mark.parametrize("implementation", ["naive", "sdpa", "linear"])
@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd_bwd"])
@pytest.mark.parametrize("level", ["block", "model"])
def test_real_and_fake_tensors_say_the_same(implementation: str, mode: str, level: str) -> None:
    of = case(implementation=implementation, mode=mode, level=level)
    real, fake = count_call(build_workload(of)), predict_counts(of)
    assert real.mixer_flops == fake.mixer_flops > 0
    assert real.mixer_peak_bytes == fake.mixer_peak_bytes > 0


@pytest.mark.parametrize("mode", ["fwd", "fwd_bwd"])
def test_borders_change_neither_numbers_nor_what_comes_after(mode: str) -> None:
    workload = build_workload(case(mode=mode, level="model"))
    assert workload.module is not None
    inside = Inside()
    with workload.environment():
        plain = workload.call()
        with borders(workload.module, inside.enter, inside.leave):
            bordered = workload.call()
        again = workload.call()
    assert not inside
    for outputs in (bordered, again):
        assert torch.equal(outputs.out, plain.out)
        for name, gradient in (plain.gradients or {}).items():
            assert torch.equal((outputs.gradients or {})[name], gradient)
    assert all("forward" not in vars(mixer) for mixer in mixers_of(workload.module))


def test_every_border_is_crossed_once_each_way() -> None:
    workload = build_workload(case(mode="fwd_bwd", level="model"))
    assert workload.module is not None
    crossings: list[str] = []
    enter, leave = (partial(crossings.append, way) for way in ("in", "out"))
    with workload.environment(), borders(workload.module, enter, leave):
        workload.call()
    assert crossings == ["in", "out"] * 4, "two layers, forward and backward"


def test_memory_grows_with_the_square_and_the_rest_with_the_length() -> None:
    fractions = []
    for seqlen in (128, 512, 2048):
        of = case(preset="small-decoder", seqlen_q=seqlen, level="model")
        section = measure_share(build_workload(of, fake=True), predict_counts(of), {})
        assert section is not None
        assert section.memory_fraction is not None
        assert section.flops_fraction is not None
        fractions.append((section.memory_fraction, section.flops_fraction))
    assert fractions == sorted(fractions)
    assert fractions[-1][0] > 0.9


class FakeStream:
    """A clock that work moves on."""

    def __init__(self) -> None:
        self.now_ms = 0.0

    def flush(self) -> None:
        self.now_ms += 1000

    def mark(self) -> float:
        return self.now_ms

    def elapsed_ms(self, start: float, end: float) -> float:
        return end - start

    def synchronize(self) -> None:
        pass


class Timed(nn.Module):
    def __init__(self, stream: FakeStream) -> None:
        super().__init__()
        self.stream, self.own_ms = stream, 0.0

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        self.stream.now_ms += self.own_ms
        return x, None


def timed_workload(stream: FakeStream, calls: Iterator[dict[str, float]]) -> Workload:
    """Each call takes the next of ``calls``: the milliseconds of every part."""
    parts = {name: Timed(stream) for name in ("mixer", "cross", "ffn")}
    plain = build_workload(case())

    def call() -> Any:
        for name, own_ms in next(calls).items():
            parts[name].own_ms = own_ms
            parts[name](plain.inputs["x"])
        return SimpleNamespace(out=plain.inputs["x"])

    return replace(plain, module=nn.ModuleDict(parts), call=call)


def test_time_between_the_borders_over_the_time_of_the_call() -> None:
    stream = FakeStream()
    workload = timed_workload(stream, repeat({"mixer": 3.0, "cross": 2.0, "ffn": 15.0}))
    assert latency_fraction(workload, QUICK, stream=stream) == 0.25


@pytest.mark.parametrize(
    ("first_ms", "calls", "fraction"), [(LONG_CALL_MS, 1 + FLOOR, 0.25), (2 * LONG_CALL_MS, 1, 0.75)]
)
def test_a_first_call_is_no_sample_unless_it_is_long(first_ms: float, calls: int, fraction: float) -> None:
    """It fills caches and pools; the later ones, beyond the budget too, say what is so."""
    stream = FakeStream()
    first = {"mixer": 0.75 * first_ms, "ffn": 0.25 * first_ms}
    later = ({"mixer": 25.0 + noise_ms, "ffn": 75.0 - noise_ms} for noise_ms in (-10.0, 0.0, 50.0))
    made = chain([first], later)
    assert latency_fraction(timed_workload(stream, made), QUICK, stream=stream) == fraction
    assert len(list(made)) == 1 + FLOOR - calls


@pytest.mark.parametrize("mode", ["fwd", "fwd_bwd"])
def test_a_long_sequence_is_almost_all_attention(mode: str) -> None:
    """At 64 tokens a mixer is a few projections; at 1024 the scores are 32 times as wide as the model."""
    short, long = (
        latency_fraction(build_workload(case(seqlen_q=n, level="model", mode=mode)), QUICK)
        for n in (64, 1024)
    )
    assert 0 < short < 1
    assert 0.7 < long < 1


def test_a_record_holds_the_share_at_the_levels_that_have_one() -> None:
    record = measure_case(case(level="model", inputs="text", implementation="sdpa"), QUICK)
    assert record.share is not None
    for name in ("latency_fraction", "memory_fraction", "flops_fraction"):
        assert 0 < getattr(record.share, name) < 1
    core = measure_case(Case(implementation="sdpa", seqlen_q=32), QUICK)
    assert core.share is None
    assert not any(name.startswith("share") for name in core.unavailable)


def test_what_cannot_be_had_says_why() -> None:
    settings = MeasureSettings(metrics=("share",), reference_rows=64)
    interpreted = measure_case(case(implementation="triton-flash", seqlen_q=16), settings)
    assert interpreted.share is not None
    assert interpreted.share.latency_fraction is None
    assert interpreted.share.flops_fraction is not None
    assert "interpreter" in interpreted.unavailable["share.latency_fraction"]
    compiled = replace(build_workload(case()), case=case(compile=True))
    missing: dict[str, str] = {}
    assert measure_share(compiled, count_call(build_workload(case())), missing) is None
    assert "compiled" in missing["share"]


def test_a_wrong_result_has_no_share_of_time() -> None:
    record = measure_case(case(implementation="sdpa"), QUICK)
    assert record.share is not None
    record.forget_speed()
    assert record.share.latency_fraction is None
    assert record.share.flops_fraction is not None
