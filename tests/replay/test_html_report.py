"""The page of a report, as a browser shows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from epochfence.replay.html_report import MOST_FINDINGS, html_page
from epochfence.replay.report import Report
from support.chromium import Window, opened_window
from support.reports import HOSTILE, incident, takeover, wide


@pytest.fixture(scope="module")
def browser_window() -> Iterator[Window]:
    with opened_window() as window:
        yield window


@pytest.fixture
def window(browser_window: Window) -> Window:
    browser_window.page.goto("about:blank")
    browser_window.requests.clear()
    browser_window.complaints.clear()
    return browser_window


def show(window: Window, report: Report, folder: Path) -> None:
    path = folder / "page.html"
    path.write_bytes(html_page(report))
    window.page.goto(path.as_uri())


def test_a_click_on_a_finding_shows_its_mark(window: Window, tmp_path: Path) -> None:
    show(window, incident(), tmp_path)
    page = window.page
    (number,) = [
        at
        for at, one in enumerate(incident().findings, 1)
        if one.code == "stale-writes" and one.partition == 2
    ]
    page.click(f"#finding-{number} > a")
    assert page.locator(".is-highlighted").count() == 1
    shown = page.locator(".partition", has=page.locator(".is-highlighted"))
    assert "payments[2]" in shown.inner_text()
    assert page.locator(".mark.stale.is-highlighted").get_attribute("data-offset") == (
        "14"
    )
    assert window.is_in_view(".mark.stale.is-highlighted")
    assert window.is_in_view(".highlight .ring")
    assert page.locator(f"#finding-{number}.is-current").count() == 1

    page.click("#by-time")
    assert window.is_in_view(".mark.stale.is-highlighted")
    page.click("#finding-1 > a")
    assert page.locator(".mark.conflict.is-highlighted").count() == 1
    assert window.complaints == []


def test_a_link_to_a_finding_opens_it(window: Window, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_bytes(html_page(incident()))
    window.page.goto(path.as_uri() + "#finding-2")
    assert window.page.locator("#finding-2.is-current").count() == 1
    assert window.is_in_view(".is-highlighted")


def test_it_needs_no_network_and_complains_of_nothing(
    window: Window, tmp_path: Path
) -> None:
    show(window, incident(), tmp_path)
    page = window.page
    page.click("#by-time")
    page.click("#theme")
    page.fill("#filter", "pod-5")
    page.check("#only-rejected")
    assert window.requests == [(tmp_path / "page.html").as_uri()]
    assert window.complaints == []


def test_texts_of_others_are_data(window: Window, tmp_path: Path) -> None:
    show(window, takeover(HOSTILE), tmp_path)
    page = window.page
    page.click("#finding-1 > a")
    page.hover("svg.timeline .span >> nth=0")
    assert page.title() == "epochfence audit"
    assert page.locator("img").count() == 0
    assert "onerror" in page.locator(".epochs").inner_text()
    assert "onerror" in page.locator("#tip").inner_text()
    assert window.complaints == []


def test_the_greatest_epoch_keeps_its_digits(window: Window, tmp_path: Path) -> None:
    show(window, takeover(first_epoch=2**63 - 2), tmp_path)
    text = window.page.locator(".epochs").inner_text()
    assert str(2**63 - 2) in text
    assert str(2**63 - 1) in text


def test_without_timestamps_there_is_no_axis_of_time(
    window: Window, tmp_path: Path
) -> None:
    show(window, takeover(timestamp=None), tmp_path)
    assert window.page.locator("#by-time").is_disabled()
    assert window.complaints == []


def test_pointer_buttons_and_keys_zoom(window: Window, tmp_path: Path) -> None:
    show(window, incident(), tmp_path)
    page = window.page
    chart = page.locator("svg.timeline").first
    marks = "svg.timeline >> nth=0 >> .mark"
    all_marks = page.locator(marks).count()

    def redrawn() -> int:
        page.evaluate("() => new Promise((done) => requestAnimationFrame(done))")
        return page.locator(marks).count()

    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 100, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 40, steps=4)
    page.mouse.up()
    assert redrawn() < all_marks
    chart.focus()
    page.keyboard.press("0")
    assert redrawn() == all_marks
    for _ in range(6):
        page.keyboard.press("+")
    assert redrawn() < all_marks
    page.keyboard.press("0")
    page.mouse.move(box["x"] + 300, box["y"] + 40)
    for _ in range(8):
        page.mouse.wheel(0, -120)
    page.wait_for_function(
        "most => document.querySelector('svg.timeline').querySelectorAll('.mark')"
        ".length < most",
        arg=all_marks,
    )
    page.click("button[aria-label='Show all'] >> nth=0")
    assert redrawn() == all_marks
    chart.focus()
    page.keyboard.press("n")
    assert "barrier" in page.locator("#tip").inner_text()
    assert window.complaints == []


def test_hundreds_of_crowded_partitions(window: Window, tmp_path: Path) -> None:
    report = wide(300, 2_000)
    show(window, report, tmp_path)
    page = window.page
    assert "300" in page.locator("#partitions-head").inner_text()
    # The worst come first, and only some are open.
    first = page.locator(".partition .name").first.inner_text()
    assert first == "orders[0]"
    assert page.locator("svg.timeline").count() < 20
    assert page.locator("svg.timeline *").count() < 20_000
    page.click(f"#finding-{len(report.findings)} > a")
    assert page.locator(".is-highlighted").count() == 1
    assert window.is_in_view(".is-highlighted")
    page.fill("#filter", "orders[299]")
    assert page.locator(".partition").count() == 1
    assert window.complaints == []


def test_a_page_says_what_it_leaves_out(window: Window, tmp_path: Path) -> None:
    report = takeover()
    more = MOST_FINDINGS + 5
    show(window, _with_findings(report, more), tmp_path)
    page = window.page
    assert page.locator(".finding").count() < more
    assert "5 more" in page.locator("#findings-note").inner_text()


def _with_findings(report: Report, count: int) -> Report:
    return msgspec.structs.replace(report, findings=[report.findings[0]] * count)


def test_no_records(window: Window, tmp_path: Path) -> None:
    empty = msgspec.structs.replace(
        takeover(), partitions=[], findings=[], verdicts=[], records=0
    )
    show(window, empty, tmp_path)
    assert "No records." in window.page.locator("#partitions-note").inner_text()
    assert window.complaints == []
