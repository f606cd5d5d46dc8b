"""The explorer in headless Chromium: mouse, touch, keyboard, sliders, links, and no request but to its own server."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from selenium import webdriver
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select
from support.browser import chromium, errors, requests, wait

import paretograd as pg
from paretograd.reports.explore import serving
from paretograd.reports.palette import COLOURS, ON_DARK

#: Coordinates of the gradients, as the page's inputs show them.
ROWS = """
return [...document.querySelectorAll('#gradients tbody tr')].map((row) =>
  [...row.querySelectorAll('input')].map((input) => input.valueAsNumber));
"""
#: All facts of a rule, by its place in the list.
FACTS = """
const card = document.querySelectorAll('#rules > li')[arguments[0]];
const texts = (one) => [...one.children].map((part) => part.textContent);
return Object.fromEntries([...card.querySelectorAll('dl div')].map(texts));
"""
TIP = """
const box = document.querySelectorAll('.handle .tip')[arguments[0]].getBoundingClientRect();
return [box.x + box.width / 2, box.y + box.height / 2];
"""
#: The same in the picture, wherever the page has scrolled.
PLACE = """
const tip = document.querySelectorAll('.handle .tip')[arguments[0]];
return [Number(tip.getAttribute('cx')), Number(tip.getAttribute('cy'))];
"""
#: Drag the tips of several gradients at once, each with a finger: for each gradient, how far to the right and down.
FINGERS = """
const fingers = arguments[0].map(([across, down], k) => {
  const target = document.querySelectorAll('.handle .tip')[k], box = target.getBoundingClientRect();
  return (type, part) => target.dispatchEvent(new PointerEvent(type, {
    bubbles: true, cancelable: true, pointerId: 5 + k, pointerType: 'touch', isPrimary: k === 0,
    clientX: box.x + box.width / 2 + part * across, clientY: box.y + box.height / 2 + part * down,
  }));
});
for (const [type, part] of [['pointerdown', 0], ['pointermove', 0.5], ['pointermove', 1], ['pointerup', 1]]) {
  for (const fire of fingers) fire(type, part);
}
"""
#: Drag from a corner of the picture with the mouse: how far to the right and down.
TURN = """
const [across, down] = arguments, target = document.getElementById('picture'), box = target.getBoundingClientRect();
for (const [type, part] of [['pointerdown', 0], ['pointermove', 0.5], ['pointermove', 1], ['pointerup', 1]]) {
  target.dispatchEvent(new PointerEvent(type, {
    bubbles: true, cancelable: true, pointerId: 1, pointerType: 'mouse', isPrimary: true,
    clientX: box.x + 10 + part * across, clientY: box.y + 10 + part * down,
  }));
}
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving() as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    with chromium(reachable="127.0.0.1") as started:
        yield started


@pytest.fixture
def page(browser: webdriver.Chrome, address: str) -> webdriver.Chrome:
    """The page with its first preset, freshly opened."""
    return opened(browser, address)


def opened(browser: webdriver.Chrome, address: str) -> webdriver.Chrome:
    browser.get("about:blank")  # otherwise only the fragment changes
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(address)
    settled(browser)
    return browser


def settled(page: webdriver.Chrome) -> None:
    """Wait until the numbers belong to the gradients: the program is part of the answer.

    Gradients are shown in the frame after an event, so the frames of all events so far come first.
    """
    page.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    wait(page, lambda: page.execute_script("return document.documentElement.dataset.answers > 0"))
    wait(page, lambda: str(rows(page)) == program_rows(page) and not page.execute_script("return document.hidden"))


def rows(page: webdriver.Chrome) -> list[list[float]]:
    return [[float(value) for value in row] for row in page.execute_script(ROWS)]


def program_rows(page: webdriver.Chrome) -> str:
    text = page.find_element(By.ID, "program").get_attribute("textContent") or ""
    return text.partition("torch.tensor(")[2].partition(", dtype")[0]


def facts(page: webdriver.Chrome, i: int) -> dict[str, str]:
    return dict(page.execute_script(FACTS, i))


def gamma(page: webdriver.Chrome) -> str:
    return page.find_element(By.ID, "value").text


def expected(page: webdriver.Chrome) -> str:
    """The library's gamma for the gradients of the page. What a Gramian does not resolve is shown as 0."""
    J = torch.tensor(rows(page), dtype=torch.float64)
    gamma = float(pg.stationarity(J @ J.T))
    return f"{gamma:.4g}" if gamma > 1e-7 * float(J.norm(dim=1).max()) else "0"


