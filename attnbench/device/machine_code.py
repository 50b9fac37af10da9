"""What a kernel's machine code consists of. In: SASS or AMDGCN as text. Out: counts by kind, its main loop.

Counts are of instructions in the text, not of executions. Nothing here needs the compiler or a GPU.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .loops import natural_loops

MATRIX_KINDS = ("mma", "hgmma", "tcgen05", "mfma")
"""Instructions of tensor cores: of a warp, of four warps (Hopper), on tensor memory (Blackwell), of AMD."""


@dataclass(frozen=True)
class Instruction:
    """One instruction: its opcode with modifiers, its operands, and which may come next (by place)."""

    opcode: str
    operands: str
    successors: tuple[int, ...]


def read_sass(text: str) -> list[Instruction]:
    """Read what ``cuobjdump -sass`` prints of one kernel, without the padding after its end."""
    # What follows & and ? is for the scheduler.
    form = r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*?)\s*(?:[&?][^;]*)?;"
    lines = re.findall(form, text, re.M)
    place_of = {int(address, 16): place for place, (address, *_) in enumerate(lines)}
    read = []
    for place, (_, predicate, opcode, operands) in enumerate(lines):
        after = [place + 1]
        plain = opcode.partition(".")[0]
        if plain in ("BRA", "JMP"):
            address = re.search(r"0x([0-9a-f]+)\)?$", operands)
            to = [place_of[int(address[1], 16)]] if address and int(address[1], 16) in place_of else []
            condition = predicate or operands.startswith(("U", "!", "P", "~", "R"))
            after = [*to, place + 1] if condition else to
        elif plain in ("EXIT", "RET", "BRX", "JMX") and not predicate:
            after = []
        read.append(Instruction(opcode, operands, tuple(after)))
    return _linked(_without_padding(read))


def _without_padding(read: list[Instruction]) -> list[Instruction]:
    """Drop the jump to itself and the NOPs with which a kernel is filled up."""
    end = len(read)
    while end and (read[end - 1].opcode == "NOP" or read[end - 1].successors == (end - 1,)):
        end -= 1
    return read[:end]


def _linked(read: list[Instruction]) -> list[Instruction]:
    """Return the instructions with successors that exist."""
    return [
        Instruction(one.opcode, one.operands, tuple(to for to in one.successors if to < len(read)))
        for one in read
    ]


def read_amdgcn(text: str) -> list[Instruction]:
    """Read the assembly of one kernel that LLVM writes for an AMD GPU."""
    labels: dict[str, int] = {}
    lines: list[tuple[str, str]] = []
    for line in text.splitlines():
        if line.startswith(".Lfunc_end"):
            break
        if label := re.match(r"(\.LBB\w+):", line):
            labels[label[1]] = len(lines)
        elif found := re.match(r"\s+([a-z]\w+)\s*([^;]*)", line):
            lines.append((found[1], found[2].strip()))
    read = []
    for place, (opcode, operands) in enumerate(lines):
        after = [place + 1]
        if opcode.startswith(("s_branch", "s_cbranch")):
            to = [labels[operands]] if operands in labels else []
            after = to if opcode == "s_branch" else [*to, place + 1]
        elif opcode in ("s_endpgm", "s_setpc_b64"):
            after = []
        read.append(Instruction(opcode, operands, tuple(after)))
    return _linked(read)


_NVIDIA_KINDS = (
    (r"[HIDQO]MMA\b", "mma"),
    (r"[HIQ]GMMA\b", "hgmma"),
    (r"UTC[HIQO]MMA\b", "tcgen05"),
    (r"FFMA2?\b", "fma"),
    (r"MUFU\.EX2\b", "exp2"),
    (r"LDG\b", "global_load"),
    (r"STG\b", "global_store"),
    (r"LDGSTS\b", "async_copy"),
    (r"UTMALDG\b", "tma_load"),
    (r"UTMASTG\b", "tma_store"),
    (r"UBLKCP\b", "bulk_copy"),
    (r"LDL\b", "local_load"),
    (r"STL\b", "local_store"),
    (r"(?:ATOM|RED)G?\b", "atomic"),
)
_AMD_KINDS = (
    (r"v_mfma_", "mfma"),
    (r"v_(?:pk_)?fma(?:c|k|_|mk|ak)", "fma"),
    (r"v_exp_f32", "exp2"),
    (r"(?:global|buffer|flat)_load_lds|(?:global|buffer)_load_.*\blds\b", "async_copy"),
    (r"(?:global|buffer|flat)_load_", "global_load"),
    (r"(?:global|buffer|flat)_store_", "global_store"),
    (r"scratch_load_", "local_load"),
    (r"scratch_store_", "local_store"),
    (r"(?:global|buffer|flat)_atomic_", "atomic"),
)
_SIZED = ("global_load", "global_store", "async_copy")


def _nvidia_bytes(opcode: str) -> int:
    for modifier, width in ((".ENL2.256", 32), (".256", 32), (".128", 16), (".64", 8)):
        if modifier in opcode:
            return width
    if re.search(r"\.[US]16\b", opcode):
        return 2
    return 1 if re.search(r"\.[US]8\b", opcode) else 4


def _amd_bytes(opcode: str) -> int:
    if wide := re.search(r"dwordx(\d)", opcode):
        return 4 * int(wide[1])
    if re.search(r"byte|[ui]8", opcode):
        return 1
    return 2 if re.search(r"short|[uib]16", opcode) else 4


def kind_of(instruction: Instruction) -> str | None:
    """Return what an instruction is counted as (``hgmma``, ``global_load_16``: bytes a thread), or None."""
    amd = instruction.opcode[:1].islower()
    text = f"{instruction.opcode} {instruction.operands}" if amd else instruction.opcode
    for pattern, kind in _AMD_KINDS if amd else _NVIDIA_KINDS:
        if re.match(pattern, text):
            if kind not in _SIZED:
                return kind
            width = _amd_bytes(instruction.opcode) if amd else _nvidia_bytes(instruction.opcode)
            return f"{kind}_{width}"
    return None


def count_kinds(instructions: Iterable[Instruction]) -> dict[str, int]:
    """Count instructions by kind; ``total`` counts all, those without a kind among them."""
    kinds = [kind_of(one) for one in instructions]
    counted = Counter(kind for kind in kinds if kind is not None)
    return {"total": len(kinds), **dict(sorted(counted.items()))}


def main_loop(instructions: Sequence[Instruction]) -> dict[str, int] | None:
    """Count the main loop by kind: the innermost one that does the most matrix work, of several alike the
    shortest (without masks). None without a loop that multiplies.
    """
    if not instructions:
        return None
    kinds = [kind_of(one) for one in instructions]
    matrix = [place for place, kind in enumerate(kinds) if kind in MATRIX_KINDS]
    work = frozenset(matrix or [place for place, kind in enumerate(kinds) if kind == "fma"])
    loops = [body for body in natural_loops([one.successors for one in instructions]) if body & work]
    innermost = [body for body in loops if not any(other < body for other in loops)]
    if not innermost:
        return None
    chosen = max(innermost, key=lambda body: (len(body & work), -len(body)))
    return count_kinds(instructions[place] for place in sorted(chosen))
