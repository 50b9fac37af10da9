"""Instructions by kind and the main loop, from machine code as text."""

import pytest

from attnbench.device.loops import natural_loops
from attnbench.device.machine_code import count_kinds, kind_of, main_loop, read_amdgcn, read_sass


def sass(*lines: str) -> str:
    """Write instructions as `cuobjdump -sass` does, 16 bytes each."""
    header = '\t\tFunction : kernel\n\t.headerflags\t@"EF_CUDA_SM90"\n'
    second = " " * 90 + "/* 0x000fe20000000f00 */\n"
    return header + "".join(
        f"        /*{16 * place:04x}*/                   {line} ;      /* 0x0 */\n{second}"
        for place, line in enumerate(lines)
    )


LOOPS = sass(
    "LDG.E.128 R4, desc[UR4][R2.64]",  # 0x00
    "LDG.E.U16 R5, desc[UR4][R2.64]",
    "HGMMA.64x64x16.F32.BF16 R88, gdesc[UR20], RZ, !UPT, gsb0",  # 0x20, the longer loop
    *["FSEL R1, R2, R3, P0"] * 9,
    "MUFU.EX2 R9, R9",
    "@P0 BRA 0x20",
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR8], R3",  # 0xe0, the main loop
    "@!P1 BRA 0x180",
    "HGMMA.64x64x16.F32.BF16 R88, gdesc[UR20], R88, gsb0",  # 0x100
    "@!P0 LDGSTS.E.BYPASS.128 [R158+0x8000], desc[UR26][R4.64]",
    "BRA.U UP0, 0xe0",
    "STG.E.64 desc[UR4][R2.64], R4",
    "@P2 EXIT",
    "STL [R1], R7",
    "LDL.LU R7, [R1]",
    "EXIT",
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR8], R3",  # 0x180, waits out of line and jumps back into the loop
    "@!P1 BRA 0x180",
    "BRA 0x100",
    "BRA 0x1b0",
    "NOP",
)


def test_kinds_of_sass():
    counted = count_kinds(read_sass(LOOPS))
    assert counted == {
        "total": 27,  # without the padding
        "async_copy_16": 1,
        "exp2": 1,
        "global_load_16": 1,
        "global_load_2": 1,
        "global_store_8": 1,
        "hgmma": 2,
        "local_load": 1,
        "local_store": 1,
    }


def test_the_main_loop_is_the_shortest_of_those_that_multiply_and_holds_what_waits_for_it_elsewhere():
    assert main_loop(read_sass(LOOPS)) == {"total": 8, "async_copy_16": 1, "hgmma": 1}


def test_no_loop_and_no_products():
    assert main_loop(read_sass(sass("HMMA.16816.F32 R4, R8, R6, R4", "EXIT"))) is None
    assert main_loop(read_sass(sass("IADD3 R4, R8, R6, R4", "@P0 BRA 0x0", "EXIT"))) is None
    assert main_loop(read_sass("")) is None
    products_of_float32 = sass("FFMA R4, R8, R6, R4", "@P0 BRA 0x0", "EXIT")
    assert main_loop(read_sass(products_of_float32)) == {"total": 2, "fma": 1}
    annotated = sass("HMMA.16816.F32 R4, R8, R6, R4  &req={1} ?trans1", "@!P0 BRA 0x0  ?trans5", "EXIT")
    assert main_loop(read_sass(annotated)) == {"total": 2, "mma": 1}


@pytest.mark.parametrize(
    ("opcode", "kind"),
    [
        ("HMMA.16816.F32.BF16", "mma"),
        ("IMMA.16832.S8.S8", "mma"),
        ("QGMMA.64x64x32.F32.E4M3.E4M3", "hgmma"),
        ("UTCHMMA.2CTA", "tcgen05"),
        ("UTCATOMSWS.FIND_AND_SET.ALIGN", None),
        ("UTMALDG.4D", "tma_load"),
        ("UTMASTG.4D", "tma_store"),
        ("UBLKCP", "bulk_copy"),
        ("LDG.E.ENL2.256.CONSTANT", "global_load_32"),
        ("LDG.E", "global_load_4"),
        ("LDG.E.S8", "global_load_1"),
        ("LDGDEPBAR", None),
        ("LDGSTS.E", "async_copy_4"),
        ("LDSM.16.M88.4", None),
        ("RED.E.ADD.F32.FTZ.RN.STRONG.GPU", "atomic"),
        ("REDG.E.ADD.F32", "atomic"),
        ("ATOMG.E.ADD", "atomic"),
        ("ATOMS.OR", None),
        ("REDUX.SUM", None),
        ("FFMA2.FTZ", "fma"),
    ],
)
def test_kind_of_an_instruction(opcode, kind):
    (instruction,) = read_sass(sass(f"{opcode} R4, R8"))
    assert kind_of(instruction) == kind


AMDGCN = """\
\t.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
kernel:                                 ; @kernel
.Lfunc_begin0:
\ts_load_dwordx4 s[0:3], s[4:5], 0x0
\tglobal_load_dwordx4 v[0:3], v[4:5], off
\tbuffer_load_dword v1, s[8:11], 0 offen lds
.LBB0_1:                                ; =>This Inner Loop Header: Depth=1
\tbuffer_load_dwordx2 v[0:1], v4, s[8:11], 0 offen
\tv_mfma_f32_32x32x8_bf16 a[0:15], v[0:1], v[2:3], a[0:15]
\tv_exp_f32_e32 v1, v2
\tv_fmac_f32_e32 v1, v2, v3
\tscratch_load_dword v1, off, off offset:4 ; 4-byte Folded Reload
\ts_cbranch_scc1 .LBB0_1
\tglobal_store_short v[0:1], v2, off
\tscratch_store_dword off, v1, off offset:4
\ts_endpgm
.Lfunc_end0:
\tv_mfma_f32_32x32x8_bf16 a[0:15], v[0:1], v[2:3], a[0:15]
"""


def test_kinds_of_amdgcn():
    read = read_amdgcn(AMDGCN)
    assert count_kinds(read) == {
        "total": 12,
        "async_copy_4": 1,
        "exp2": 1,
        "fma": 1,
        "global_load_16": 1,
        "global_load_8": 1,
        "global_store_2": 1,
        "local_load": 1,
        "local_store": 1,
        "mfma": 1,
    }
    assert main_loop(read) == {
        "total": 6,
        "exp2": 1,
        "fma": 1,
        "global_load_8": 1,
        "local_load": 1,
        "mfma": 1,
    }


def test_loops_nest_and_a_jump_back_to_what_does_not_dominate_is_none():
    # 0 → 1 → 2 ⇄ 2 (inner), 2 → 3 → 1 (outer), 0 → 4 → 2: entered twice, 1 … 3 is no natural loop any more.
    assert set(natural_loops([[1], [2], [2, 3], [1, 4], []])) == {frozenset({2}), frozenset({1, 2, 3})}
    assert natural_loops([[1, 4], [2], [2, 3], [1, 5], [2], []]) == [frozenset({2})]
    assert natural_loops([[]]) == []
