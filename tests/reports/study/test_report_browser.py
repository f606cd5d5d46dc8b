"""The report in headless Chromium, from a file and without a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select
from support.browser import check_dark_phone, errors, offline_browser, requests, show, wait

import paretograd as pg
from paretograd.reports.study import write_study
from paretograd.reports.study.content import curves

RULES = ("mgda", "upgrad", "upgrad*", "nash-mtl*")
SEEDS = (24, 42, 100)
SHOWN = 100
HOSTILE = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>%{x}"
METHODS = ["MGDA", "UPGrad", "UPGrad*", "Nash-MTL*", HOSTILE]
PANELS = 4  # two losses, gamma, objective space

#: Method, seed and kind of every trace that is drawn, panel by panel.
DRAWN = """
return [...document.querySelectorAll('.plot')].map((plot) =>
  plot.data.filter((trace) => trace.visible !== false).map((trace) => ({...trace.meta})));
"""
#: Where a point of a method's line stands on the screen, after scrolling to it.
PLACE = """
const plot = document.getElementById('plot-' + arguments[0]);
plot.scrollIntoView({block: 'center'});
const lines = plot.data.filter((one) => one.meta.kind === 'run' && one.visible !== false);
const trace = lines.find((one) => one.meta.method === arguments[1]);
const i = arguments[2] < 0 ? trace.x.length + arguments[2] : arguments[2];
const {xaxis, yaxis} = plot._fullLayout, box = plot.getBoundingClientRect();
return [box.left + xaxis._offset + xaxis.d2p(trace.x[i]), box.top + yaxis._offset + yaxis.d2p(trace.y[i])];
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    problem = pg.problem("vlmop2")
    runs = [pg.descend(problem, pg.get(rule), 0.02, 600, seeds=SEEDS, stop_gamma=0.01) for rule in RULES]
    trajectories = dict(zip(METHODS, [*runs, runs[0]], strict=True))
    rows = [{"method": label, "note": HOSTILE} for label in METHODS]
    folder = tmp_path_factory.mktemp("study")
    return write_study(folder, HOSTILE, trajectories, problem, SHOWN, rows, {"a": HOSTILE}, stop_gamma=0.01)[-1]


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    with offline_browser() as started:
        yield started


@pytest.fixture
def page(browser: webdriver.Chrome, report: Path) -> webdriver.Chrome:
    """The report, freshly opened and drawn."""
    show(browser, report)
    return browser


def drawn(page: webdriver.Chrome) -> list[list[tuple[str, str]]]:
    """Method and seed of the lines in each panel."""
    return [
        [(METHODS[trace["method"]], trace["seedName"]) for trace in panel if trace["kind"] == "run"]
        for panel in page.execute_script(DRAWN)
    ]


def hover(page: webdriver.Chrome, panel: int, method: str, point: int) -> str:
    """What the page shows beside a point of a line."""
    x, y = page.execute_script(PLACE, panel, METHODS.index(method), point)
    mouse = ActionChains(page, duration=0)
    mouse.w3c_actions.pointer_action.move_to_location(round(x) + 1, round(y))
    mouse.w3c_actions.pointer_action.move_to_location(round(x), round(y))
    mouse.perform()
    read = f"return [...document.querySelectorAll('#plot-{panel} .hovertext')].map((one) => one.textContent).join()"
    return str(wait(page, lambda: page.execute_script(read)))


def test_it_draws_every_run_without_an_error_or_a_request(page: webdriver.Chrome, report: Path) -> None:
    shown = [(method, str(SHOWN)) for method in METHODS]
    assert drawn(page) == [shown] * PANELS
    traces = page.execute_script("return [...document.querySelectorAll('.plot')].map((plot) => plot.data.length)")
    lines_and_ends = 2 * len(METHODS) * len(SEEDS)
    bounds = page.execute_script("return JSON.parse(document.getElementById('study').textContent).bounds.length")
    assert traces == [lines_and_ends, lines_and_ends, lines_and_ends + bounds + 1, lines_and_ends + 1]
    kinds = [{trace["kind"] for trace in panel} for panel in page.execute_script(DRAWN)]
    assert kinds == [{"run", "end"}, {"run", "end"}, {"run", "end", "bound", "stop"}, {"run", "end", "front"}]
    paths = "return [...document.querySelectorAll('.plot')].map((one) => one.querySelectorAll('path.js-line').length)"
    assert page.execute_script(paths)[0] == len(METHODS)
    assert page.execute_script("return document.getElementById('plot-2')._fullLayout.yaxis.type") == "log"
    assert errors(page) == []
    assert requests(page) == {report.as_uri()}


