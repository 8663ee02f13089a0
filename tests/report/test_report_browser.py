"""The report as a reader meets it: in a browser, wide and narrow, light and dark."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from clocked_runs import with_clock
from guarded_runs import with_attack, with_privacy
from other_metrics import MAE, MSE, R2, with_metrics

from fedarena.data.statistics.describe import describe
from fedarena.display import federation_figure, metric_figure, robustness_figure, write_picture, write_report
from fedarena.display.drawing.style import DARK_COLOURS, INK, PAPER, QUIET_INK, SERIES_DARK, SERIES_LIGHT

pytestmark = pytest.mark.browser
sync_api = pytest.importorskip("playwright.sync_api")

WIDTHS = (1280, 390)
FIGURES = 7
RANKS = 1  # where there are three methods or more
FIGURES_WITH_CLOCK = FIGURES + 10  # two of them timelines: of a synchronous and of an asynchronous run
FIGURES_GUARDED = FIGURES + 9  # of privacy four, of attacks five
LOCAL = ("file://", "data:", "blob:")
AUDIT = {"epsilon_lower": 0.7, "confidence": 0.95, "canaries": 500}
HOSTILE = "<img src=x onerror=alert(1)><b>bold</b> & $x^2$ %{y}"


@pytest.fixture(scope="module")
def window(browser_path) -> Iterator[sync_api.Page]:
    """One page for all tests: a browser that has read the plots' script once opens the next report in a third."""
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        yield browser.new_page()
        browser.close()


@pytest.fixture
def show(window):
    """Opens a file; afterwards nothing may have been logged, thrown, asked for or popped up."""
    complaints: list[str] = []
    listeners = {
        "console": lambda message: complaints.append(f"console: {message.text}"),
        "pageerror": lambda error: complaints.append(f"error: {error}"),
        "dialog": lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()),
        "request": lambda r: complaints.append(f"request: {r.url}") if not r.url.startswith(LOCAL) else None,
    }

    def open_page(path, width=1280, scheme="light", plots=FIGURES):
        window.set_viewport_size({"width": width, "height": 900})
        window.emulate_media(media="screen", color_scheme=scheme)
        window.goto(path.as_uri())
        window.wait_for_load_state()
        assert window.locator(".main-svg .bglayer").count() == plots, "drawn as soon as the page is loaded"
        return window

    for event, listener in listeners.items():
        window.on(event, listener)
    yield open_page
    window.goto("about:blank")  # what the report still had to say has been said
    for event, listener in listeners.items():
        window.remove_listener(event, listener)
    assert complaints == []


@pytest.fixture(scope="module")
def reports(comparison, make_run, tmp_path_factory):
    """The report of one run, of a comparison, and of many methods with long and hostile labels; made when needed."""

    def long(seeds):
        labels = [f"{HOSTILE} and a name that is much longer than a phone is wide {i}" for i in range(9)]
        return [make_run(label, seed) for label in labels for seed in range(seeds)]

    def clock():
        return [with_clock(run, "buffered" if run.label == "fedyogi" else "synchronous") for run in comparison]

    def long_clock():
        return [
            with_clock(run, "buffered" if i > 4 else "synchronous", energy=True) for i, run in enumerate(long(seeds=1))
        ]

    def guarded():
        private = [with_privacy(run, audit=AUDIT, noise_cohort=5000) for run in comparison]
        return [
            with_attack(run, defence=run.label, success=0.9, caught=None if run.label == "fedavg" else 0.8)
            for run in private
        ]

    makers = {
        "guarded": guarded,
        "one": lambda: [make_run()],
        "comparison": lambda: comparison,
        "many": lambda: long(seeds=2),
        "clock": clock,
        "long clock": long_clock,
    }
    folder = tmp_path_factory.mktemp("reports")
    return cache(lambda name: write_report(makers[name](), folder / f"{name}.html"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "scheme", "width"),
    [
        *(("comparison", "light", width) for width in WIDTHS),
        *(("clock", "dark", width) for width in WIDTHS),
        ("guarded", "light", WIDTHS[0]),
        ("guarded", "dark", WIDTHS[1]),
        ("many", "light", WIDTHS[1]),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                *(("one", "light", width) for width in WIDTHS),
                ("many", "light", WIDTHS[0]),
                *(("long clock", "light", width) for width in WIDTHS),
                ("comparison", "dark", WIDTHS[1]),  # colours take no room: one width tells enough
            )
        ),
    ],
)
def test_every_plot_is_drawn_and_nothing_sticks_out(show, reports, name, scheme, width):
    drawn = FIGURES_WITH_CLOCK if "clock" in name else FIGURES_GUARDED if name == "guarded" else FIGURES
    expected = drawn + (0 if name == "one" else RANKS)
    page = show(reports(name), width, scheme, expected)
    plots = page.evaluate(
        """() => [...document.querySelectorAll('.plot')].map(plot => {
            const box = plot.querySelector('.main-svg').getBoundingClientRect();
            const drawn = [...plot.querySelectorAll('.scatterlayer .trace, .boxlayer .trace, .barlayer .trace')];
            const sized = drawn.map(trace => trace.getBoundingClientRect()).filter(b => b.width + b.height > 0);
            const ticks = [...plot.querySelectorAll('.xtick text')].filter(text => text.textContent.trim());
            return {width: box.width, height: box.height, traces: plot.data.length, sized: sized.length,
                    ticks: ticks.length};
        })"""
    )
    assert len(plots) == expected
    for plot in plots:
        assert plot["width"] > width / 4
        assert plot["height"] > 200
        assert 0 < plot["traces"] <= plot["sized"]
        assert plot["ticks"] >= 2
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CLIPPED) == []


