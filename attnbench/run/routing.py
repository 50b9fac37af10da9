"""Which cases need the interpreting process: a task for a worker, so that our process loads no torch."""

from __future__ import annotations

from typing import Any

from attnbench.contract.discovery import get_implementation
from attnbench.plan.case import Case

NATIVE, INTERPRETED = "native", "interpreted"


def route_task(cases: dict[str, Any], settings: dict[str, Any], context: dict[str, Any]) -> dict[str, str]:
    """How each case is executed here, by its id: `native` or `interpreted`.

    An implementation that can't be loaded or asked counts as native: its own case will say what is wrong.
    """
    return {case_id: _execution(plain) for case_id, plain in cases.items()}


def _execution(plain: dict[str, Any]) -> str:
    try:
        case = Case.from_dict(plain)
        return get_implementation(case.implementation).execution(case.problem())
    except Exception:
        return NATIVE
