"""The temporary folder of a run: truths that its cases share, compiled kernels. Out: the folder.

A run that was killed leaves its folder behind; the next one removes it. A folder in use is one whose file
`lock` is locked, which its owner's death undoes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX, _LOCK = "attnbench-", "lock"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for the time of the block; what killed runs of the same user left is removed first."""
    remove_forgotten()
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with (folder / "taken").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            (folder / "taken").rename(folder / _LOCK)  # nobody sees it unlocked
            yield folder


def remove_forgotten() -> None:
    """Remove the folders of this user's runs that are no more."""
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        try:
            if lock.parent.is_symlink() or lock.parent.stat().st_uid != os.geteuid():
                continue
            with lock.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
        except OSError:  # in use, somebody else's, or removed meanwhile
            continue
