import html.parser
import re
from collections import Counter

import pytest

from attnbench.analysis.report import build_report
from attnbench.render.html import html_report
from tests.analysis.synthetic import make_record, make_run, quick_run

HOSTILE = [
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "{{ 7 * 7 }} {% raw %}",
    "a\x00b\x1b[31m\u202ec",
    "--><!-- ]]> &amp; & <",
    "x" * 5000,
]


class Page(html.parser.HTMLParser):
    """Tags, attributes and the text of every table row of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.ids: Counter[str] = Counter()
        self.rows: list[list[str]] = []
        self.text = ""
        self._cell: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids.update(value for name, value in attrs if name == "id")
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self._cell = []

    def handle_endtag(self, tag):
        if tag in ("td", "th") and self._cell is not None:
            self.rows[-1].append(" ".join("".join(self._cell).split()))
            self._cell = None

    def handle_data(self, data):
        self.text += data
        if self._cell is not None:
            self._cell.append(data)


@pytest.fixture(scope="module")
def quick_page():
    return html_report(build_report([quick_run()]))


def page_of(*records, **meta):
    return html_report(build_report([make_run(records, **meta)]))


def test_every_case_is_in_the_table_with_its_status(quick_page):
    rows = [row for row in Page(quick_page).rows if row[0] in ("ok", "unsupported", "oom") and len(row) > 6]
    records = quick_run().records
    assert len(rows) == len(records)
    assert Counter(row[0] for row in rows) == Counter(record.status for record in records)
    assert [row[1] for row in rows] == [record.case["implementation"] for record in records]


def test_a_failed_case_shows_its_reason_in_its_row(quick_page):
    (row,) = [row for row in Page(quick_page).rows if row[0] == "oom" and len(row) > 6]
    assert row[-1] == "predicted peak 1.61 GiB is over the limit of 1 GiB"


def test_numbers_of_the_records_are_in_the_table(quick_page):
    row = next(row for row in Page(quick_page).rows if row[:2] == ["ok", "naive"])
    at = row.index("256")
    assert row[at + 1 : at + 4] == ["1.90 ms", "±5 %", "8.00 MiB"]


def test_the_first_screen_says_what_ran_on_what_and_the_answer_in_words(quick_page):
    page = Page(quick_page)
    text = " ".join(page.text.replace("\u00a0", " ").split())
    for said in (
        "AMD EPYC, 2 cores",
        "torch 2.13.0+cpu",
        "2026-11-30 09:30:00 UTC",
        "4e130e8c0ffe, modified",
        "90 cases",
        "81 ok",
        "linear is fastest at 4k tokens (14.4 ms): 5.5 times faster than sdpa (79.5 ms) and 34 times",
        "sdpa and triton-flash need least memory at 4k tokens (32.0 MiB); naive needs 49 times as much",
        "linear computes another function than softmax attention",
        "attnbench run quick",
        "interpreted on a CPU: its time says nothing",
        "Requested bytes",
    ):
        assert said in text, said


def test_nothing_is_loaded_from_anywhere(quick_page):
    page = Page(quick_page)
    loading = [
        (tag, name, value)
        for tag, name, value in page.attributes
        if name in ("src", "href", "srcset", "data", "action", "poster", "xlink:href")
    ]
    assert all(value.startswith(("#", "data:,")) for _, _, value in loading)
    assert not re.search(r"@import|url\((?!#)", quick_page)
    assert not re.search(r"https?://", quick_page)
    assert "default-src 'none'" in quick_page
    assert page.tags["link"] == 1, "the empty icon, which keeps a browser from asking for one"


def test_ids_are_unique_and_references_meet_them(quick_page):
    page = Page(quick_page)
    assert {name: count for name, count in page.ids.items() if count > 1} == {}
    wanted = {
        value[1:]
        for _, name, value in page.attributes
        if name in ("href", "xlink:href") and value.startswith("#")
    }
    wanted |= set(re.findall(r"url\(#([^)]+)\)", quick_page))
    assert wanted <= set(page.ids)


def test_drawings_follow_the_theme_and_are_described(quick_page):
    drawings = re.findall(r"<svg role=\"img\" aria-label=\"([^\"]*)\"", quick_page)
    assert any(
        label.startswith("Latency against sequence length, attention, forward, causal. naive: 486 ms at 4k")
        for label in drawings
    )
    assert "style=" not in "".join(re.findall(r"<svg.*?</svg>", quick_page, re.DOTALL))
    rules = re.findall(r"^svg \.d\d+ \{(.*)\}$", quick_page, re.MULTILINE)
    assert any("stroke: var(--" in rule for rule in rules)
    assert not any(re.search(r"#[0-9a-f]{6}", rule) for rule in rules), "every colour is a variable"
    assert "prefers-color-scheme: dark" in quick_page


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_in_a_record_stays_text(text):
    fine = make_record("naive", latency_ms=1.0, error=1e-7, unavailable={text: text})
    hostile = [
        make_record(text, latency_ms=2.0, options={text: text}, verdict=(text,)),
        make_record("naive", 512, status="error", reason=text),
        make_record("naive", mask={"name": text}, dtype=text, latency_ms=1.0),
    ]
    meta = {
        "suite": {"name": text, "description": text},
        "command": [text],
        "versions": {"torch": text},
        text: text,
    }
    plain, attacked = Page(page_of(fine)), Page(page_of(fine, *hostile, **meta))
    for tag in ("script", "img", "iframe", "style", "link", "meta"):
        assert attacked.tags[tag] == plain.tags[tag]
    assert not any(name.startswith("on") for _, name, _ in attacked.attributes)
    assert "\x00" not in attacked.text
    assert "\x1b" not in attacked.text


def test_a_very_long_reason_is_cut_and_says_so():
    page = page_of(make_record(status="error", reason="y" * 100_000))
    assert "yyy …" in page
    assert "y" * 501 not in page
    assert len(page) < 100_000


@pytest.mark.long
def test_raw_samples_and_a_large_run_stay_within_5_megabytes():
    samples = [1.0] * 1000
    records = [
        make_record(f"kernel-{name}", 2**power, latency_ms=1.0, peak_bytes=5, operand_bytes=7, error=1e-7,
                    samples_ms=samples, num_heads=heads, mode=mode, noise=0.01)
        for name in range(10) for power in range(4, 14) for heads in range(1, 26) for mode in ("fwd", "bwd")
    ]  # fmt: skip
    assert len(records) == 5000
    page = page_of(*records)
    assert len(page.encode()) < 5_000_000
    assert "5,000,000 raw samples of latencies are left out here: samples.jsonl" in page
    assert "more of these plots are left out here; the table has every case" in page
    assert page.count("<tr>") > 5000


def test_an_empty_run_and_a_run_of_failures_say_what_they_lack():
    empty = Page(page_of())
    assert "There is no case in this run" in empty.text
    failed = Page(
        page_of(
            make_record(status="crashed", reason="signal 9"),
            make_record("sdpa", status="timeout", reason="60 s"),
        )
    )
    assert "naive: crashed; sdpa: timeout" in failed.text
    assert "No result was compared" in failed.text


def test_a_report_of_several_runs_names_them():
    before, after = (
        make_run([make_record(latency_ms=2.0)], "runs/before"),
        make_run([make_record(latency_ms=1.0)], "runs/after"),
    )
    page = Page(html_report(build_report([before, after])))
    assert "naive (after) is fastest at 256" in page.text.replace("\u00a0", " ")
    assert [row[1] for row in page.rows if row[0] == "ok"] == ["before", "after"]


def test_planned_cases_without_a_record_are_told():
    record = make_record(latency_ms=1.0)
    assert "1 planned case without a record" in page_of(record, cases={record.case_id: {}, "other": {}})


def test_a_foreign_record_without_a_case_is_shown_as_far_as_it_goes():
    record = make_record(latency_ms=1.0, peak_bytes=0, error=0.0)
    record.case = {}
    page = Page(page_of(record, make_record("b", seqlen=0, latency_ms=2.0)))
    assert [row[0] for row in page.rows].count("ok") == 2
