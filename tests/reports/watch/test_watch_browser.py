"""The page of a recording in headless Chromium, from a file and without a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from support.browser import check_dark_phone, errors, offline_browser, requests, show, wait
from support.recorded import jacobians, record

import paretograd as pg
from paretograd.reports.study.content import curves
from paretograd.reports.watch import write_page
from paretograd.reports.watch.analysis import analyse, conflicting_pairs
from paretograd.reports.watch.words import percent

HOSTILE = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>%{x}"
NAMES = ("speed", "cost", HOSTILE)
TITLES = [
    "Who conflicts with whom",
    "When they conflict",
    "Losses that are raised",
    "Distance to Pareto stationarity",
    "Weights",
    "Lengths of the gradients",
    "Losses",
    "What other rules would have raised",
]
DATA = "return document.getElementById('plot-' + arguments[0]).data"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watched")
    record(folder, jacobians(80), pg.Mean(), NAMES, update=True)
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    with offline_browser() as started:
        yield started


@pytest.fixture
def page(browser: webdriver.Chrome, folder: Path) -> webdriver.Chrome:
    show(browser, write_page(folder))
    return browser


def test_the_answer_is_at_the_top_and_nothing_is_requested(page: webdriver.Chrome, folder: Path) -> None:
    run = analyse(folder)
    first = conflicting_pairs(run)[0]
    answer = page.find_element(By.ID, "answer")
    assert f"speed and cost conflict in {percent(first.share)} of the steps" in answer.text.splitlines()[0]
    below = "return document.querySelector('.plot').getBoundingClientRect().top"
    assert answer.rect["y"] + answer.rect["height"] < page.execute_script(below)
    assert answer.rect["y"] < 150  # seen without scrolling
    assert [title.text for title in page.find_elements(By.CSS_SELECTOR, ".panel h3")] == TITLES
    assert errors(page) == []
    assert requests(page) == {(folder / "monitor.html").as_uri()}


def test_the_pictures_show_the_recorded_numbers(page: webdriver.Chrome, folder: Path) -> None:
    run = analyse(folder)
    apart = (run.cosines < 0.0).mean(axis=0)
    (heat,) = page.execute_script(DATA, 0)
    assert heat["z"][0][0] is None
    assert heat["z"][0][1:] == pytest.approx(apart[0, 1:], rel=1e-5)  # six digits are drawn
    (over_time,) = page.execute_script(DATA, 1)
    pair = conflicting_pairs(run)[0]
    assert over_time["z"][0] == pytest.approx(run.cosines[:, pair.first, pair.second], rel=1e-5)
    gamma, shortest, _ = page.execute_script(DATA, 3)
    assert gamma["y"] == pytest.approx(run.gamma, rel=1e-5)
    assert shortest["y"] == pytest.approx(run.lengths.min(axis=1), rel=1e-5)
    for number, values in ((4, run.weights), (5, run.lengths), (6, run.losses)):
        drawn = np.array([line["y"] for line in page.execute_script(DATA, number)]).T
        assert np.allclose(drawn, values, rtol=1e-5)
    raised = page.execute_script(DATA, 2)
    assert [line["name"] for line in raised] == ["by the direction", "by the update"]
    assert raised[1]["y"] == pytest.approx(run.updated.sum(axis=1))


def test_unticking_a_loss_hides_its_lines(page: webdriver.Chrome) -> None:
    page.find_element(By.CSS_SELECTOR, "input[name=loss][value='1']").click()
    shown = "return [4, 5, 6].map((i) => document.getElementById('plot-' + i).data.map((line) => line.visible))"
    wait(page, lambda: page.execute_script(shown) == [[True, False, True]] * 3)
    page.find_element(By.NAME, "logarithmic").click()
    axis = "return document.getElementById('plot-4')._fullLayout.xaxis.type"
    wait(page, lambda: page.execute_script(axis) == "log")
    assert errors(page) == []


def test_a_hostile_name_is_only_text(page: webdriver.Chrome) -> None:
    labels = [label.text for label in page.find_elements(By.CSS_SELECTOR, "#controls fieldset label")]
    assert labels == list(NAMES)
    assert HOSTILE in page.find_element(By.ID, "answer").text
    assert page.execute_script("return window.hacked") is None
    assert page.execute_script("return document.images.length") == 0


def test_it_fits_a_phone_and_follows_the_dark_mode(page: webdriver.Chrome) -> None:
    check_dark_phone(page, "plot-4", "plot-0", curves(NAMES)["speed"])


def test_many_losses_are_heat_maps(browser: webdriver.Chrome, tmp_path: Path) -> None:
    record(tmp_path, jacobians(20, m=30, n=40), pg.UPGrad())
    show(browser, write_page(tmp_path))
    kinds = "return [...document.querySelectorAll('.plot')].map((plot) => plot.data[0].type)"
    assert browser.execute_script(kinds) == [*["heatmap"] * 2, *["scatter"] * 2, *["heatmap"] * 4]
    assert not browser.find_elements(By.CSS_SELECTOR, "#controls fieldset")
    assert errors(browser) == []
