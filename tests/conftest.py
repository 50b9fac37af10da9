"""One interpreting, single-threaded process; what a test needs beyond that runs in a process of its own."""

import os

# Before anything imports numpy, torch or triton. Child processes inherit it.
os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"  # said aloud, since Triton 3.10 turns the default around

from collections.abc import Iterator
from dataclasses import replace

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
