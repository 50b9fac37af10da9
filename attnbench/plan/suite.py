"""Suites: a name or a file in, cases and settings out."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from attnbench.contract.errors import UsageError, nearest

from .axes import Axes, NamedOptions, axes_of, cases_of, with_defaults
from .case import Case
from .devices import device_index, device_kind, device_kinds
from .keys import SuiteFile
from .lengths import parse_length
from .names import check_options, implementation_names
from .places import Place
from .reading import read_suite_text, usage_error
from .settings import MeasureSettings as MeasureSettings


@dataclass(frozen=True)
class Suite:
    """Cases to measure and how; where they come from."""

    name: str
    description: str
    cases: tuple[Case, ...]
    measure: MeasureSettings
    source: str
    """The file as people name it."""
    text: str
    """The TOML text, overrides not included."""
    device_index: int | None = None
    """Which of several GPUs ``--device cuda:1`` chose; None leaves the choice to CUDA."""


def load_suite(
    name_or_path: str | Path,
    *,
    implementations: Iterable[str] = (),
    seqlens: Iterable[int | str] = (),
    device: str | None = None,
    device_must_exist: bool = True,
) -> Suite:
    """Read a suite and expand its sweeps.

    Args:
        name_or_path: a suite of the package, or a TOML file.
        implementations: keeps the cases of these names; names that the suite lacks replace the implementation
            axis of every sweep.
        seqlens: replaces the length axis; ``"4k"`` is 4096.
        device: ``cpu``, ``cuda`` or ``cuda:i`` for every case. Without it the suite's own, where
            ``auto`` (the default) is cuda if there is one, else cpu.
        device_must_exist: False plans for a GPU that this machine lacks.

    Raises:
        UsageError: no such suite, device or implementation, or a mistake in the file.
    """
    source, text = _read(name_or_path)
    file = read_suite_text(text, source)
    overrides = Overrides(
        implementations=tuple(item for name in implementations for item in implementation_names(name)),
        seqlens=tuple(parse_length(value) for value in seqlens),
        device=None if device is None else device_kind(device, must_exist=device_must_exist),
    )
    sweeps = list(_sweeps(file, source, text))

    def cases(changes: Overrides) -> tuple[Case, ...]:
        keep_first = changes != Overrides()
        changed = _overridden(sweeps, changes)
        return tuple(_distinct(changed, source, text, device_must_exist, keep_first=keep_first))

    try:
        found = cases(overrides)
    except UsageError as error:
        if not overrides.seqlens:
            raise
        cases(replace(overrides, seqlens=()))  # what is wrong without them is not their fault
        lengths = ", ".join(map(str, overrides.seqlens))
        raise UsageError(f"--seqlen {lengths}: {error}") from None
    return Suite(
        name=file.name,
        description=file.description,
        cases=found,
        measure=file.measure,
        source=source,
        text=text,
        device_index=device_index(device),
    )


def suite_names() -> list[str]:
    """Return the names of the suites that the package brings."""
    return sorted(Path(entry.name).stem for entry in _folder().iterdir() if entry.name.endswith(".toml"))


@dataclass(frozen=True)
class Overrides:
    """What the command line changes in every sweep."""

    implementations: tuple[str, ...] = ()
    seqlens: tuple[int, ...] = ()
    device: str | None = None


@dataclass(frozen=True)
class _Sweep:
    place: Place
    axes: Axes
    stated: frozenset[str]
    """Keys that the sweep gives itself rather than taking them from the defaults."""


def _folder() -> Traversable:
    return files("attnbench").joinpath("suites")


def _read(name_or_path: str | Path) -> tuple[str, str]:
    """Return how people name the file, and its text (always UTF-8)."""
    name = str(name_or_path)
    is_path = isinstance(name_or_path, Path) or name.endswith(".toml") or "/" in name
    if not is_path and name not in suite_names():
        known = suite_names()
        raise UsageError(
            f"unknown suite {name!r}{nearest(name, known)}; there are {', '.join(known)}, or a .toml file"
        )
    file = Path(name) if is_path else _folder().joinpath(f"{name}.toml")
    source = name if is_path else f"{name}.toml"
    try:
        return source, file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{source}: not UTF-8 text") from None
    except OSError as error:
        raise UsageError(f"can't read the suite {source!r}: {error.strerror}") from None


def _sweeps(file: SuiteFile, source: str, text: str) -> Iterator[_Sweep]:
    """Yield the axes of each sweep, defaults included."""
    with _naming(Place("defaults"), source, text):
        defaults = axes_of(file.defaults)
    for index, keys in enumerate(file.sweep):
        place = Place("sweep", index)
        with _naming(place, source, text):
            stated = axes_of(keys)
            axes = with_defaults(stated, defaults)
            if "implementation" in axes:
                named = [
                    NamedOptions(name, item.options)
                    for item in axes["implementation"]
                    for name in implementation_names(item.name)
                ]
                for item in named:
                    check_options(item.name, item.options)
                axes["implementation"] = named
        yield _Sweep(place, axes, frozenset(stated))


def _overridden(sweeps: list[_Sweep], overrides: Overrides) -> list[_Sweep]:
    """Return the sweeps as the command line wants them."""
    present = {item.name for sweep in sweeps for item in sweep.axes.get("implementation", ())}
    lacking = [NamedOptions(name, {}) for name in overrides.implementations if name not in present]
    changed = []
    for sweep in sweeps:
        axes = dict(sweep.axes)
        if overrides.implementations:
            kept = [item for item in axes.get("implementation", ()) if item.name in overrides.implementations]
            axes["implementation"] = kept + lacking
        if overrides.seqlens:
            axes = with_defaults({"seqlen": list(overrides.seqlens)}, axes)
        if overrides.device:
            axes["device"] = [overrides.device]
        changed.append(replace(sweep, axes=axes))
    return changed


def _distinct(
    sweeps: list[_Sweep], source: str, text: str, device_must_exist: bool, keep_first: bool
) -> Iterator[Case]:
    """Yield every case once; a second one of the same id is refused, or left out if ``keep_first``."""
    places: dict[str, Place] = {}
    for sweep in sweeps:
        with _naming(sweep.place, source, text):
            kinds = device_kinds(sweep.axes.get("device", ["auto"]), must_exist=device_must_exist)
            for case in cases_of({**sweep.axes, "device": kinds}, sweep.stated):
                case_id = case.case_id
                first = places.get(case_id)
                if first is None:
                    places[case_id] = sweep.place
                    yield case
                elif not keep_first:
                    where = f"{first} (line {first.line(text)})"
                    raise UsageError(f"the case {case_id} is in {where} already")


@contextmanager
def _naming(place: Place, source: str, text: str) -> Iterator[None]:
    """Put file, line and table before the message of a `UsageError`."""
    try:
        yield
    except UsageError as error:
        raise usage_error(source, text, place, str(error)) from None
