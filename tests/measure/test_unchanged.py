"""Inputs that a call wrote to are told by their fingerprints, whatever they hold."""

import math

import torch

from attnbench.measure.unchanged import changed_inputs, fingerprints


def test_the_last_bit_of_one_number_is_told() -> None:
    inputs = {"q": torch.randn(2, 3, 50), "k": torch.full((4, 5), math.nan), "tokens": torch.arange(9)}
    inputs["v"] = torch.randn(6, 7).T
    given = fingerprints(inputs)
    assert changed_inputs(given, inputs) is None
    inputs["v"][6, 5] = math.nextafter(float(inputs["v"][6, 5]), math.inf) + 1e-6
    assert changed_inputs(given, inputs) == "it writes to its inputs: v"
    inputs["tokens"][8] = 0
    assert changed_inputs(given, inputs) == "it writes to its inputs: tokens, v"


def test_every_dtype_and_no_numbers_at_all_have_a_fingerprint() -> None:
    dtypes = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool)
    inputs = {str(dtype): torch.ones(3, 4).to(dtype) for dtype in dtypes}
    inputs |= {"empty": torch.empty(0, 3), "leaf": torch.ones(2).requires_grad_()}
    given = fingerprints(inputs)
    assert changed_inputs(given, inputs) is None
    for name in map(str, dtypes):
        inputs[name][2, 3] = 0
    assert changed_inputs(given, inputs) == f"it writes to its inputs: {', '.join(map(str, dtypes))}"
