"""Tasks `task(case, settings, context)` for workers: each does to its process what a case may do."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

Plain = dict[str, Any]
FUSION = "TRITON_DEFAULT_FP_FUSION"


def ok(case: Plain, settings: Plain, context: Plain) -> Plain:
    """A record that says in which process and how it was made."""
    return {
        "case_id": case_id(case),
        "case": case,
        "status": "ok",
        "latency": {"median_ms": 1.0},
        "provenance": {
            "backend": str(os.getpid()),
            "threads": context["threads"],
            "execution": interpreter(),
        },
    }


def brief(case: Plain, settings: Plain, context: Plain) -> Plain:
    """A case that takes a moment."""
    time.sleep(0.03)
    return ok(case, settings, context)


def by_option(case: Plain, settings: Plain, context: Plain) -> Plain:
    """What the option `do` of the case names; `ok` without one."""
    return DEEDS[case["options"].get("do", "ok")](case, settings, context)


def again(case: Plain, settings: Plain, context: Plain) -> Plain:
    """A later launch that says what it was told of the first."""
    return by_option(case, settings, context) | {"reason": f"told {context['out_crc32']}"}


def hang(case: Plain, settings: Plain, context: Plain) -> Plain:
    """Never returns, and leaves a child of its own behind whose id is in the scratch folder."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(context["scratch"], "grandchild").write_text(str(child.pid), encoding="ascii")
    time.sleep(600)
    return {}


def segfault(case: Plain, settings: Plain, context: Plain) -> Plain:
    """Reads where nothing is."""
    print("about to read address zero")
    ctypes.string_at(0)
    return {}


def killed(case: Plain, settings: Plain, context: Plain) -> Plain:
    """As if somebody had killed it."""
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def kill_server(case: Plain, settings: Plain, context: Plain) -> Plain:
    """Kills the fork server under the running worker."""
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)
    return {}


def leave(case: Plain, settings: Plain, context: Plain) -> Plain:
    """Ends the process without an answer."""
    os._exit(7)


def raise_error(case: Plain, settings: Plain, context: Plain) -> Plain:
    """A mistake in somebody's kernel."""
    raise ZeroDivisionError("a block size of 0")


def exit_quietly(case: Plain, settings: Plain, context: Plain) -> Plain:
    """What a script at the top of somebody's module may do."""
    sys.exit("no such option")


def nonsense(case: Plain, settings: Plain, context: Plain) -> Plain:
    """Not a record."""
    return {"status": "excellent"}


def allocate(case: Plain, settings: Plain, context: Plain) -> Plain:
    """Asks for 2 GiB, which the machine has and the limit may forbid; none of it is touched."""
    import torch

    torch.empty(1 << 29)
    return ok(case, settings, context)


def fill_2_gib(case: Plain, settings: Plain, context: Plain) -> Plain:
    """Writes to 2 GiB."""
    import numpy

    numpy.ones(1 << 28)
    return ok(case, settings, context)


def allocate_numpy(case: Plain, settings: Plain, context: Plain) -> Plain:
    """The same by numpy."""
    import numpy

    numpy.empty(1 << 28)
    return ok(case, settings, context)


def torch_out_of_memory(case: Plain, settings: Plain, context: Plain) -> Plain:
    """What the CUDA allocator raises."""
    import torch

    held = torch.zeros(1 << 20)
    KEPT.append(held.untyped_storage()._weak_ref())
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a capacity of ..."
    )


def too_large_a_kernel(case: Plain, settings: Plain, context: Plain) -> Plain:
    """What Triton raises where a compiled kernel does not fit the GPU."""
    from triton.runtime.errors import OutOfResources

    raise OutOfResources(163_840, 101_376, "shared memory")


def poison(case: Plain, settings: Plain, context: Plain) -> Plain:
    """Breaks its process for every later case, as an asynchronous device error does."""
    sys.modules["poison"] = sys
    raise RuntimeError("CUDA error: device-side assert triggered")


def need_healthy(case: Plain, settings: Plain, context: Plain) -> Plain:
    """Works in a process that nobody has poisoned."""
    if "poison" in sys.modules:
        raise RuntimeError("CUDA error: device-side assert triggered")
    return ok(case, settings, context)


def look_at_server(case: Plain, settings: Plain, context: Plain) -> Plain:
    """What the process that forked this one is like."""
    import torch

    from attnbench.run.executor import PRELOAD

    threads = len(list(Path(f"/proc/{os.getppid()}/task").iterdir()))
    facts = {
        "threads": threads,
        "cuda_initialised": torch.cuda.is_initialized(),
        "bad_fork": torch.cuda._is_in_bad_fork(),
        "not_loaded": [name for name in PRELOAD if name.partition(":")[0] not in sys.modules],
    }
    return ok(case, settings, context) | {"provenance": {"autotune": facts}}


def look_at_triton(case: Plain, settings: Plain, context: Plain) -> Plain:
    """Whether Triton fuses multiply and add here, and what its variable was when the server started."""
    import triton

    started = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
    facts = {
        "fused": triton.knobs.language.default_fp_fusion,
        "here": os.environ.get(FUSION),
        "server": [entry.decode() for entry in started if entry.startswith(FUSION.encode())],
    }
    return ok(case, settings, context) | {"provenance": {"autotune": facts}}


def route(cases: Plain, settings: Plain, context: Plain) -> Plain:
    """Cases with the option `interpret` need the interpreting process."""
    return {
        name: "interpreted" if case["options"].get("interpret") else "native" for name, case in cases.items()
    }


def route_crashes(cases: Plain, settings: Plain, context: Plain) -> Plain:
    """An implementation that crashes when it is loaded."""
    ctypes.string_at(0)
    return {}


def interpreter() -> str:
    """Whether Triton would interpret in this process."""
    return "interpreted" if os.environ.get("TRITON_INTERPRET") == "1" else "native"


def case_id(case: Plain) -> str:
    """The id of a case of plain data."""
    from attnbench.plan.case import Case

    return Case.from_dict(case).case_id


KEPT: list[Any] = []
DEEDS = {
    deed.__name__: deed
    for deed in (
        ok, hang, segfault, killed, kill_server, leave, raise_error, exit_quietly, nonsense, allocate,
        torch_out_of_memory, poison, need_healthy, allocate_numpy, fill_2_gib, look_at_server,
        too_large_a_kernel, look_at_triton,
    )
}  # fmt: skip
