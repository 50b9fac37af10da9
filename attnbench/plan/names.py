"""Names of implementations in a suite. In: what was written. Out: one name for each implementation."""

from attnbench.contract.discovery import get_implementation, get_implementations, implementation_modules


def implementation_names(name: str) -> list[str]:
    """Return what cases call it: ``./file.py`` with several variants gives a ``./file.py#variant`` for each.

    A module of the same name is taken on trust: importing it, and torch with it, is left to those who run it
    and who report what is broken.

    Raises:
        UsageError: nothing of that name, with the nearest one.
    """
    if name in {module.replace("_", "-") for module in implementation_modules()}:
        return [name]
    if "#" in name:
        get_implementation(name)
        return [name]
    found = get_implementations(name)
    return [name] if len(found) == 1 else [f"{name}#{item.name}" for item in found]