def fragment(page: webdriver.Chrome) -> str:
    return str(page.execute_script("return location.hash"))


def handle(page: webdriver.Chrome, k: int) -> Any:
    return page.find_elements(By.CSS_SELECTOR, ".handle")[k]


def press(page: webdriver.Chrome, name: str) -> None:
    page.execute_script(
        "[...document.querySelectorAll('#presets button')].find((one) => one.textContent === arguments[0]).click()",
        name,
    )
    settled(page)


def test_it_opens_without_an_error_and_asks_only_its_own_server(page: webdriver.Chrome, address: str) -> None:
    assert gamma(page) == "0.7276" == expected(page)
    assert facts(page, 0)["conflicts"] == "1"
    assert len(page.find_elements(By.CSS_SELECTOR, "#picture path.direction")) == 4
    assert len(page.find_elements(By.CSS_SELECTOR, "#picture path.dual")) == 1
    press(page, "Three in space")
    assert requests(page) == {address, f"{address}answer"}
    assert errors(page) == []
    # Were a foreign script to get in, the policy would let it load nothing.
    page.execute_script("fetch('http://127.0.0.1:9/').catch(() => { window.blocked = true; })")
    wait(page, lambda: page.execute_script("return window.blocked"))
    assert any("Content Security Policy" in entry["message"] for entry in errors(page))


def test_dragging_a_gradient_with_the_mouse_changes_the_numbers(page: webdriver.Chrome) -> None:
    before = rows(page)
    x, y = page.execute_script(TIP, 1)
    mouse = ActionChains(page, duration=20)
    mouse.w3c_actions.pointer_action.move_to_location(round(x), round(y))
    mouse.w3c_actions.pointer_action.pointer_down()
    for step in range(1, 6):
        mouse.w3c_actions.pointer_action.move_to_location(round(x) + 20 * step, round(y) - 8 * step)
    mouse.w3c_actions.pointer_action.pointer_up()
    mouse.perform()
    settled(page)
    after = rows(page)
    assert after[0] == before[0]
    assert after[1][0] > before[1][0]
    assert after[1][1] > before[1][1]
    assert page.execute_script(TIP, 1) == pytest.approx([x + 100, y - 40], abs=2.0)
    assert gamma(page) == expected(page) != "0.7276"
    assert facts(page, 0)["conflicts"] == "none"
    assert fragment(page).startswith("#g=3,0;") or wait(page, lambda: fragment(page).startswith("#g=3,0;"))
    assert errors(page) == []


def test_two_fingers_drag_two_gradients(page: webdriver.Chrome) -> None:
    before = rows(page)
    page.execute_script(FINGERS, [[-60, -60], [-30, 0]])
    settled(page)
    after = rows(page)
    assert after[0][0] < before[0][0]
    assert after[0][1] > before[0][1]
    assert after[1] == [pytest.approx(after[1][0]), before[1][1]]
    assert after[1][0] < before[1][0]
    assert gamma(page) == expected(page)
    # A finger on a gradient moves it and does not scroll the page.
    touch = "return getComputedStyle(document.querySelector('.handle')).touchAction"
    assert page.execute_script(touch) == "none"


def test_a_real_touch_moves_a_gradient(page: webdriver.Chrome) -> None:
    x, y = page.execute_script(TIP, 0)
    for kind, points in (
        ("touchStart", [{"x": x, "y": y}]),
        ("touchMove", [{"x": x - 20, "y": y - 20}]),
        ("touchMove", [{"x": x - 60, "y": y - 60}]),
        ("touchEnd", []),
    ):
        page.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    wait(page, lambda: rows(page)[0][1] > 0.0)
    settled(page)
    assert page.execute_script(TIP, 0) == pytest.approx([x - 60, y - 60], abs=2.0)


def test_the_keyboard_moves_a_gradient(page: webdriver.Chrome) -> None:
    moved = handle(page, 0)
    moved.send_keys(Keys.ARROW_UP)
    settled(page)
    assert rows(page)[0] == [3.0, 0.05]
    assert page.switch_to.active_element == moved
    assert moved.get_attribute("aria-valuetext") == "3, 0.05"
    moved.send_keys(Keys.SHIFT, Keys.ARROW_LEFT)
    settled(page)
    assert rows(page)[0] == [2.5, 0.05]
    assert gamma(page) == expected(page)
    wait(page, lambda: "gamma is" in (page.find_element(By.ID, "spoken").get_attribute("textContent") or ""))


