"""Resident blocks, against what the CUDA occupancy calculator says, and the names of targets."""

import pytest

from attnbench.contract.errors import UsageError
from attnbench.device.targets import _target, find_target, targets

SM_89 = {
    "devices": "L4, L40S, RTX 4090",
    "registers": 65536,
    "register_unit": 256,
    "warps": 48,
    "blocks": 24,
    "shared_bytes": 102400,
    "shared_bytes_per_block": 101376,
}


def test_the_seven_targets():
    assert list(targets()) == ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942"]
    assert [target.backend for target in targets().values()] == ["cuda"] * 6 + ["hip"]
    for target in targets().values():
        room = target.shared_bytes - target.shared_bytes_reserved
        assert target.shared_bytes_per_block == room  # a block may take what one multiprocessor has


@pytest.mark.parametrize(
    ("name", "kernel", "expected"),
    [
        # 255 registers: 8192 a warp (a multiple of 256), 8 warps of 65536 registers.
        ("sm_90", {"warps": 8, "registers": 255, "shared_bytes": 0}, (1, "registers")),
        ("sm_90", {"warps": 4, "registers": 168, "shared_bytes": 0}, (3, "registers")),
        # 32 registers: 1024 a warp, 64 warps, as many as there may be.
        ("sm_80", {"warps": 4, "registers": 32, "shared_bytes": 0}, (16, "registers")),
        ("sm_86", {"warps": 4, "registers": 32, "shared_bytes": 0}, (12, "warps")),
        ("sm_86", {"warps": 1, "registers": 32, "shared_bytes": 0}, (16, "blocks")),
        # A block's shared memory and the KiB it keeps for the system.
        ("sm_80", {"warps": 4, "registers": 64, "shared_bytes": 82944}, (2, "shared memory")),
        ("sm_80", {"warps": 4, "registers": 64, "shared_bytes": 82945}, (1, "shared memory")),
        ("sm_86", {"warps": 4, "registers": 64, "shared_bytes": 101376}, (1, "shared memory")),
        ("sm_86", {"warps": 4, "registers": 64, "shared_bytes": 101377}, (0, "shared memory")),
        ("sm_100", {"warps": 4, "registers": 64, "shared_bytes": 0, "columns": 256}, (2, "tensor memory")),
        ("sm_100", {"warps": 4, "registers": 64, "shared_bytes": 0, "columns": 768}, (0, "tensor memory")),
        # 512 vector registers a lane: 512 // 248 = 2 waves on each of 4 SIMDs.
        ("gfx942", {"warps": 4, "registers": 242, "shared_bytes": 0}, (2, "registers")),
        ("gfx942", {"warps": 4, "registers": 32, "shared_bytes": 32768}, (2, "shared memory")),
    ],
)
def test_resident_blocks(name, kernel, expected):
    assert find_target(name).residency(**kernel) == expected


def test_the_l2_cache_of_one_device_each():
    caches = {name: target.l2 for name, target in targets().items()}
    assert caches.pop("gfx942") is None
    assert {name: cache.bytes >> 20 for name, cache in caches.items()} == {
        "sm_80": 40,
        "sm_86": 6,
        "sm_89": 72,
        "sm_90": 50,
        "sm_100": 126,
        "sm_120": 96,
    }
    for name, cache in caches.items():
        shown = find_target(name).devices.split(", ")
        assert any(device in cache.device for device in shown)
        assert 80 < cache.multiprocessors < 192


def test_a_data_sheet_without_a_cache_lends_none():
    assert _target("sm_89", l2_of="rtx-4090", **SM_89).l2.bytes == 72 << 20
    with pytest.raises(ValueError, match="the data sheet 'l4' has no cache"):
        _target("sm_89", l2_of="l4", **SM_89)


def test_an_unknown_target_has_a_nearest_one():
    with pytest.raises(
        UsageError, match=r"unknown target 'sm90' \(did you mean 'sm_90'\?\); there are sm_80"
    ):
        find_target("sm90")
