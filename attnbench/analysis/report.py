"""Everything a report says, before it has a form. In: runs. Out: `Report`, which every renderer reads and
none adds to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from attnbench.analysis.clocks import judged_by_clock
from attnbench.analysis.comparison import Comparison, compare_with_published, gpu_name, published_curves
from attnbench.analysis.facets import Facet, constants_of, facets_of, untold_of
from attnbench.analysis.frontier import Frontier, frontiers
from attnbench.analysis.metrics import LATENCY, METRICS, Metric
from attnbench.analysis.provenance import RunFacts, run_facts, run_labels
from attnbench.analysis.published import published_tables
from attnbench.analysis.roofline import Roofline, rooflines_of
from attnbench.analysis.rows import CaseRow, clean_text, rows_of
from attnbench.analysis.series import Panel, Series, grouped, groups_of, panels_of
from attnbench.analysis.summary import Summary, summarize
from attnbench.run.store import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPanels:
    """All panels of one quantity."""

    metric: Metric
    drawn: tuple[Panel, ...]
    """Those with at least one value."""
    empty: tuple[Panel, ...]
    """Those without any; a report names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The contents of a report."""

    title: str
    runs: tuple[RunFacts, ...]
    rows: tuple[CaseRow, ...]
    groups: tuple[tuple[Facet, ...], ...]
    """Facets that are shown together."""
    constants: dict[str, str]
    """Facet fields that are the same for every case."""
    untold: set[str]
    """Facet fields that titles leave out."""
    summary: Summary
    frontiers: tuple[Frontier, ...]
    metrics: tuple[MetricPanels, ...]
    published: tuple[Comparison, ...]
    """Curves beside numbers that others published for the same device and shape."""
    rooflines: tuple[Roofline, ...]
    """Latencies beside the measured ceilings of their devices."""
    samples: int
    """Raw samples of latencies in the records; none of them is in a report."""

    @property
    def series(self) -> list[Series]:
        """Every curve of every panel."""
        return [one for group in self.metrics for panel in group.drawn + group.empty for one in panel.series]


def build_report(runs: Sequence[Run]) -> Report:
    """Return what there is to say about one run, or about several side by side."""
    labels = run_labels([run.path for run in runs])
    labelled = dict(zip(labels, runs, strict=True))
    rows = judged_by_clock(rows_of(labelled))
    facts = tuple(run_facts(label, run) for label, run in labelled.items())
    facets = facets_of(rows)
    by_name = {clean_text(label): run for label, run in labelled.items()}
    gpus = {name: gpu_name(run) for name, run in by_name.items()}
    published = tuple(compare_with_published(rows, gpus, published_tables()))
    return Report(
        title=", ".join(dict.fromkeys(fact.suite for fact in facts)),
        runs=facts,
        rows=tuple(rows),
        groups=tuple(groups_of(facets)),
        constants=constants_of(facets),
        untold=untold_of(facets),
        summary=summarize(rows),
        frontiers=tuple(frontiers(grouped(facets), _allowed(labelled))),
        metrics=tuple(_metric_panels(rows, metric, published) for metric in METRICS),
        published=published,
        rooflines=tuple(rooflines_of(rows, by_name)),
        samples=sum(
            len(record.latency.samples_ms or ())
            for run in runs
            for record in run.records
            if record.latency is not None
        ),
    )


def _allowed(runs: Mapping[str, Run]) -> dict[str, dict[str, int]]:
    """Return the bytes that each run allowed, by kind of device; nothing where it does not say."""
    return {
        clean_text(label): {
            kind: limit
            for kind, limit in limits.items()
            if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0
        }
        for label, run in runs.items()
        if isinstance(limits := run.meta.get("memory_limits"), Mapping)
    }


def _metric_panels(rows: Sequence[CaseRow], metric: Metric, published: Sequence[Comparison]) -> MetricPanels:
    panels = panels_of(rows, metric)
    if metric is LATENCY and published:
        panels = [replace(panel, published=published_curves(panel, published)) for panel in panels]
    return MetricPanels(
        metric=metric,
        drawn=tuple(panel for panel in panels if panel.has_values),
        empty=tuple(panel for panel in panels if not panel.has_values),
    )
