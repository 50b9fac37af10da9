"""Tables of what an approximation costs, for every form of report. In: `Exchange`s. Out: rows of text.

Quality and cost of each attention in the same trained model stand side by side.
"""

from collections.abc import Callable

from attnbench.analysis.facets import group_title
from attnbench.analysis.quality import Exchange, Exchanged
from attnbench.analysis.report import Report
from attnbench.render.numbers import (
    format_loss,
    format_perplexity,
    format_seqlen,
    format_value,
)
from attnbench.render.tables import PlainTable

TITLE = "What the approximation costs"
MEANING = """\
The same trained weights with another attention in every layer, on text that the model has not seen. \
Perplexity is exp(loss): the number of equally likely next tokens that the model hesitates between. \
Exact is softmax attention over all that the model was trained to see."""


def exchange_tables(report: Report) -> list[PlainTable]:
    """Return one table for each trained model, with a row for each attention and length; a quantity that no
    row has is left out.
    """
    return [_table(exchange, report) for exchange in report.summary.exchanges]


def _table(exchange: Exchange, report: Report) -> PlainTable:
    return PlainTable(
        title=group_title(exchange.facet, report.untold),
        columns=tuple((title, numeric) for title, numeric, _ in COLUMNS),
        rows=[[text(line) for _, _, text in COLUMNS] for line in exchange.lines],
    ).trimmed()


def _added(line: Exchanged) -> str:
    return "exact" if line.is_exact else format_loss(line.added_loss, signed=True)


COLUMNS: tuple[tuple[str, bool, Callable[[Exchanged], str]], ...] = (
    ("Attention", False, lambda line: line.label),
    ("Length", True, lambda line: format_seqlen(line.row.seqlen)),
    ("Perplexity", True, lambda line: format_perplexity(line.row.perplexity)),
    ("Loss", True, lambda line: format_loss(line.row.loss)),
    ("Added loss", True, _added),
    ("Latency", True, lambda line: format_value(line.row.latency_ms, "ms")),
    ("Operand bytes", True, lambda line: format_value(line.row.operand_bytes, "bytes")),
    ("Peak memory", True, lambda line: format_value(line.row.peak_bytes, "bytes")),
)
