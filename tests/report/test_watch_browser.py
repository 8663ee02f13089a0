"""The live page in a browser: it follows a run, wide and narrow, and what is damaged or hostile does not harm it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from guarded_runs import Spends, real_run

import fedarena
from fedarena.display.drawing.style import SERIES_DARK, SERIES_LIGHT
from fedarena.display.running import run_with_report
from fedarena.display.watch.server import WatchServer, serve_in_background
from fedarena.runs.config import resolve
from fedarena.runs.merging import merge

pytestmark = pytest.mark.browser
sync_api = pytest.importorskip("playwright.sync_api")

ON_PHONES = {
    "federation": {"name": "digits", "partition": {"name": "dirichlet", "clients": 20}},
    "model": "logistic_regression",
    "fleet": {"name": "uniform", "seconds_per_sample": [0.01, 0.4], "share": 0.6, "slot_seconds": 300},
    "protocol": {"name": "deadline", "seconds": 20},
    "clock.crash_rate": 0.2,
    "rounds": 12,
    "cohort": 4,
    "evaluation.every": 2,
}
HOSTILE = "<img src=x onerror=alert(1)> $x^2$ %{y}"


@pytest.fixture(scope="module")
def browser(browser_path) -> Iterator[sync_api.Browser]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = resolve(merge({}, ON_PHONES | {"name": "finished"}))
    return run_with_report(settings, tmp_path_factory.mktemp("runs"), progress=False).path


@pytest.fixture
def show(browser):
    """Opens the page about some folders; afterwards nothing may have been thrown, popped up, or asked for elsewhere."""
    complaints: list[str] = []
    opened = []

    def open_page(folder: Path, width: int = 1280, scheme: str = "light"):
        server = serve_in_background([folder], 0)
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        local = (server.url, "data:", "blob:")
        page.on("request", lambda r: None if r.url.startswith(local) else complaints.append(f"request: {r.url}"))
        page.goto(server.url)
        opened.append((page, server))
        return page

    yield open_page
    for page, server in opened:
        page.close()
        server.shutdown()
        server.server_close()
    assert complaints == []


def shown(locator, text: str) -> None:
    sync_api.expect(locator).to_contain_text(text, timeout=15_000)


def drawn(page, plot: str, number: int) -> None:
    """Waits until a plot has so many lines or kinds of bars."""
    traces = page.locator(f"#{plot} .scatterlayer .trace, #{plot} .barlayer .trace")
    sync_api.expect(traces).to_have_count(number, timeout=15_000)


@pytest.mark.parametrize("width", [1280, pytest.param(390, marks=pytest.mark.slow)])
def test_the_page_follows_a_run(show, tmp_path: Path, width: int) -> None:
    page = show(tmp_path, width)
    shown(page.locator("#counts"), "No runs yet")
    shown(page.locator("#score-rounds-empty"), "Choose runs")
    with fedarena.open(ON_PHONES | {"name": "live"}, runs_folder=tmp_path) as run:
        run.advance(3)
        line = page.locator(".run", has=page.get_by_text("live", exact=True))
        shown(line, "running")
        shown(line, "3 / 12")
        drawn(page, "score-rounds", 2)  # a line and its band
        points = "document.querySelector('#score-rounds').data.at(-1).x"
        assert page.evaluate(points) == [0, 2]
        run.advance(4)
        shown(line, "7 / 12")
        page.wait_for_timeout(400)
        assert page.evaluate(points) == [0, 2, 4, 6]
        run.advance(5)
    shown(line, "finished")
    shown(page.locator("#connection"), "live")
    for plot in ("score-hours", "phones", "failures"):
        assert page.locator(f"#{plot} .main-svg").first.is_visible(), plot
    shown(page.locator("#failures-keys"), "crashed")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CLIPPED) == []


# Text that leaves its box or the window.
CLIPPED = """() => [...document.querySelectorAll('h1, h2, h3, p, .run, .run > *, .group > *, .keys, figcaption')]
    .filter(e => e.clientWidth && !e.matches('input'))
    .filter(e => e.scrollWidth > e.clientWidth + 1 || e.getBoundingClientRect().right > innerWidth + 1)
    .map(e => e.className + ': ' + e.textContent)"""


@pytest.mark.slow
def test_choosing_runs_compares_them_and_survives_a_reload(show, finished: Path, tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        shutil.copytree(finished, tmp_path / name)
    page = show(tmp_path)
    boxes = page.get_by_role("checkbox")
    sync_api.expect(boxes).to_have_count(3)
    for box in boxes.all():
        box.set_checked(True)
    drawn(page, "score-rounds", 6)
    assert page.evaluate("new Set(document.querySelector('#score-rounds').data.map(t => t.legendgroup)).size") == 3
    page.get_by_role("checkbox").nth(1).set_checked(False)
    drawn(page, "score-rounds", 4)
    page.reload()
    drawn(page, "score-rounds", 4)
    assert [box.is_checked() for box in page.get_by_role("checkbox").all()] == [True, False, True]


@pytest.mark.slow
def test_privacy_spent_is_shown_where_there_is_any(show, finished: Path, tmp_path: Path) -> None:
    real_run(tmp_path, name="private", transforms=[Spends])
    page = show(tmp_path, 390)
    drawn(page, "epsilon", 1)
    sync_api.expect(page.locator("#epsilon-figure")).to_be_visible()
    sync_api.expect(page.locator("#attack-success-figure")).to_be_hidden()
    assert page.evaluate("document.getElementById('epsilon').data[0].y.at(-1)") == pytest.approx(0.8)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page = show(finished)
    drawn(page, "score-rounds", 2)
    sync_api.expect(page.locator("#guarded-section")).to_be_hidden()


@pytest.mark.slow
def test_the_report_opens_from_the_list(show, finished: Path) -> None:
    page = show(finished.parent)
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="report").click()
    report = opened.value
    report.wait_for_load_state()
    assert report.locator(".main-svg").count() > 5
    report.close()


@pytest.mark.slow
def test_colours_follow_the_scheme(show, finished: Path) -> None:
    page = show(finished.parent)
    drawn(page, "score-rounds", 2)
    colour = "document.querySelector('#score-rounds').data.at(-1).line.color"
    assert page.evaluate(colour) == SERIES_LIGHT[0]
    page.emulate_media(color_scheme="dark")
    for _ in range(100):
        if page.evaluate(colour) == SERIES_DARK[0]:
            return
        page.wait_for_timeout(50)
    pytest.fail("the lines kept their colour")


@pytest.mark.slow
def test_damaged_and_hostile_runs_are_shown_as_text(show, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / HOSTILE)
    shutil.copytree(finished, tmp_path / "broken")
    (tmp_path / "broken" / "manifest.json").write_text("{")
    page = show(tmp_path, 390)
    line = page.locator(".run", has=page.get_by_text("broken", exact=True))
    shown(line, "damaged")
    shown(line, "manifest.json is damaged")
    line.get_by_role("checkbox").set_checked(True)
    shown(page.locator("#notices"), "broken: ")
    shown(page.locator("#keys"), HOSTILE)
    drawn(page, "score-rounds", 2)
    assert page.locator("main img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.slow
def test_a_thousand_runs_can_be_searched(show, finished: Path, tmp_path: Path) -> None:
    for number in range(1000):
        folder = tmp_path / f"suite{number // 100}" / f"run{number}"
        folder.mkdir(parents=True)
        for name in (
            "config.yaml",
            "environment.json",
            "manifest.json",
            "summary.json",
            "rounds.parquet",
            "jobs.parquet",
        ):
            (folder / name).hardlink_to(finished / name)
    page = show(tmp_path)
    shown(page.locator("#counts"), "1000 finished")
    shown(page.locator("#listed"), "200 of 1,000 runs")
    assert page.locator(".run:not(.head)").count() == 200
    page.get_by_role("searchbox").fill("suite7 run77")
    shown(page.locator("#listed"), "10 runs")
    sync_api.expect(page.locator(".run:not(.head)")).to_have_count(10)


@pytest.mark.slow
def test_the_page_goes_on_when_the_server_comes_back(browser, tmp_path: Path) -> None:
    with fedarena.open(ON_PHONES | {"name": "live"}, runs_folder=tmp_path) as run:
        run.advance(2)
        server = serve_in_background([tmp_path], 0)
        page = browser.new_page()
        page.goto(server.url)
        line = page.locator(".run", has=page.get_by_text("live", exact=True))
        shown(line, "2 / 12")
        server.shutdown()
        server.server_close()
        shown(page.locator("#connection"), "lost")
        run.advance(4)
        again = WatchServer([tmp_path], server.server_port)
        again.token = server.token
        threading.Thread(target=again.serve_forever, daemon=True).start()
        shown(line, "6 / 12")
        page.wait_for_timeout(400)
        assert page.evaluate("document.querySelector('#score-rounds').data.at(-1).x") == [0, 2, 4, 6]
        shown(page.locator("#connection"), "live")
        page.close()
        again.shutdown()
        again.server_close()
