"""The kernel of exponentials: right in the interpreter, and on a GPU nothing but exponentials."""

import json
import os
import subprocess
import sys

import pytest
import torch

from attnbench.measure.exp2_kernel import BLOCK, CHAIN, exp2_chain, run_exp2_chain


def test_a_chain_of_exponentials_is_one():
    x = torch.linspace(-3, 3, 2 * BLOCK)
    expected = x.double()
    for _ in range(5):
        expected = torch.exp2(-expected)
    exp2_chain[(2,)](x, 5, BLOCK)
    torch.testing.assert_close(x.double(), expected, rtol=1e-5, atol=0)


def test_it_stays_between_0_and_1():
    """However long the chain, no infinity or denormal, which may take another time."""
    x = torch.full((BLOCK,), 0.0)
    run_exp2_chain(x)
    assert CHAIN == 256
    torch.testing.assert_close(x, torch.full_like(x, 0.6411857), rtol=1e-5, atol=0)  # y = 2^-y


@pytest.mark.parametrize("x", [torch.zeros(BLOCK + 1), torch.zeros(BLOCK, dtype=torch.float64)])
def test_what_it_does_not_take(x):
    with pytest.raises(ValueError, match="takes float32 in whole blocks of 1024"):
        run_exp2_chain(x)


CODE = """
import json, tempfile, torch
from pathlib import Path
from attnbench.contract.launch import Launch
from attnbench.device.compile import compile_launch
from attnbench.device.targets import find_target
from attnbench.measure.exp2_kernel import BLOCK, CHAIN, exp2_chain
x = torch.empty(BLOCK, device="meta")
launch = Launch(grid=(1,), arguments={"x": x, "chain": CHAIN, "block": BLOCK}, options={"num_warps": 4})
facts = compile_launch(exp2_chain, launch, find_target("sm_90"), Path(tempfile.mkdtemp()))
print(json.dumps(facts.instructions))
"""


@pytest.mark.long
def test_compiled_it_is_hardware_exponentials_and_little_else():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_DUMP_PTXAS_LOG"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True
    )
    instructions = json.loads(done.stdout.splitlines()[-1])
    assert instructions["exp2"] > 0.9 * instructions["total"]
