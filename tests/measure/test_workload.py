"""Inputs are the same for everybody; a workload computes what its mode says, at every level, real or fake."""

import resource

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from attnbench.contract.errors import UsageError
from attnbench.contract.evaluation import truth
from attnbench.contract.problem import Problem
from attnbench.contract.semantics import SOFTMAX
from attnbench.measure.inputs import draw, inputs_key, make_inputs
from attnbench.measure.workload import Outputs, Workload, build_workload
from attnbench.plan.case import Case


def run(workload: Workload) -> Outputs:
    with workload.environment():
        workload.prepare()
        return workload.call()


def test_default_inputs_are_standard_normal_and_seeded():
    q = draw("normal", (4, 8, 256, 64), "float32", seed=3, name="q")
    assert abs(q.mean().item()) < 0.01
    assert abs(q.std().item() - 1) < 0.01
    assert q.unique().numel() > q.numel() * 0.9
    assert torch.equal(q, draw("normal", (4, 8, 256, 64), "float32", seed=3, name="q"))
    assert not torch.equal(q, draw("normal", (4, 8, 256, 64), "float32", seed=4, name="q"))
    assert not torch.equal(q, draw("normal", (4, 8, 256, 64), "float32", seed=3, name="k"))


def test_one_key_means_one_set_of_numbers():
    problem = Problem(seqlen_q=64, batch=2, num_kv_heads=2, mode="bwd")
    tensors = make_inputs(problem, seed=5)
    assert {name: tuple(x.shape) for name, x in tensors.items()} == {
        "q": (2, 8, 64, 64),
        "k": (2, 2, 64, 64),
        "v": (2, 2, 64, 64),
        "grad_out": (2, 8, 64, 64),
    }
    masked = problem.replace(mask="full", device="cuda", scale=1.0)
    assert inputs_key(masked, seed=5) == inputs_key(problem, seed=5)
    for name, x in make_inputs(masked, seed=5).items():
        assert torch.equal(x, tensors[name])
    for other in (problem.replace(seqlen_q=65), problem.replace(dtype="float16"), problem.replace(batch=1)):
        assert inputs_key(other, seed=5) != inputs_key(problem, seed=5)
    assert inputs_key(problem, seed=6) != inputs_key(problem, seed=5)


def test_dtypes_hold_the_same_numbers_rounded():
    wide, narrow = (draw("normal", (64, 64), dtype, seed=0, name="q") for dtype in ("float32", "float16"))
    assert torch.equal(wide.half(), narrow)


def test_an_unknown_family_is_one_clear_error():
    with pytest.raises(UsageError, match=r"unknown inputs 'norml' \(did you mean 'normal'\?\)"):
        draw("norml", (1,), "float32", seed=0, name="q")


def test_forward_builds_no_graph_and_is_right():
    workload = build_workload(Case(implementation="naive", seqlen_q=40, dtype="float64"))
    out = run(workload).out
    assert not out.requires_grad
    q, k, v = (workload.inputs[name] for name in "qkv")
    torch.testing.assert_close(out, truth(SOFTMAX, q, k, v, problem=workload.problem).out)


@pytest.mark.parametrize("implementation", ["naive", "sdpa"])
def test_both_backward_modes_give_the_true_gradients(implementation):
    gradients = {}
    for mode in ("bwd", "fwd_bwd"):
        case = Case(implementation=implementation, seqlen_q=40, num_kv_heads=2, dtype="float64", mode=mode)
        workload = build_workload(case, seed=1)
        found = run(workload).gradients
        assert found is not None
        gradients[mode] = found
        assert run(workload).gradients is not None, "a second call must work like the first"
        q, k, v = (workload.inputs[name].detach() for name in "qkv")
        true = truth(SOFTMAX, q, k, v, problem=workload.problem, grad_out=workload.inputs["grad_out"])
        for name, expected in (("q", true.dq), ("k", true.dk), ("v", true.dv)):
            torch.testing.assert_close(found[name], expected)
            assert workload.inputs[name].grad is None, "gradients are returned, not accumulated"
    assert all(torch.equal(gradients["bwd"][name], gradients["fwd_bwd"][name]) for name in "qkv")


def test_decode_is_the_last_row():
    decoded = run(build_workload(Case(implementation="naive", seqlen_q=1, seqlen_k=50, mode="decode"))).out
    full = build_workload(Case(implementation="naive", seqlen_q=1, seqlen_k=50, mask={"name": "full"}))
    assert decoded.shape == (1, 8, 1, 64)
    torch.testing.assert_close(decoded, run(full).out)


@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd_bwd"])
def test_a_block_maps_x_and_differentiates_x_and_every_weight(mode):
    case = Case(implementation="sdpa", level="block", preset="tiny", seqlen_q=20, batch=2, mode=mode)
    workload = build_workload(case)
    outputs = run(workload)
    assert outputs.out.shape == workload.inputs["x"].shape == (2, 20, 32)
    if mode == "fwd":
        assert outputs.gradients is None
        assert not outputs.out.requires_grad
    else:
        assert workload.module is not None
        names = {"x", *(name for name, _ in workload.module.named_parameters())}
        assert outputs.gradients is not None
        assert set(outputs.gradients) == names


def test_a_model_reads_real_text_and_learns_from_it():
    case = Case(implementation="naive", level="model", preset="tiny", seqlen_q=64, batch=2, inputs="text")
    workload = build_workload(case)
    tokens = workload.inputs["tokens"]
    assert tokens.shape == (2, 64)
    assert bytes(tokens.flatten().tolist()).decode("latin-1").count(" ") > 0
    logits = run(workload).out
    assert logits.shape == (2, 64, 256)
    other = build_workload(Case(**{**case.to_dict(), "implementation": "sdpa"}))
    torch.testing.assert_close(run(other).out, logits, rtol=1e-4, atol=1e-5)

    training = build_workload(Case(**{**case.to_dict(), "mode": "fwd_bwd"}))
    outputs = run(training)
    assert outputs.out.shape == ()
    assert 3 < outputs.out.item() < 8, "an untrained model over 256 bytes guesses: ln 256 = 5.5"
    assert outputs.gradients is not None
    assert all(gradient.isfinite().all() for gradient in outputs.gradients.values())


@pytest.mark.parametrize(
    ("key", "case"),
    [
        ("inputs = 'text'", {"inputs": "text"}),
        ("scale", {"level": "block", "preset": "tiny", "scale": 1.0}),
        ("query_start", {"level": "model", "preset": "tiny", "query_start": 3}),
        ("reads one sequence", {"level": "model", "preset": "tiny", "seqlen_k": 9}),
    ],
)
def test_keys_that_a_level_lacks_are_refused(key, case):
    with pytest.raises(UsageError, match=key):
        build_workload(Case(**{"implementation": "naive", "seqlen_q": 8, **case}))


@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd_bwd"])
def test_a_fake_workload_of_terabytes_allocates_nothing(mode):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    workload = build_workload(Case(implementation="naive", seqlen_q=131072, mode=mode), fake=True)
    outputs = run(workload)
    assert isinstance(outputs.out, FakeTensor)
    assert outputs.out.shape == (1, 8, 131072, 64)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 200 << 10


def test_a_fake_model_has_fake_weights():
    case = Case(implementation="sdpa", level="model", preset="gpt2", seqlen_q=1024, batch=64)
    workload = build_workload(case, fake=True)
    assert all(isinstance(x, FakeTensor) for x in workload.resident())
    assert run(workload).out.shape == (64, 1024, 50257)
