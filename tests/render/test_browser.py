"""The page in a browser: no requests, no complaints, nothing overflows, everybody can read it."""

import csv
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from attnbench.analysis.report import build_report
from attnbench.render.html import html_report
from tests.analysis.synthetic import make_record, quick_run

pytestmark = pytest.mark.long
WIDTHS = (360, 900, 1600)
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, or another that is on the path."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip(f"needs a browser: none of {', '.join(PROGRAMS)} is on the path")
    with sync_playwright() as driver:
        yield driver.chromium.launch(executable_path=program, args=["--no-sandbox"])


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    """A report of something like `quick`, with failures and a long reason in it."""
    run = quick_run()
    reason = "needs 137438953472 bytes, 15274495180 are allowed " * 8
    run.records.append(make_record("naive", 131072, status="oom", reason=reason, predicted_peak_bytes=2**37))
    run.records.append(make_record("中文🙂 <b>", 256, latency_ms=3.0))
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(html_report(build_report([run])), encoding="utf-8")
    return file


@pytest.fixture
def page(browser: Browser, path: Path) -> Iterator[Page]:
    """The report, opened from disk."""
    opened = browser.new_page(viewport={"width": 1200, "height": 900}, accept_downloads=True)
    opened.goto(path.as_uri())
    yield opened
    opened.close()


def test_it_opens_without_a_message_and_without_a_request(browser, path):
    opened = browser.new_page()
    said, asked = [], []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(path.as_uri(), wait_until="networkidle")
    assert said == []
    assert asked == [path.as_uri()]
    opened.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_window(page, width, scheme):
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # What is wider on purpose can be scrolled by itself.
    wide = page.evaluate("""() => [...document.querySelectorAll("main *")]
        .filter(element => element.getBoundingClientRect().right > innerWidth + 1)
        .filter(element => !element.closest(".scroll, figure.windows, pre"))
        .map(element => element.outerHTML.slice(0, 200))""")
    assert wide == []


def test_it_fits_paper(page):
    page.emulate_media(media="print")
    assert page.pdf(format="A4").startswith(b"%PDF")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_there_is_no_serious_fault_of_accessibility(page, scheme):
    page.emulate_media(color_scheme=scheme)
    found = Axe().run(page).response["violations"]
    serious = [
        (fault["id"], [node["html"][:200] for node in fault["nodes"]][:3])
        for fault in found
        if fault["impact"] in ("serious", "critical")
    ]
    assert serious == []


def test_tables_are_sorted_by_their_headings_and_kept_as_files(page, tmp_path):
    latency = page.locator("#cases thead button", has_text="Latency")
    latency.click()
    place = latency.evaluate("button => button.parentElement.cellIndex")
    shown = page.locator(f"#cases tbody tr > :nth-child({place + 1})").all_inner_texts()
    assert shown[0].endswith("µs")
    assert page.locator("#cases thead th").nth(place).get_attribute("aria-sort") == "ascending"
    with page.expect_download() as kept:
        page.locator("#all-cases button.file").click()
    assert kept.value.suggested_filename == "cases.csv"
    kept.value.save_as(tmp_path / "cases.csv")
    rows = list(csv.reader((tmp_path / "cases.csv").read_text(encoding="utf-8-sig").splitlines()))
    assert len(rows) == page.locator("#cases tr").count()
    assert {len(row) for row in rows[1:]} <= {len(rows[0]), len(rows[0]) - 1, *(range(5, len(rows[0])))}


def test_rows_are_filtered_by_words(page):
    page.locator("#filter").fill("oom naive")
    shown = [row for row in page.locator("#cases tbody tr").all() if row.is_visible()]
    assert shown
    assert all("oom" in row.inner_text() for row in shown)
