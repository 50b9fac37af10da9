"""The environment variables of fork servers (threads, interpreter, GPU, caches), and of this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attnbench.device.environment import TRITON_SETTINGS


def server_environment(
    *, interpreted: bool, threads: int, visible_gpu: str | None = None, scratch: Path | None = None
) -> dict[str, str]:
    """All variables of a fork server and its workers.

    Args:
        interpreted: whether Triton interprets its kernels there.
        threads: CPU threads of native code.
        visible_gpu: UUID of the one GPU to show, which becomes `cuda:0`; None shows what this process sees.
        scratch: folder of the run, for compiled kernels: two runs at once don't share a cache, which Triton's
            processes may corrupt for each other.
    """
    variables = TRITON_SETTINGS | os.environ
    variables.pop("TRITON_INTERPRET", None)
    count = str(1 if interpreted else threads)
    variables.update(
        OMP_NUM_THREADS=count,
        MKL_NUM_THREADS=count,
        # numpy's pool: the interpreter slows down eightfold when its threads wait for each other, and a
        # server without threads is safe to fork. torch's products don't use it.
        OPENBLAS_NUM_THREADS="1",
        # Asking whether there is a GPU must not initialise CUDA before the fork.
        PYTORCH_NVML_BASED_CUDA_CHECK="1",
        CUDA_DEVICE_ORDER="PCI_BUS_ID",
    )
    if interpreted:
        variables["TRITON_INTERPRET"] = "1"
    if visible_gpu is not None:
        variables["CUDA_VISIBLE_DEVICES"] = visible_gpu
    if scratch is not None:
        variables.setdefault("TRITON_CACHE_DIR", str(scratch / "triton-cache"))
        variables.setdefault("TORCHINDUCTOR_CACHE_DIR", str(scratch / "inductor-cache"))
    return variables


@contextmanager
def triton_settings() -> Iterator[None]:
    """Tell Triton in this process, for a while, what fork servers are told: what a run records is so."""
    missing = {name: value for name, value in TRITON_SETTINGS.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]
