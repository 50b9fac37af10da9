"""What must be known of implementations before they are measured, as tasks for a worker, so that our process
loads no torch: which cases need the interpreting process, and which source an implementation has now.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnbench.contract.discovery import get_implementation
from attnbench.plan.case import Case

NATIVE, INTERPRETED = "native", "interpreted"
NOT_LOADABLE = "not loadable"


def route_task(cases: dict[str, Any], settings: dict[str, Any], context: dict[str, Any]) -> dict[str, str]:
    """How each case is executed here, by its id: `native` or `interpreted`.

    An implementation that can't be loaded or asked counts as native: its own case will say what is wrong.
    """
    return {case_id: _execution(plain) for case_id, plain in cases.items()}


def sources_task(
    names: dict[str, Any], settings: dict[str, Any], context: dict[str, Any]
) -> dict[str, str | None]:
    """The hash of each implementation's present source, by its name (the keys of ``names``).

    None where there is nothing to hash; ``NOT_LOADABLE`` for a file that is there and no longer loads.
    """
    return {name: _source(name) for name in names}


def _source(name: str) -> str | None:
    from attnbench.measure.provenance import source_hash

    try:
        return source_hash(get_implementation(name))
    except Exception:
        return source_not_loadable(name)


def source_not_loadable(name: str) -> str | None:
    """What stands in place of the hash of an implementation that can't be loaded now."""
    return NOT_LOADABLE if Path(name.partition("#")[0]).is_file() else None


def _execution(plain: dict[str, Any]) -> str:
    from attnbench.measure.attentions import attentions_of

    try:
        attentions = attentions_of(Case.from_dict(plain))
        kinds = {one.implementation.execution(one.asked) for one in attentions}
        return INTERPRETED if INTERPRETED in kinds else NATIVE
    except Exception:
        return NATIVE
