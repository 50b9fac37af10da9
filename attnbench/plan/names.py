"""Names of implementations in a suite. In: what was written. Out: what a case is called, one name for each variant of a file."""

from attnbench.contract.discovery import get_implementation, get_implementations, implementation_modules


def implementation_names(name: str) -> list[str]:
    """Return the names of the cases' implementations: ``./file.py`` with several variants gives ``./file.py#variant`` for each.

    A module of the same name is taken on trust: importing it (and torch) is for those who run it, who report what is broken.

    Raises:
        UsageError: nothing of that name, with the nearest one.
    """
    if name in {module.replace("_", "-") for module in implementation_modules()}:
        return [name]
    place, _, variant = name.partition("#")
    found = [item.name for item in get_implementations(place)]
    if variant or len(found) == 1:
        get_implementation(name)
        return [name]
    return [f"{place}#{each}" for each in found]
