"""A report as files. In: runs, a folder, formats. Out: ``report.html``, ``report.md``, ``cases.csv``,
``plots/``, ``samples.jsonl``.
"""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import msgspec
from matplotlib.figure import Figure

from attnbench.analysis.report import Report, build_report
from attnbench.contract.errors import UsageError, nearest
from attnbench.render.html import MOST_PANELS, html_report
from attnbench.render.markdown import markdown_report
from attnbench.render.overview import SAMPLES_FILE
from attnbench.render.plots import metric_figure, png_bytes, svg_text
from attnbench.render.roofline_plot import roofline_figure
from attnbench.render.roofline_table import TITLE as ROOFLINE
from attnbench.render.styles import StyleBook
from attnbench.render.tables import csv_text
from attnbench.render.window_plot import TITLE as WINDOWS
from attnbench.render.window_plot import window_figure
from attnbench.run.store import Run

FORMATS = ("html", "md", "png", "svg", "csv")
NOT_YET = ("parquet", "pytest-benchmark", "github-action-benchmark", "bencher")


def parse_formats(text: str) -> tuple[str, ...]:
    """Return the formats of a list such as ``html,md``.

    Raises:
        UsageError: a name that is no format, or one that this version does not write.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names or [""]:
        if name not in FORMATS:
            known = f"available are {', '.join(FORMATS)}"
            if name in NOT_YET:
                raise UsageError(f"this version does not write the format {name!r}; {known}")
            raise UsageError(f"{name!r} is not a report format{nearest(name, FORMATS)}; {known}")
    return tuple(dict.fromkeys(names))


def write_report(runs: Sequence[Run], folder: Path, formats: Collection[str] = FORMATS) -> list[Path]:
    """Write a report about one run, or about several side by side, and return the files in the order they
    were written.

    Raises:
        UsageError: the folder can't be written.
    """
    report = build_report(runs)
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        pictures = _write_plots(report, folder, [kind for kind in ("png", "svg") if kind in formats])
        written += [path for _, path in pictures]
        if report.samples and not {"html", "md"}.isdisjoint(formats):
            written.append(_write_samples(runs, report, folder / SAMPLES_FILE))
        links = [
            (title, path.relative_to(folder).as_posix())
            for title, path in pictures
            if path.suffix == pictures[0][1].suffix
        ]
        for kind, name, text in (
            ("csv", "cases.csv", csv_text),
            ("md", "report.md", lambda report: markdown_report(report, links)),
            ("html", "report.html", html_report),
        ):
            if kind in formats:
                path = folder / name
                path.write_text(text(report), encoding="utf-8")
                written.append(path)
    except OSError as error:
        raise UsageError(f"can't write the report to {str(folder)!r}: {error.strerror}") from None
    return written


def _write_plots(report: Report, folder: Path, kinds: Sequence[str]) -> list[tuple[str, Path]]:
    """Write the pictures of every quantity and return ``(title, path)`` of each; a quantity without any value
    has none.
    """
    written: list[tuple[str, Path]] = []
    for title, name, figure in _figures(report) if kinds else ():
        for kind in kinds:
            path = folder / "plots" / f"{name}.{kind}"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(png_bytes(figure) if kind == "png" else svg_text(figure).encode())
            written.append((title, path))
    return written


def _figures(report: Report) -> Iterator[tuple[str, str, Figure]]:
    """Yield title, file name and figure of every picture."""
    for place, exchange in enumerate(report.summary.exchanges, start=1):
        windows = window_figure(exchange)
        if windows is not None:
            yield WINDOWS, "perplexity" + (f"-{place}" if place > 1 else ""), windows
    book = StyleBook(report.series)
    for group in report.metrics:
        if group.drawn:
            title = group.metric.title
            panels = group.drawn[:MOST_PANELS]
            yield title, group.metric.key, metric_figure(panels, book, f"{title}: {report.title}")
    for place, roofline in enumerate(report.rooflines, start=1):
        under_roof = roofline_figure(roofline, book)
        if under_roof is not None:
            yield ROOFLINE, "roofline" + (f"-{place}" if place > 1 else ""), under_roof


def _write_samples(runs: Sequence[Run], report: Report, path: Path) -> Path:
    """Write the raw samples of every latency, one line a case."""
    encoder = msgspec.json.Encoder()
    with path.open("wb") as file:
        for facts, run in zip(report.runs, runs, strict=True):
            for record in run.records:
                if record.latency is not None and record.latency.samples_ms:
                    line = {
                        "run": facts.label,
                        "case_id": record.case_id,
                        "samples_ms": record.latency.samples_ms,
                    }
                    file.write(encoder.encode(line) + b"\n")
    return path
