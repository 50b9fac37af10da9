"""Rules that no run on a CPU can check: read off the source of every Triton kernel in `implementations/`."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import attnbench.implementations

FOLDER = Path(attnbench.implementations.__path__[0])
GONE = {"make_block_ptr", "advance"}
"""Block pointers: removed in Triton 3.9 (E03)."""


def kernels() -> Iterator[ast.FunctionDef]:
    for path in sorted(FOLDER.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
            if isinstance(node, ast.FunctionDef) and any(
                "triton.jit" in ast.unparse(d) for d in node.decorator_list
            ):
                yield node


def calls(kernel: ast.FunctionDef, name: str) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(kernel)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name
    ]


def keywords(call: ast.Call) -> set[str | None]:
    return {keyword.arg for keyword in call.keywords}


KERNELS = [pytest.param(kernel, id=kernel.name) for kernel in kernels()]


def test_there_are_kernels_to_check():
    assert sum(bool(calls(kernel, "load")) for kernel in kernels()) >= 3


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_masked_load_names_its_default(kernel):
    """E13 (pytorch/pytorch#126535): undefined by the language, 0 in the interpreter and on one vendor."""
    for load in calls(kernel, "load"):
        assert len(load.args) == 1, "name the mask"
        assert ("mask" in keywords(load)) == ("other" in keywords(load)), ast.unparse(load)


@pytest.mark.parametrize("kernel", KERNELS)
def test_no_block_pointers(kernel):
    assert not [call for name in GONE for call in calls(kernel, name)]


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_product_names_its_precision(kernel):
    """E05 (triton-lang/triton#5895): float32 means TF32 unless told otherwise; the interpreter hides it."""
    for product in calls(kernel, "dot"):
        assert "input_precision" in keywords(product), ast.unparse(product)


@pytest.mark.parametrize("kernel", KERNELS)
def test_infinity_is_not_a_finite_number(kernel):
    """A03: no sentinel such as -1e9 or the smallest finite number in place of minus infinity."""
    numbers = [
        n.value for n in ast.walk(kernel) if isinstance(n, ast.Constant) and isinstance(n.value, float)
    ]
    assert all(abs(number) < 1e3 for number in numbers)