# Text in a figure that leaves the figure, text in the page that leaves its box (tables and code scroll in theirs), and
# anything that leaves the window.
CLIPPED = """() => {
    const found = [];
    for (const plot of document.querySelectorAll('.plot')) {
        const frame = plot.getBoundingClientRect();
        for (const text of plot.querySelectorAll('.main-svg text')) {
            const box = text.getBoundingClientRect();
            const outside = box.left < frame.left - 1 || box.right > frame.right + 1
                || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
            if (box.width && outside) found.push('figure: ' + text.textContent);
        }
    }
    for (const element of document.querySelectorAll('h1, h2, h3, p, nav, button, figcaption, summary, .notice, dd')) {
        const inside = element.scrollWidth <= element.clientWidth + 1;
        if (element.clientWidth && !inside) found.push('page: ' + element.textContent);
    }
    for (const element of document.querySelectorAll('section, .scroll, figure, .keys')) {
        const box = element.getBoundingClientRect();
        if (box.left < 0 || box.right > innerWidth + 1) found.push('window: ' + element.className + element.id);
    }
    return found;
}"""


def test_the_results_table_fits_a_laptop(show, reports):
    box = show(reports("comparison"), plots=FIGURES + RANKS).locator(".scroll:has(.results)")
    assert box.evaluate("box => box.scrollWidth - box.clientWidth") <= 0


@pytest.mark.slow
def test_the_results_table_of_long_labels_fits_a_laptop(show, make_run, tmp_path):
    labels = ("fedavg cohort=20 synchronous", "fedprox", "fedyogi", "fedavg cohort=40 buffered")
    runs = [with_clock(make_run(label, seed, algorithm="fedavg")) for label in labels for seed in (0, 1)]
    page = show(write_report(runs, tmp_path / "report.html"), plots=FIGURES_WITH_CLOCK - 2 + RANKS)
    box = page.locator(".scroll:has(.results)")
    assert box.evaluate("box => box.scrollWidth - box.clientWidth") <= 0


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_a_report_of_an_error_with_everything_shows_every_column(show, make_run, tmp_path, width):
    runs = [
        with_clock(with_metrics(make_run(label, seed, personal=0.1), (MSE, MAE, R2)))
        for label in ("fedavg", "fedprox", "fedyogi")
        for seed in (0, 1)
    ]
    page = show(write_report(runs, tmp_path / "report.html"), width, plots=FIGURES_WITH_CLOCK - 2 + 3 + RANKS)
    assert page.evaluate(CLIPPED) == []
    box = page.locator(".scroll:has(.results)")
    hidden = box.evaluate("box => box.scrollWidth - box.clientWidth")
    assert hidden <= 0 if width == max(WIDTHS) else hidden > 0
    # Where it scrolls, a shadow says so, the names of methods stay, and the last column can be reached.
    assert "linear-gradient" in box.evaluate("box => getComputedStyle(box).backgroundImage")
    box.evaluate("box => { box.scrollLeft = box.scrollWidth }")
    edges = box.evaluate(
        """box => [box, ...box.querySelectorAll('tbody tr:first-child > *')].map(e => e.getBoundingClientRect())
            .map(({left, right}) => [left, right])"""
    )
    (left, right), first, *_, last = edges
    assert first[0] == pytest.approx(left, abs=1)
    assert last[1] <= right + 1