def test_tab_reaches_the_gradients_with_a_visible_focus(page: webdriver.Chrome) -> None:
    page.execute_script("[...document.querySelectorAll('#presets button')].at(-1).focus()")
    ActionChains(page).send_keys(Keys.TAB).perform()
    assert page.switch_to.active_element.get_attribute("aria-label") == "gradient 0"
    ring = "return getComputedStyle(document.querySelector('.handle:focus-visible .grip')).strokeWidth"
    assert page.execute_script(ring) == "3px"


def test_everything_that_can_be_used_has_a_name(page: webdriver.Chrome) -> None:
    press(page, "Long and short")
    nodes = page.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    roles = {"button", "checkbox", "slider", "spinbutton", "combobox"}
    used = [node for node in nodes if node["role"]["value"] in roles and not node["ignored"]]
    assert {node["role"]["value"] for node in used} >= {"button", "checkbox", "slider", "spinbutton", "combobox"} - {
        None
    }
    assert [node for node in used if not node.get("name", {}).get("value")] == []


def test_a_slider_changes_a_direction(page: webdriver.Chrome) -> None:
    slider = page.find_element(By.CSS_SELECTOR, ".dial input")
    assert slider.get_attribute("aria-label") == "radius c of CAGrad"
    before = facts(page, 3)["slopes ⟨d, gₖ⟩"]
    slider.send_keys(Keys.END)
    wait(page, lambda: facts(page, 3)["slopes ⟨d, gₖ⟩"] != before)
    J = torch.tensor(rows(page), dtype=torch.float64)
    slopes = (J @ pg.CAGrad(c=2.0)(J)).tolist()
    wait(page, lambda: facts(page, 3)["slopes ⟨d, gₖ⟩"] == ", ".join(f"{slope:.4g}" for slope in slopes))
    assert page.switch_to.active_element == slider
    wait(page, lambda: "cagrad(c=2)" in fragment(page))
    assert errors(page) == []


def test_rules_are_added_normalized_and_removed(page: webdriver.Chrome) -> None:
    Select(page.find_element(By.ID, "add")).select_by_visible_text("Capped MGDA")
    labels = "return [...document.querySelectorAll('#rules .label')].map((one) => one.textContent)"
    start = ["Mean", "MGDA", "UPGrad", "CAGrad"]
    wait(page, lambda: page.execute_script(labels) == [*start, "Capped MGDA"])
    page.find_elements(By.CSS_SELECTOR, "#rules input[type=checkbox]")[2].click()
    wait(page, lambda: page.execute_script(labels)[2] == "UPGrad*")
    assert facts(page, 2)["lies in"] == "convex hull"
    page.find_elements(By.CSS_SELECTOR, "#rules button")[0].click()
    wait(page, lambda: page.execute_script(labels) == ["MGDA", "UPGrad*", "CAGrad", "Capped MGDA"])
    assert errors(page) == []


def test_fewer_gradients_move_a_cap_into_its_range(browser: webdriver.Chrome, address: str) -> None:
    page = opened(browser, f"{address}#g=1,0;0,1;-1,0.5&r=capped-mgda(cap=0.35)")
    page.find_element(By.CSS_SELECTOR, "[aria-label='Remove gradient 2']").click()
    wait(page, lambda: facts(page, 0).get("weights") == "0.500 0.500")
    wait(page, lambda: "cap=0.5" in fragment(page))


def test_the_link_restores_the_state(page: webdriver.Chrome, address: str) -> None:
    press(page, "PCGrad conflicts")
    handle(page, 2).send_keys(Keys.ARROW_UP)
    page.execute_script(TURN, 40, 20)
    page.find_element(By.ID, "equal").click()
    settled(page)
    wait(page, lambda: "e=1" in fragment(page))
    link, before = page.current_url, (rows(page), gamma(page), [facts(page, i) for i in range(5)])
    tips = [page.execute_script(PLACE, k) for k in range(3)]
    again = opened(page, link)
    assert (rows(again), gamma(again), [facts(again, i) for i in range(5)]) == before
    assert again.find_element(By.ID, "equal").is_selected()
    for k in range(3):  # the view is saved in whole degrees, and fitted anew
        assert again.execute_script(PLACE, k) == pytest.approx(tips[k], abs=12.0)
    assert errors(again) == []


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ("#g=1,2;x,3", "This link cannot be read"),
        ("#g=", "This link cannot be read"),
        ("#g=1,2;3", "This link cannot be read"),
        ("#g=1,2;9e9,4&r=mgda", "between -1e+06 and 1e+06"),
        ("#g=1,2&r=mgda", "got 1 of them"),
    ],
)
def test_a_wrong_link_is_explained(browser: webdriver.Chrome, address: str, link: str, words: str) -> None:
    browser.get("about:blank")
    browser.get(address + link)
    wait(browser, lambda: words in browser.find_element(By.ID, "error").text)


