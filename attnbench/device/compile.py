"""Compiles a Triton kernel ahead of time and reads the result. In: a kernel, a launch, a target. Out: facts.

No GPU and no driver are needed. Triton's own launch code compiles, up to where it would launch; it only takes
the target from a driver that says so. Not for a process that interprets kernels.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction, driver

from attnbench.contract.launch import Launch

from .machine_code import count_kinds, main_loop, read_amdgcn, read_sass
from .targets import Target

READERS = ("compile.py", "loops.py", "machine_code.py")
"""What reads a compilation; facts that another source of theirs read are made anew."""


class CompilationFailed(Exception):
    """Triton or the assembler refused the kernel; the message is its last line."""


@dataclass(frozen=True, kw_only=True)
class CompiledKernel:
    """What a kernel became on a target."""

    hash: str
    """Triton's: of source, types, options, compiler."""
    warps: int
    registers: int
    """Of a thread; of AMD vector registers, accumulators among them."""
    spill_bytes: int
    """Of a thread, stores and loads in the text added."""
    shared_memory_bytes: int
    tensor_memory_columns: int
    instructions: dict[str, int]
    main_loop: dict[str, int] | None
    multiply_adds: int
    """Of the products of one iteration of the main loop, by all threads of a block."""
    warnings: list[str]


class _NoDriver:
    """Stands where Triton looks for a driver: names the target, and has no device to launch on."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def get_current_target(self) -> GPUTarget:
        return GPUTarget(self.target.backend, self.target.arch, self.target.warp_size)

    def get_current_device(self) -> str:
        """Triton keeps kernels by device: here one for each target."""
        return self.target.name

    def get_current_stream(self, device: str) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")


def compile_launch(kernel: Any, launch: Launch, target: Target, facts: Path) -> CompiledKernel:
    """Compile what ``launch`` would run on ``target``, or recall it.

    Args:
        kernel: a function decorated with ``triton.jit``.
        launch: its arguments, tensors on the meta device, and options.
        target: for what.
        facts: folder in which the results are kept, by Triton's hash.

    Raises:
        CompilationFailed: with the compiler's complaint.
        TypeError: the kernel is not one that Triton compiles here.
    """
    if not isinstance(kernel, JITFunction):
        kind = type(kernel).__name__
        raise TypeError(f"a kernel is what @triton.jit returns where it compiles, not {kind}")
    driver.set_active(_NoDriver(target))
    compiled, log = _warmed_up(kernel, launch)
    kept, kept_log = facts / f"{compiled.hash}.json", facts / f"{compiled.hash}.log"
    known = _read(kept)
    if known is not None:
        return known
    facts.mkdir(parents=True, exist_ok=True)
    if not log and target.backend == "cuda":  # recalled from Triton's cache, without what the assembler said
        if kept_log.exists():
            log = kept_log.read_text()
        else:
            compiled, log = _anew(kernel, launch)
    _write(kept_log, log)
    found = _facts(compiled, target, log)
    _write(kept, json.dumps({"version": _version(), **asdict(found)}))
    return found


def _write(path: Path, text: str) -> None:
    """Write all or nothing: another process may be at it."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    Path(file.name).replace(path)


def _read(kept: Path) -> CompiledKernel | None:
    try:
        known = json.loads(kept.read_text())
    except (OSError, ValueError):
        return None
    return CompiledKernel(**known) if known.pop("version", None) == _version() else None


@cache
def _version() -> str:
    sources = [Path(__file__).with_name(name).read_bytes() for name in READERS]
    return sha256(b"".join(sources)).hexdigest()


def _warmed_up(kernel: Any, launch: Launch) -> tuple[Any, str]:
    """Return the compiled kernel and what the assembler printed."""
    said = io.StringIO()
    try:
        with redirect_stdout(said):
            compiled = kernel.warmup(**launch.arguments, **launch.options, grid=launch.grid)
    except Exception as error:  # of the compiler's many passes, each with exceptions of its own
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise CompilationFailed(f"{type(error).__name__}: {lines[-1] if lines else ''}") from error
    return compiled, said.getvalue()


def _anew(kernel: Any, launch: Launch) -> tuple[Any, str]:
    kernel.device_caches.clear()
    before = knobs.compilation.always_compile
    knobs.compilation.always_compile = True
    try:
        return _warmed_up(kernel, launch)
    finally:
        knobs.compilation.always_compile = before


