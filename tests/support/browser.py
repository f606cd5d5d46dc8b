"""Pages in headless Chromium.

Needs Debian's packages chromium and chromium-driver (or others of that kind on the path). Without them, tests are
skipped; in continuous integration, where CI=true, they fail.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

from paretograd.reports.study.content import Curve

#: Width of a phone, in pixels.
PHONE = 390
PATIENCE = 20  # seconds; a busy machine is slow


@contextmanager
def chromium(reachable: str | None = None) -> Iterator[webdriver.Chrome]:
    """Start a browser that keeps a log of its messages and requests.

    Args:
        reachable: the only host that it finds; None for none.
    """
    binary = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        reason = "needs Chromium and its driver: apt-get install chromium chromium-driver"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    arguments = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1300,950"]
    arguments.append("--host-resolver-rules=MAP * ~NOTFOUND" + (f", EXCLUDE {reachable}" if reachable else ""))
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        arguments.append("--no-sandbox")  # Chromium's own refuses root, which a container runs as
    for argument in arguments:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield started
    finally:
        started.quit()


@contextmanager
def offline_browser() -> Iterator[webdriver.Chrome]:
    """Start a browser without a network, for pages in files."""
    with chromium() as started:
        started.execute_cdp_cmd("Network.enable", {})
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        started.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
        yield started


def show(browser: webdriver.Chrome, report: Path) -> None:
    """Open a page afresh, and wait until it is drawn."""
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(report.as_uri())
    wait(browser, lambda: browser.execute_script("return document.documentElement.dataset.drawn") == "yes")


def wait(browser: webdriver.Chrome, condition: Callable[[], Any]) -> Any:
    """Return the condition's value once it is true."""
    return WebDriverWait(browser, PATIENCE, poll_frequency=0.05).until(lambda _: condition())


def errors(page: webdriver.Chrome) -> list[Any]:
    """Return the page's errors and warnings since the last call."""
    return [entry for entry in page.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def requests(page: webdriver.Chrome) -> set[str]:
    """Return the addresses that the page asked for since the last call."""
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    return {url for url in asked if not url.startswith(("data:", "blob:"))}


@contextmanager
def dark_phone(page: webdriver.Chrome) -> Iterator[None]:
    """Show the page on a phone that prefers dark colours."""
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    phone = {"width": PHONE, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    try:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
        page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
        yield
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def check_dark_phone(page: webdriver.Chrome, line: str, fitting: str, look: Curve) -> None:
    """Check that a page with plots fits a phone, and that a line changes its colour in the dark.

    Args:
        page: shown on a wide screen that prefers light colours.
        line: identifier of the plot whose first line has the look.
        fitting: identifier of the plot that is measured.
        look: of that line.
    """
    colour = f"return document.getElementById('{line}').data[0].line.color"
    assert page.execute_script(colour) == look.colour
    with dark_phone(page):
        wait(page, lambda: page.execute_script(colour) == look.on_dark)
        width = f"document.getElementById('{fitting}')._fullLayout.width"
        size = f"return [document.documentElement.scrollWidth, {width}]"
        wait(page, lambda: max(page.execute_script(size)) <= PHONE)
        assert errors(page) == []