def test_a_hostile_rule_is_only_text(browser: webdriver.Chrome, address: str) -> None:
    hostile = "<img src=x onerror=window.hacked=1>"
    page = opened(browser, f"{address}#g=3,0;-1,1&r=mgda;{hostile}")
    assert page.find_elements(By.CSS_SELECTOR, "#rules .label")[1].get_attribute("textContent") == hostile
    assert "no aggregator is called" in facts(page, 1)["error"] or "is not a rule" in facts(page, 1)["error"]
    assert page.find_elements(By.TAG_NAME, "img") == []
    assert page.execute_script("return window.hacked") is None


def test_copies_the_link_and_a_program_that_runs(page: webdriver.Chrome) -> None:
    origin = page.execute_script("return location.origin")
    for permission in ("clipboardReadWrite", "clipboardSanitizedWrite"):
        page.execute_cdp_cmd("Browser.grantPermissions", {"origin": origin, "permissions": [permission]})
    page.execute_script("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
    page.find_element(By.ID, "link").click()
    wait(page, lambda: page.find_element(By.ID, "said").text == "Link copied")
    assert page.execute_script("return window.copied") == page.current_url
    page.find_element(By.ID, "python").click()
    wait(page, lambda: page.find_element(By.ID, "said").text == "Program copied")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(page.execute_script("return window.copied"), "program", "exec"), {})
    assert out.getvalue().startswith(f"gamma = {gamma(page)}")


def test_space_turns_by_mouse_and_keyboard_and_keeps_the_numbers(page: webdriver.Chrome) -> None:
    press(page, "Three in space")
    before, numbers, tip = rows(page), gamma(page), page.execute_script(TIP, 0)
    page.execute_script(TURN, 80, 0)
    wait(page, lambda: page.execute_script(TIP, 0) != tip)
    turned = page.execute_script(TIP, 0)
    page.find_element(By.ID, "picture").send_keys(Keys.ARROW_RIGHT)
    wait(page, lambda: page.execute_script(TIP, 0) != turned)
    assert (rows(page), gamma(page)) == (before, numbers)
    handle(page, 0).send_keys(Keys.PAGE_UP)
    settled(page)
    assert rows(page)[0] != before[0]
    assert gamma(page) == expected(page)


def test_dimensions_and_gradients_can_be_added(page: webdriver.Chrome) -> None:
    Select(page.find_element(By.ID, "dimensions")).select_by_visible_text("3")
    page.find_element(By.ID, "more").click()
    settled(page)
    assert [len(row) for row in rows(page)] == [3, 3, 3]
    assert gamma(page) == expected(page)
    first = page.find_element(By.CSS_SELECTOR, "#gradients input")
    first.clear()
    first.send_keys("1.5")
    wait(page, lambda: rows(page)[0][0] == 1.5)
    settled(page)
    assert errors(page) == []


def test_a_drag_asks_once_in_a_frame_and_ends_with_the_last_state(page: webdriver.Chrome) -> None:
    page.get_log("performance")
    page.execute_script("for (let i = 0; i < 40; i += 1) arguments[0].dispatchEvent(new KeyboardEvent('keydown', "
                        "{key: 'ArrowUp', bubbles: true}))", handle(page, 1))  # fmt: skip
    settled(page)
    assert rows(page)[1] == [-1.0, 3.0]
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    assert 1 <= sum(event["method"] == "Network.requestWillBeSent" for event in events) <= 3
    assert gamma(page) == expected(page)


def test_it_says_when_the_server_is_gone(browser: webdriver.Chrome) -> None:
    with serving() as address:
        page = opened(browser, address)
    handle(page, 0).send_keys(Keys.ARROW_UP)
    wait(page, lambda: "Start it again" in page.find_element(By.ID, "error").text)


def test_it_fits_a_phone_and_follows_the_dark_mode(page: webdriver.Chrome) -> None:
    colour = "return document.querySelector('#picture path.direction').getAttribute('stroke')"
    assert page.execute_script(colour) == COLOURS[0]
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    try:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
        wait(page, lambda: page.execute_script(colour) == ON_DARK[0])
        page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
        size = "return [document.documentElement.scrollWidth, document.getElementById('picture').viewBox.baseVal.width]"
        wait(page, lambda: max(page.execute_script(size)) <= 390)
        press(page, "IMTL-G conflicts")
        assert page.execute_script(size)[0] <= 390
        assert errors(page) == []
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