def rgb(colour: str) -> str:
    """A colour as browsers write it."""
    return f"rgb({int(colour[1:3], 16)}, {int(colour[3:5], 16)}, {int(colour[5:7], 16)})"


def line_colours(page):
    return page.evaluate(
        """() => document.querySelector('#learning .plot').data
            .filter(trace => trace.showlegend !== false).map(trace => trace.line.color)"""
    )


def wait_for_line_colour(page, colour):
    # Playwright's own waiting needs eval, which the report's security policy forbids.
    for _ in range(100):
        if line_colours(page)[0] == colour:
            return
        page.wait_for_timeout(50)
    pytest.fail(f"the lines did not become {colour}")


@pytest.mark.slow
def test_colours_follow_the_scheme_even_while_the_report_is_open(show, reports):
    page = show(reports("comparison"), scheme="light", plots=FIGURES + RANKS)
    assert line_colours(page)[:3] == list(SERIES_LIGHT[:3])
    page.emulate_media(color_scheme="dark")
    wait_for_line_colour(page, SERIES_DARK[0])
    assert line_colours(page)[:3] == list(SERIES_DARK[:3])
    background = page.evaluate("getComputedStyle(document.querySelector('.plot .main-svg')).backgroundColor")
    assert background == rgb(DARK_COLOURS[PAPER])


@pytest.mark.slow
def test_print_is_light(show, reports):
    page = show(reports("comparison"), scheme="dark", plots=FIGURES + RANKS)
    assert line_colours(page)[0] == SERIES_DARK[0]
    page.emulate_media(media="print", color_scheme="dark")
    wait_for_line_colour(page, SERIES_LIGHT[0])


def test_a_button_hides_and_shows_a_method(show, reports):
    page = show(reports("comparison"), plots=FIGURES + RANKS)
    figure = page.locator("#learning figure").first

    def shown():
        return page.evaluate(
            """[...document.querySelector('#learning .plot').data]
                .filter(t => t.visible !== false).map(t => t.legendgroup)"""
        )

    button = figure.get_by_role("button", name="fedprox")
    assert "fedprox" in shown()
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert "fedprox" not in shown()
    assert {"fedavg", "fedyogi", "baseline"} <= set(shown())
    button.click()
    assert "fedprox" in shown()


@pytest.mark.slow
def test_a_button_hides_and_shows_a_reason(show, reports):
    page = show(reports("clock"), plots=FIGURES_WITH_CLOCK + RANKS)
    figure = page.locator("figure", has=page.get_by_role("heading", name="Failed jobs"))
    names = "figure => figure.querySelector('.plot').data.filter(t => t.visible !== false).map(t => t.name)"
    assert "late" in figure.evaluate(names)
    figure.get_by_role("button", name="late").click()
    assert "late" not in figure.evaluate(names)
    assert "left while training" in figure.evaluate(names)


@pytest.mark.slow
def test_the_results_table_with_hours_fits_a_laptop(show, reports):
    box = show(reports("clock"), plots=FIGURES_WITH_CLOCK + RANKS).locator(".scroll:has(.results)")
    assert "time to" in box.text_content()
    assert box.evaluate("box => box.scrollWidth - box.clientWidth") <= 0


@pytest.mark.slow
def test_no_button_sends_data_anywhere(show, reports, make_run, tmp_path):
    picture = write_picture(metric_figure([make_run()]), tmp_path / "picture.html")
    for path, plots in ((reports("one"), FIGURES), (picture, 1)):
        page = show(path, plots=plots)
        buttons = page.locator(".js-plotly-plot").first.locator(".modebar-btn")
        titles = buttons.evaluate_all("buttons => buttons.map(button => button.dataset.title)")
        assert titles == ["Download plot", "Zoom", "Pan", "Reset axes"]


