"""Finds implementations. In: a name, ``./kernel.py`` or ``package.module:ATTRIBUTE``. Out: implementations.

Names are those of the modules of ``attnbench.implementations`` and of the entry points of that group.
"""

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import UsageError, nearest
from .implementation import Implementation

PACKAGE = "attnbench.implementations"
GROUP = "attnbench.implementations"


def _from_object(found: Any, where: str) -> tuple[Implementation, ...]:
    if isinstance(found, Implementation):
        return (found,)
    if isinstance(found, tuple | list) and found and all(isinstance(item, Implementation) for item in found):
        return tuple(found)
    raise UsageError(f"{where} is neither an Implementation nor a tuple of them")


def _from_module(module: ModuleType, where: str) -> tuple[Implementation, ...]:
    given = [name for name in ("IMPLEMENTATION", "IMPLEMENTATIONS") if hasattr(module, name)]
    if len(given) != 1:
        # Both: one of them is a sibling's, imported, and which is meant can't be known.
        raise UsageError(
            f"{where} defines {'both' if given else 'neither'} "
            f"IMPLEMENTATION {'and' if given else 'nor'} IMPLEMENTATIONS"
        )
    return _from_object(getattr(module, given[0]), f"{where}:{given[0]}")


def implementation_modules() -> list[str]:
    """Return the module names of ``attnbench.implementations`` that hold implementations, without
    importing them.
    """
    package = importlib.import_module(PACKAGE)
    return sorted(
        item.name for item in pkgutil.iter_modules(package.__path__) if not item.name.startswith("_")
    )


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


@cache
def _scan() -> tuple[dict[str, Implementation], dict[str, str]]:
    found: dict[str, Implementation] = {}
    broken: dict[str, str] = {}

    def keep(implementations: Iterable[Implementation], where: str) -> None:
        for item in implementations:
            if item.name in found:
                broken[where] = f"the name {item.name!r} is taken already"
            else:
                found[item.name] = item

    for name in implementation_modules():
        try:
            keep(_from_module(importlib.import_module(f"{PACKAGE}.{name}"), name), name)
        except (Exception, SystemExit) as error:  # a broken module disables itself, nothing else
            broken[name] = _reason(error)
    for entry in entry_points(group=GROUP):
        try:
            loaded = entry.load()
            where = f"entry point {entry.name}"
            from_module = isinstance(loaded, ModuleType)
            keep(_from_module(loaded, where) if from_module else _from_object(loaded, where), where)
        except (Exception, SystemExit) as error:
            broken[f"entry point {entry.name}"] = _reason(error)
    return found, broken


def find_implementations() -> dict[str, Implementation]:
    """Return every implementation that can be imported here, by name."""
    return dict(_scan()[0])


def broken_implementations() -> dict[str, str]:
    """Return the modules and entry points that could not be used, with the reason."""
    return dict(_scan()[1])


def _load_file(path: str) -> ModuleType:
    resolved = Path(path).resolve()
    if not resolved.is_file():
        raise UsageError(f"no file {path!r} to take an implementation from")
    # A name of its own for each file, so that two kernel.py do not replace each other.
    name = f"attnbench_user_{resolved.stem}_{sha256(str(resolved).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, resolved)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        # Without bytecode: none is left in a stranger's folder, and none of before an edit is taken for it.
        exec(compile(resolved.read_bytes(), str(resolved), "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UsageError(f"{path!r} can't be imported: {_reason(error)}") from error
    return module


def get_implementations(name: str) -> tuple[Implementation, ...]:
    """Return the implementations behind ``name``: a name, ``./file.py`` (with all its variants), or
    ``package.module:ATTRIBUTE``.

    Raises:
        UsageError: nothing of that name, or what is there is not an implementation or cannot be imported.
    """
    if name.endswith(".py"):
        return _from_module(_load_file(name), name)
    if ":" in name:
        module_name, _, attribute = name.partition(":")
        try:
            found = getattr(importlib.import_module(module_name), attribute)
        except (Exception, SystemExit) as error:
            raise UsageError(f"{name!r} can't be imported: {_reason(error)}") from error
        return _from_object(found, name)
    found_all = find_implementations()
    if name in found_all:
        return (found_all[name],)
    module_like = name.replace("-", "_")
    if module_like in _scan()[1]:
        raise UsageError(f"implementation {name!r} can't be used here: {_scan()[1][module_like]}")
    known = ", ".join(sorted(found_all))
    raise UsageError(f"unknown implementation {name!r}{nearest(name, found_all)}; there are {known}")


def variant_error(name: str, variants: Iterable[str]) -> UsageError:
    """Return the error of a name that picks none of a file's variants."""
    place = name.partition("#")[0]
    return UsageError(
        f"{name!r} does not name one of its variants ({', '.join(variants)}); write {place}#NAME"
    )


def get_implementation(name: str) -> Implementation:
    """Return the one implementation behind ``name``; ``./file.py#variant`` picks one of several.

    Raises:
        UsageError: as ``get_implementations``, or there are several variants and none was picked.
    """
    place, _, variant = name.partition("#")
    found = get_implementations(place)
    if variant:
        found = tuple(item for item in found if item.name == variant)
    if len(found) == 1:
        return found[0]
    raise variant_error(name, (item.name for item in get_implementations(place)))
