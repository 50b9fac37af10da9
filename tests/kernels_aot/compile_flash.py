"""Compiles the FlashAttention kernel ahead of time. In: JSON lines, one a build. Out: JSON lines.

A process of its own, since Triton compiles only where it does not interpret. No GPU is needed.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from triton import compile as compile_kernel
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability
from triton.compiler import ASTSource

from attnbench.contract.problem import DTYPE_BYTES
from attnbench.implementations._flash_kernel import flash_forward_kernel
from attnbench.implementations._flash_tiles import (
    Tile,
    padded_width,
    shortened,
    table_target,
    table_tile,
)

ELEMENTS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
INNERMOST = ("stride_qd", "stride_kd", "stride_vd")
ONES_OF_DECODING = ("seqlen_q", "group_size")


def source(dtype: str, head_dim: int, tile: Tile, left: bool, right: bool, decode: bool) -> ASTSource:
    """Return the kernel with the types, ones and divisibilities of a launch on contiguous tensors."""
    constants = {
        "HEAD_DIM": head_dim,
        "VALUE_DIM": head_dim,
        "BLOCK_D": padded_width(head_dim),
        "BLOCK_DV": padded_width(head_dim),
        "BLOCK_Q": tile.block_q,
        "BLOCK_K": tile.block_k,
        "HAS_LEFT": left,
        "HAS_RIGHT": right,
        "QUERY_SIGN": 1,
        **dict.fromkeys((*INNERMOST, *(ONES_OF_DECODING if decode else ())), 1),
    }
    pointers = dict.fromkeys(("q_ptr", "k_ptr", "v_ptr", "out_ptr"), f"*{ELEMENTS[dtype]}")
    constants["statistics_ptr"] = None
    special = {**pointers, "lse_ptr": "*fp32", "bounds_ptr": "*i32", "scale_log2": "fp32"}
    names = flash_forward_kernel.arg_names
    signature = {name: "constexpr" if name in constants else special.get(name, "i32") for name in names}
    aligned = [
        index
        for index, name in enumerate(names)
        if name not in constants
        and (name.endswith("_ptr") or (name.startswith("stride_") and head_dim % 16 == 0))
    ]
    attributes: dict[Any, Any] = {(index,): [["tt.divisibility", 16]] for index in aligned}
    return ASTSource(fn=flash_forward_kernel, signature=signature, constexprs=constants, attrs=attributes)


def assembled(ptx: str, capability: int) -> dict[str, int]:
    """Return registers and spilled bytes as the assembler reports them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        architecture = f"--gpu-name={sm_arch_from_capability(capability)}"
        command = [
            get_ptxas(capability).path,
            "-v",
            "--regAllocOptLevel=2",
            architecture,
            str(path),
            "-o",
            f"{path}.o",
        ]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", report)
    registers = re.findall(r"Used (\d+) registers", report)
    return {"registers": max(map(int, registers)), "spill_bytes": sum(map(int, spills))}


def build(
    capability: int, dtype: str, head_dim: int, left: bool, right: bool, decode: bool = False
) -> dict[str, Any]:
    """Compile with the table's tile (the shortest, if decoding); return what the target makes of it."""
    tile = table_tile("forward", table_target(capability), DTYPE_BYTES[dtype], padded_width(head_dim))
    if decode:
        tile = shortened(tile, 1)
    compiled = compile_kernel(
        source(dtype, head_dim, tile, left, right, decode),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": tile.num_warps, "num_stages": tile.num_stages, "enable_fp_fusion": True},
    )
    ptx = compiled.asm["ptx"]
    return {
        "shared_bytes": compiled.metadata.shared,
        "tf32": "tf32" in ptx,
        "wide_loads": len(re.findall(r"cp\.async\.\w+\.shared\.global [^;]*0x10|ld\.global[.\w:]*v4", ptx)),
        **assembled(ptx, capability),
    }


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(build(**json.loads(line))), flush=True)
