"""One interpreting, single-threaded process; what a test needs beyond that runs in a process of its own."""

import os

# Before anything imports numpy, torch or triton. Child processes inherit it.
os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"  # said aloud, since Triton 3.10 turns the default around

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# How fast examples are drawn depends on what else the machine does, and is no property of what is tested.
PATIENT = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ordinary", PATIENT, max_examples=20)
settings.register_profile("long", PATIENT, max_examples=500)
settings.load_profile("ordinary")


@pytest.fixture(autouse=True, scope="session")
def private_triton_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernels compiled by the tests and their children neither read nor fill the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton-cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def private_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs of these tests and of others at the same time don't wait for each other's turn on the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("tmp")))
        yield


@pytest.fixture(autouse=True, scope="session")
def unchecked_integers() -> None:
    """The interpreter checks each integer sum for overflow, in a third of its time: not here, see below."""
    from triton.runtime.interpreter import interpreter_builder

    interpreter_builder.options = replace(interpreter_builder.options, sanitize_overflow=False)


@pytest.fixture(autouse=True, scope="session")
def language_patched_once() -> None:
    """Spare what takes the interpreter half of its time, and changes nothing that a kernel computes.

    It patches the language again for each device function that a launched kernel calls, and makes a table of
    types anew for each cast.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    patch, table = interpreter._patch_lang, {}
    type_of = interpreter._get_np_dtype

    def patch_unless_patched(function: Any) -> Any:
        languages = [value for value in function.__globals__.values() if value is tl or value is tl.core]
        builtins = [tl.core.tensor.__add__, *(language.load for language in languages)]
        is_patched = languages and not any(map(tl.core.is_builtin, builtins))
        return None if is_patched else patch(function)

    def remembered_type(of: Any) -> Any:
        name = of.scalar.name
        if name not in table:
            table[name] = type_of(of)
        return table[name]

    interpreter._patch_lang = patch_unless_patched
    interpreter._get_np_dtype = remembered_type


@pytest.fixture
def checked_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of offsets: 32-bit integers that overflow in an interpreted kernel raise."""
    from triton.runtime.interpreter import interpreter_builder

    checking = replace(interpreter_builder.options, sanitize_overflow=True)
    monkeypatch.setattr(interpreter_builder, "options", checking)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none."""
    needing_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not needing_gpu:
        return
    import torch

    if not torch.cuda.is_available():
        for item in needing_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
