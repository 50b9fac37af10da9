"""A task for workers: it says on which cores its process may run."""

from typing import Any

from attnbench.device.limits import allowed_cores, in_ranges


def cores(case: dict[str, Any], settings: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
    """A record with the cores and nothing else."""
    provenance = {"cores": in_ranges(allowed_cores())}
    return {"case_id": "a", "case": case, "status": "ok", "provenance": provenance}
