"""Implementations in a suite. In: a name, options. Out: one name for each implementation, or the mistake."""

from collections.abc import Collection, Mapping

from attnbench.contract.discovery import (
    get_implementation,
    get_implementations,
    implementation_modules,
    variant_error,
)
from attnbench.contract.errors import UsageError
from attnbench.contract.implementation import option_refusals

from .files import look_into_file


def implementation_names(name: str) -> list[str]:
    """Return what cases call it: ``./file.py`` with several variants gives a ``./file.py#variant`` for each.

    A module of the same name is taken on trust: importing it, and torch with it, is left to those who run it
    and who report what is broken.

    Raises:
        UsageError: nothing of that name, with the nearest one; or a file that can't be imported.
    """
    if _is_module(name):
        return [name]
    found = _options_of(name)
    return [name] if len(found) == 1 else [f"{name}#{variant}" for variant in found]


def check_options(name: str, options: Collection[str]) -> None:
    """Refuse options that the implementation lacks; without any, nothing is imported.

    Raises:
        UsageError: an unknown option, with the nearest one and all there are.
    """
    if not options:
        return
    try:
        (known,) = _options_of(name).values()
    except UsageError:
        if _is_module(name):  # broken here: its case will say so
            return
        raise
    reasons = option_refusals(name, known, options)
    if reasons:
        raise UsageError(f"{'; '.join(reasons)}; it takes {', '.join(known) or 'none'}")


def _is_module(name: str) -> bool:
    return name in {module.replace("_", "-") for module in implementation_modules()}


def _options_of(name: str) -> Mapping[str, Collection[str]]:
    """Return the options of every implementation behind ``name``."""
    place, _, variant = name.partition("#")
    if place.endswith(".py"):
        held = look_into_file(place)
        if variant and variant not in held:
            raise variant_error(name, held)
        return {variant: held[variant]} if variant else held
    found = (get_implementation(name),) if variant else get_implementations(name)
    return {item.name: item.options for item in found}