def _facts(compiled: Any, target: Target, log: str) -> CompiledKernel:
    if target.backend == "cuda":
        instructions = read_sass(_sass(compiled.asm["cubin"]))
        resources = _read_ptxas(log)
    else:
        text = compiled.asm["amdgcn"]
        instructions, resources = read_amdgcn(text), _read_amd_metadata(text)
    return CompiledKernel(
        hash=compiled.hash,
        warps=compiled.metadata.num_warps,
        shared_memory_bytes=compiled.metadata.shared,
        tensor_memory_columns=getattr(compiled.metadata, "tmem_size", None) or 0,
        instructions=count_kinds(instructions),
        main_loop=main_loop(instructions),
        multiply_adds=multiply_adds(compiled.asm["ttgir"]),
        **resources,
    )


def _read_ptxas(log: str) -> dict[str, Any]:
    """Read ``ptxas -v``: the most registers of a function, the spills of all, and what it warns of."""
    complaints = re.findall(r"(?:warning\s*:|\(C\d+\)).*?(?= in the function|$)", log, re.M)
    return {
        "registers": max(map(int, re.findall(r"Used (\d+) registers", log))),
        "spill_bytes": sum(map(int, re.findall(r"(\d+) bytes spill (?:stores|loads)", log))),
        "warnings": sorted({line.strip() for line in complaints}),
    }


def _read_amd_metadata(text: str) -> dict[str, Any]:
    def number(name: str) -> int:
        return int(re.findall(rf"\.{name}:\s+(\d+)", text)[-1])

    # Scalar registers are spilled to lanes of vector registers, these to memory.
    return {"registers": number("vgpr_count"), "spill_bytes": 4 * number("vgpr_spill_count"), "warnings": []}


def _sass(cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-sass", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


_SHAPE = re.compile(r"(?:tensor|memdesc)<((?:\d+x)+)")
_DOTS = re.compile(r"\b(?:tt\.dot|tt\.dot_scaled|ttng\.warp_group_dot|ttng\.tc_gen5_mma)\b.* : (.*)")


def multiply_adds(ttgir: str) -> int:
    """Return the multiply-adds of one iteration of the innermost loop with the largest products, given
    Triton's last hardware-independent form of a kernel; 0 without such a loop.
    """
    most = 0
    open_loops: list[list[int]] = []  # of each its indentation, and the work inside it
    for line in ttgir.splitlines():
        indent = len(line) - len(line.lstrip())
        if open_loops and line.lstrip().startswith("}") and indent == open_loops[-1][0]:
            most = max(most, open_loops.pop()[1])
        elif re.search(r"\bscf\.for\b", line):
            open_loops.append([indent, 0])
        elif open_loops and (dot := _DOTS.search(line)):
            open_loops[-1][1] += _product(dot[1])
    return most


def _product(types: str) -> int:
    """Return M·K·N from the types of a product's operands, ``[…, M, K]`` and ``[…, K, N]``."""
    left, right = (_SHAPE.findall(types))[:2]
    sizes = [int(size) for size in left.rstrip("x").split("x")]
    product = int(right.rstrip("x").split("x")[-1])
    for size in sizes:
        product *= size
    return product


def describe(compiled: CompiledKernel, target: Target) -> Mapping[str, Any]:
    """Return the facts of a row of ``attnbench kernels``."""
    residency = target.residency(
        warps=compiled.warps,
        registers=compiled.registers,
        shared_bytes=compiled.shared_memory_bytes,
        columns=compiled.tensor_memory_columns,
    )
    loop = compiled.main_loop
    per_1024 = None
    if loop is not None and compiled.multiply_adds:
        per_1024 = round(loop["total"] * compiled.warps * 1024 / compiled.multiply_adds, 3)
    return {
        "warps": compiled.warps,
        "registers": compiled.registers,
        "spill_bytes": compiled.spill_bytes,
        "shared_memory_bytes": compiled.shared_memory_bytes,
        "tensor_memory_columns": compiled.tensor_memory_columns,
        "blocks_per_sm": residency.blocks_per_sm,
        "limited_by": residency.limited_by,
        "instructions": compiled.instructions,
        "main_loop": loop,
        "instructions_per_1024_multiply_adds": per_1024,
        "warnings": compiled.warnings,
    }
