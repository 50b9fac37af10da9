"""The run folder: `run.json` and `records.jsonl`, read and written. Loads no torch.

`run.json` says what was run and on what: suite, cases, environment, versions, command, revision, status.
`records.jsonl` holds one line a case, each written whole; of several with one `case_id` the last counts. A
line that was torn off (power cut, full disk) is reported and dropped.

Two writers on one folder are refused by an advisory lock on `records.jsonl`. Some network file systems don't
keep such locks between machines; there, give each machine a folder of its own.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import shlex
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import msgspec
import msgspec.inspect

from attnbench.contract.errors import UsageError
from attnbench.measure.record import SCHEMA_VERSION, Record, record_from_dict

if TYPE_CHECKING:
    import pandas as pd

META_FILE = "run.json"
RECORDS_FILE = "records.jsonl"
SYNC_EVERY_S = 1.0
_NOT_A_RECORD = (msgspec.MsgspecError, ValueError)


class StorageError(Exception):
    """A record could not be written; what was written before is whole."""


@dataclass
class Run:
    """What a run folder holds: `records` in the order of the plan, the latest of each case.

    `meta` is `run.json`; `problems` says in words what could not be read; `path` is the folder.
    """

    path: Path
    meta: dict[str, Any]
    records: list[Record]
    problems: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        """The folder and how many cases ended how; records by the thousand help nobody at a prompt."""
        counts: Counter[str] = Counter(record.status for record in self.records)
        counts["missing"] = len(self.missing)
        said = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        return f"Run({str(self.path)!r}: {said or 'no cases'})"

    @property
    def planned(self) -> dict[str, dict[str, Any]]:
        """The case of each planned `case_id`."""
        cases: dict[str, dict[str, Any]] = self.meta.get("cases", {})
        return cases

    @property
    def missing(self) -> list[str]:
        """Ids of planned cases that have no record."""
        done = {record.case_id for record in self.records}
        return [case_id for case_id in self.planned if case_id not in done]

    def frame(self) -> pd.DataFrame:
        """One row a case, one column a field: `case_id`, `status`, `case.seqlen_k`, `latency.median_ms`, ...

        Every field of the record sections is a column, with missing values where no case has it.
        """
        import pandas as pd

        fixed = _field_names(Record)
        frame = pd.json_normalize([record.to_dict() for record in self.records])
        return frame.reindex(columns=[*fixed, *(name for name in frame.columns if name not in fixed)])


def load_run(path: str | Path) -> Run:
    """Read a run folder, or the folder of its `run.json`.

    Fields that a newer attnbench added are ignored; a newer schema, in which fields may mean something else,
    is refused.

    Raises:
        UsageError: no such folder, not a run, a `run.json` that can't be read, or a newer schema.
    """
    path = Path(path)
    folder = path.parent if path.name in (META_FILE, RECORDS_FILE) else path
    meta = _read_meta(folder)
    _refuse_newer(folder, meta)
    problems: list[str] = []
    latest: dict[str, Record] = {}
    for number, line in enumerate(_read_lines(folder), start=1):
        if not line.strip():
            continue
        try:
            plain = msgspec.json.decode(line)
            _refuse_newer(folder, plain)
            record = record_from_dict(plain)
        except UsageError:
            raise
        except _NOT_A_RECORD as error:
            problems.append(
                f"{RECORDS_FILE}: line {number} ({len(line)} bytes) is no record, dropped: {error}"
            )
        else:
            latest[record.case_id] = record
    planned = [case_id for case_id in meta.get("cases", {}) if case_id in latest]
    others = [case_id for case_id in latest if case_id not in meta.get("cases", {})]
    return Run(folder, meta, [latest[case_id] for case_id in [*planned, *others]], problems)


class RunWriter:
    """The one writer of a run folder; a context manager that holds the folder's lock."""

    def __init__(self, path: Path, meta: dict[str, Any], records: int) -> None:
        """Take the lock and open `records.jsonl` for appending; `create` and `resume` call this.

        Raises:
            UsageError: another process writes here, or the folder can't be written.
        """
        self.path = path
        self.meta = meta
        self._count = records
        self._synced_s = time.monotonic()
        file = path / RECORDS_FILE
        try:
            self._descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise UsageError(f"can't write {str(file)!r}: {error.strerror}") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._descriptor)
            why = "another process is writing it" if isinstance(error, BlockingIOError) else error.strerror
            raise UsageError(f"can't lock the run {str(path)!r}: {why}") from None

    @classmethod
    def create(cls, path: Path, meta: dict[str, Any]) -> Self:
        """Start a run in a new folder, or in one that holds no run.

        Raises:
            UsageError: the folder can't be made or written, or holds a run already.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            taken = (path / META_FILE).exists() or (path / RECORDS_FILE).exists()
        except OSError as error:
            raise UsageError(f"can't make the output folder {str(path)!r}: {error.strerror}") from None
        if taken:
            raise UsageError(
                f"{str(path)!r} holds a run already: continue it with --resume, or choose another"
            )
        writer = cls(path, {"schema_version": SCHEMA_VERSION, **meta}, 0)
        try:
            writer.update()
        except StorageError:
            writer.close()
            (path / RECORDS_FILE).unlink(missing_ok=True)
            raise UsageError(
                f"can't write the output folder {str(path)!r}: no room or no permission"
            ) from None
        return writer

    @classmethod
    def resume(cls, path: Path) -> Self:
        """Continue a run; an unfinished last line is cut off.

        Raises:
            UsageError: not a run, another process writes it, or the folder can't be written.
        """
        run = load_run(path)
        writer = cls(run.path, run.meta, len(run.records))
        writer._end_last_line()
        return writer

    def append(self, record: Record) -> None:
        """Write one record as one line, whole or not at all.

        It outlives this process at once; the disk has it at the next record that comes a second or more after
        the last that was waited for, and at the end. Waiting after each of many quick ones would take longer
        than they do.

        Raises:
            StorageError: the disk is full or gone; earlier records are whole.
        """
        line = msgspec.json.encode(_finite(record.to_dict())) + b"\n"
        before = os.fstat(self._descriptor).st_size
        try:
            written = 0
            while written < len(line):  # one write, unless a signal or a full disk cuts it short
                written += os.write(self._descriptor, line[written:])
            if time.monotonic() - self._synced_s >= SYNC_EVERY_S:
                self._sync()
        except OSError as error:
            os.ftruncate(self._descriptor, before)
            raise self._failure(error) from None
        self._count += 1

    def _sync(self) -> None:
        os.fsync(self._descriptor)
        self._synced_s = time.monotonic()

    def update(self, **changes: Any) -> None:
        """Bring all records to the disk, then change keys of `run.json` and replace the file in one step.

        Raises:
            StorageError: the disk is full or gone; the former file stands.
        """
        self.meta.update(changes)
        temporary = self.path / f".{META_FILE}"
        try:
            self._sync()
            with temporary.open("wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(self.meta), indent=2) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path / META_FILE)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise self._failure(error) from None

    def close(self) -> None:
        """Give the lock back."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _failure(self, error: OSError) -> StorageError:
        return StorageError(
            f"can't write to {str(self.path)!r} ({error.strerror}): its {self._count} records are kept; "
            f"make room, then: attnbench run --resume {shlex.quote(str(self.path))}"
        )

    def _end_last_line(self) -> None:
        content = (self.path / RECORDS_FILE).read_bytes()
        if not content or content.endswith(b"\n"):
            return
        last = content.rpartition(b"\n")[2]
        try:
            record_from_dict(msgspec.json.decode(last))
        except _NOT_A_RECORD:
            os.ftruncate(self._descriptor, len(content) - len(last))
        else:  # only its end is missing
            os.write(self._descriptor, b"\n")