def test_unticking_a_method_hides_it_in_every_panel(page: webdriver.Chrome) -> None:
    box = page.find_element(By.CSS_SELECTOR, f"input[name=method][value='{METHODS.index('UPGrad*')}']")
    box.click()
    left = [(method, str(SHOWN)) for method in METHODS if method != "UPGrad*"]
    wait(page, lambda: drawn(page) == [left] * PANELS)
    lines = "return document.querySelectorAll('#plot-2 .scatterlayer path.js-line').length"
    before = page.execute_script(lines)
    box.click()
    wait(page, lambda: drawn(page) == [[(method, str(SHOWN)) for method in METHODS]] * PANELS)
    assert page.execute_script(lines) == before + 1
    page.find_element(By.CSS_SELECTOR, "button[data-check=none]").click()
    wait(page, lambda: drawn(page) == [[]] * PANELS)
    assert errors(page) == []


def test_seeds_are_shown_one_by_one_or_all(page: webdriver.Chrome) -> None:
    choice = Select(page.find_element(By.NAME, "seed"))
    assert [option.text for option in choice.options] == ["100", "24", "42", "all seeds"]
    choice.select_by_visible_text("42")
    wait(page, lambda: drawn(page) == [[(method, "42") for method in METHODS]] * PANELS)
    choice.select_by_visible_text("all seeds")
    wait(page, lambda: [len(panel) for panel in drawn(page)] == [len(METHODS) * len(SEEDS)] * PANELS)
    widths = page.execute_script(
        "return document.getElementById('plot-0').data.filter((one) => one.meta.kind === 'run')"
        ".map((one) => [one.meta.seedName, one.line.width])"
    )
    assert min(width for seed, width in widths if seed == "100") > max(width for seed, width in widths if seed != "100")
    assert errors(page) == []


def test_bounds_and_log_iterations_can_be_chosen(page: webdriver.Chrome) -> None:
    page.find_element(By.NAME, "bounds").click()
    wait(page, lambda: all(trace["kind"] != "bound" for trace in page.execute_script(DRAWN)[2]))
    page.find_element(By.NAME, "logarithmic").click()
    axis = "return document.getElementById('plot-0')._fullLayout.xaxis.type"
    wait(page, lambda: page.execute_script(axis) == "log")
    assert errors(page) == []


def test_hovering_tells_method_seed_iteration_losses_and_gamma(page: webdriver.Chrome) -> None:
    for panel in range(PANELS):
        text = hover(page, panel, "UPGrad", -40)
        for part in ("UPGrad", "seed 100", "iteration", "f₁ = ", "f₂ = ", "γ = "):
            assert part in text


def test_a_hostile_label_is_only_text(page: webdriver.Chrome) -> None:
    labels = [label.text for label in page.find_elements(By.CSS_SELECTOR, "#controls fieldset label")]
    assert labels == METHODS
    assert page.find_element(By.TAG_NAME, "h1").text == HOSTILE
    for method in METHODS[:-1]:  # MGDA's runs lie below the hostile one's
        page.find_element(By.CSS_SELECTOR, f"input[name=method][value='{METHODS.index(method)}']").click()
    wait(page, lambda: [len(panel) for panel in drawn(page)] == [1] * PANELS)
    assert HOSTILE in hover(page, 0, HOSTILE, -40)
    assert page.execute_script("return window.hacked") is None
    # Were a script to get in, the policy would not run it.
    page.execute_script(
        "const one = document.createElement('div'); one.innerHTML = arguments[0]; document.body.append(one)", HOSTILE
    )
    wait(page, lambda: any("Content Security Policy" in entry["message"] for entry in errors(page)))
    assert page.execute_script("return window.hacked") is None


def test_it_fits_a_phone_and_follows_the_dark_mode(page: webdriver.Chrome) -> None:
    check_dark_phone(page, "plot-0", "plot-0", curves(METHODS)["MGDA"])