@pytest.mark.slow
def test_labels_are_shown_as_they_were_written(show, reports):
    page = show(reports("many"), plots=FIGURES + RANKS)
    label = f"{HOSTILE} and a name that is much longer than a phone is wide 0"
    assert page.locator("#learning figure").first.get_by_role("button").first.text_content() == label
    drawn = page.evaluate("[...document.querySelectorAll('.plot .annotation-text')].map(text => text.textContent)")
    assert f"{label[:20]}…{label[-19:]}" in drawn
    assert page.locator("main img").count() == 0


@pytest.fixture
def picture(make_federation, tmp_path):
    """A federation of pictures that are much alike, with a label that has a long name."""
    noise = np.random.default_rng(0).random((39, 1, 16, 16), dtype=np.float32)
    clients = {f"client {i}": (noise[:size], np.arange(size) % 7) for i, size in enumerate(range(9, 39))}
    found = describe(make_federation(clients, 7))
    names = ("a name of a label that is long", *map(str, range(1, 7)))
    found = replace(found, labels=replace(found.labels, names=names))
    return write_picture(federation_figure(found), tmp_path / "a.html")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("width", WIDTHS)
def test_pictures_open_on_their_own(show, picture, width):
    page = show(picture, width, plots=1)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".bars path").count() > 0
    assert page.locator(".heatmaplayer image").count() == 1
    assert page.evaluate(CLIPPED) == []
    assert "made" in page.title()
    ticks = page.locator(".colorbar text[transform]")
    assert ticks.first.text_content() == "0%"
    assert not any(
        "rotate" in tick for tick in ticks.evaluate_all("all => all.map(one => one.getAttribute('transform'))")
    )


@pytest.fixture(scope="module")
def matrix(make_run, tmp_path_factory):
    """Five attacks with names as long as they get, twelve defences, two shares."""
    attacks = ("none", "sign_flip", "a_little_is_enough", "inner_product", f"{HOSTILE} and a long name of an attack")
    defences = ("mean", "geometric_median", "a defence of one's own that has a long name", *map(str, range(9)))
    runs = [
        with_attack(make_run(f"{attack} {defence} {share}", rounds=5, clients=8), attack, share, defence, success=None)
        for attack in attacks
        for defence in defences
        for share in (0.1, 0.3)
        if share == 0.1 or attack != "none"
    ]
    return write_picture(robustness_figure(runs), tmp_path_factory.mktemp("matrix") / "matrix.html")


@pytest.mark.parametrize(("width", "scheme"), [(WIDTHS[0], "light"), (WIDTHS[1], "dark")])
def test_the_robustness_matrix_is_legible(show, matrix, width, scheme):
    page = show(matrix, width, scheme, plots=1)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CLIPPED) == []
    cells = page.evaluate(
        """[...document.querySelectorAll('.heatmap-label')].filter(text => text.textContent.trim())
            .map(text => ({text: text.textContent, ...text.getBoundingClientRect().toJSON()}))"""
    )
    assert len(cells) == 2 * 5 * 12
    for one, other in itertools.pairwise(sorted(cells, key=lambda cell: (round(cell["top"]), cell["left"]))):
        if round(one["top"]) == round(other["top"]):
            assert one["right"] <= other["left"], "numbers of neighbours do not touch"
    assert page.locator(".heatmaplayer image").count() == 2


def test_pictures_follow_the_scheme(show, picture):
    page = show(picture, scheme="dark", plots=1)
    drawn = page.evaluate("document.querySelector('.plot').outerHTML").lower()
    for light in (PAPER, INK, QUIET_INK, *SERIES_LIGHT[:3]):
        assert rgb(light) not in drawn, light
        assert light.lower() not in drawn, light
    assert page.evaluate("getComputedStyle(document.querySelector('.picture')).backgroundColor") == rgb(
        DARK_COLOURS[PAPER]
    )


@pytest.mark.slow
def test_a_picture_shows_labels_as_they_were_written(show, make_run, tmp_path):
    page = show(write_picture(metric_figure([make_run(HOSTILE)]), tmp_path / "run.html"), plots=1)
    assert page.locator(".legendtext").all_text_contents() == [HOSTILE, "baseline"]
    page.mouse.move(640, 250)
    page.locator(".hoverlayer .legendtext").first.wait_for()
    hovered = page.locator(".hoverlayer").text_content()
    assert HOSTILE in hovered