def new_folder(suite_name: str, started_utc: str, parent: Path = Path("runs")) -> Path:
    """The default folder of a run, `runs/<suite>-<utc time>`, which does not exist yet.

    Args:
        suite_name: as in the suite; what a file system may not like becomes `_`.
        started_utc: `2026-11-30T09:30:00Z`, of which the digits are kept: `20261130T093000Z`.
        parent: where runs lie.
    """
    name = re.sub(r"[^\w.-]+", "_", suite_name).strip("._") or "run"
    stem = f"{name}-{re.sub(r'[-:]', '', started_utc)}"
    candidates = (parent / (stem if number == 1 else f"{stem}-{number}") for number in range(1, 10_000))
    return next(path for path in candidates if not path.exists())


def _read_meta(folder: Path) -> dict[str, Any]:
    file = folder / META_FILE
    if not folder.exists():
        raise UsageError(f"no run {str(folder)!r}: there is no such folder")
    if not file.is_file():
        raise UsageError(f"{str(folder)!r} is not a run: it has no {META_FILE}")
    try:
        meta = msgspec.json.decode(file.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"can't read {str(file)!r}: {error}") from None
    if not isinstance(meta, dict):
        raise UsageError(f"can't read {str(file)!r}: it is not a table")
    return meta


def _read_lines(folder: Path) -> list[bytes]:
    file = folder / RECORDS_FILE
    try:
        return file.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"can't read {str(file)!r}: {error.strerror}") from None


def _refuse_newer(folder: Path, plain: Any) -> None:
    """Raise for `run.json` or a record of a schema that is not known here."""
    schema = plain.get("schema_version") if isinstance(plain, dict) else None
    if isinstance(schema, int) and schema > SCHEMA_VERSION:
        raise UsageError(
            f"the run {str(folder)!r} was written by a newer attnbench (schema {schema}, this one knows "
            f"{SCHEMA_VERSION}) and is left as it is: install a newer one, or measure into another folder"
        )


def _finite(plain: dict[str, Any]) -> dict[str, Any]:
    """The same record without the numbers that JSON has no word for; `unavailable` names them.

    A list with such a number goes as a whole: what is left of a sample would look complete.
    """
    gone: dict[str, str] = {}

    def clean(table: dict[str, Any], prefix: str) -> dict[str, Any]:
        kept = {}
        for key, value in table.items():
            numbers = value if isinstance(value, list) else [value]
            bad = [number for number in numbers if isinstance(number, float) and not math.isfinite(number)]
            if bad:
                gone[prefix + key] = f"not a finite number: {bad[0]}"
            else:
                kept[key] = clean(value, f"{prefix}{key}.") if isinstance(value, dict) else value
        return kept

    cleaned = clean(plain, "")
    return {**cleaned, "unavailable": {**cleaned.get("unavailable", {}), **gone}} if gone else cleaned


def _field_names(section: type[msgspec.Struct], prefix: str = "") -> list[str]:
    """Names of all fields, those of sections inside as `section.field`; tables of free keys are left out."""
    names: list[str] = []
    for item in cast(msgspec.inspect.StructType, msgspec.inspect.type_info(section)).fields:
        options = item.type.types if isinstance(item.type, msgspec.inspect.UnionType) else (item.type,)
        inner = next((option for option in options if isinstance(option, msgspec.inspect.StructType)), None)
        if inner is not None:
            names += _field_names(inner.cls, f"{prefix}{item.name}.")
        elif not any(isinstance(option, msgspec.inspect.DictType) for option in options):
            names.append(prefix + item.name)
    return names
