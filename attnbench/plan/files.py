"""What somebody's file holds, found out in a process of its own. In: ``./file.py``. Out: names and options.

A file that crashes while it is imported takes that process down, not ours.
"""

import json
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

from attnbench.contract.errors import UsageError

IMPORT_TIMEOUT_S = 120.0
_CODE = """
import json, os, sys
sys.path[:] = sys.argv[2:]
answer = os.fdopen(os.dup(1), "w")  # whatever the file prints goes elsewhere
os.dup2(2, 1)
from attnbench.contract.discovery import get_implementations
from attnbench.contract.errors import UsageError
try:
    said = {"found": {item.name: list(item.options) for item in get_implementations(sys.argv[1])}}
except UsageError as error:
    said = {"error": str(error)}
json.dump(said, answer)
answer.close()
"""


def look_into_file(path: str) -> dict[str, list[str]]:
    """Return the options of every implementation in a file, by name.

    Raises:
        UsageError: as ``get_implementations``; the file ends the process that imports it, or takes longer
            than `IMPORT_TIMEOUT_S`.
    """
    file = Path(path).resolve()
    return _looked(path, file, file.stat().st_mtime_ns if file.is_file() else None)


@cache
def _looked(path: str, file: Path, changed_ns: int | None) -> dict[str, list[str]]:
    """Look once into each state of a file."""
    command = [sys.executable, "-c", _CODE, path, *sys.path]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=IMPORT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"importing {path!r} takes longer than {IMPORT_TIMEOUT_S:.0f} s") from None
    if not done.stdout:
        raise UsageError(f"{path!r} ends the process that imports it ({_ending(done.returncode)})")
    said = json.loads(done.stdout)
    if "error" in said:
        raise UsageError(said["error"])
    found: dict[str, list[str]] = said["found"]
    return found


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"
