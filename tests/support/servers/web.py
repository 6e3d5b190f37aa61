"""`queue-web.py` for tests, and browsers: requests over HTTP with cookies, and Debian's Chromium."""

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
from selenium import webdriver
from selenium.common.exceptions import TimeoutException, WebDriverException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from support.servers.processes import PROJECT, Address, Listening

SCRIPT = PROJECT / "scripts" / "queue-web.py"
COMMAND = [sys.executable, str(SCRIPT)]


class WebProcess(Listening):
    """`queue-web.py` as a process. `url` is the address of the page, without a slash at the end."""

    name = "page"
    modules = ("qs_web.command", "qs_web.serving")

    def __init__(self, folder: Path, server: Address, *flags: str, port: int = 0) -> None:
        """folder: the one for its stderr."""
        super().__init__(SCRIPT, ("--server", f"{server.host}:{server.port}", *flags), port, folder / "web.log")

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


@contextlib.contextmanager
def web_serving(folder: Path, server: Address, *flags: str) -> Iterator[WebProcess]:
    """Runs a page for the length of a with block. Its log must hold no traceback at the end."""
    web = WebProcess(folder, server, *flags)
    try:
        yield web
    finally:
        web.stop()
    assert "Traceback" not in web.log(), web.log()


def visitor(web: WebProcess) -> httpx.Client:
    """Returns a browser that keeps cookies and follows no redirects by itself."""
    return httpx.Client(base_url=web.url, timeout=20)


INSTALL = "apt install chromium chromium-driver"
NAME = "queues.example"
"""A name that resolves to this machine; browsers treat it as any other machine."""
WITHIN = 20.0
"""Seconds within which what a test waits for has to be on the page."""


def missing() -> str:
    """Returns the names of programs that have to be installed, "" if none is missing."""
    found = shutil.which("chromium") and shutil.which("chromedriver")
    return "" if found else f"the tests in a real browser need Chromium: {INSTALL}"


class Chromium:
    """A browser window."""

    def __init__(self, url: str, width: int, height: int, *, dark: bool, script: bool) -> None:
        options = Options()
        options.binary_location = shutil.which("chromium") or ""
        for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "hide-scrollbars"):
            options.add_argument(f"--{flag}")
        options.add_argument(f"--window-size={width},{height}")
        options.add_argument(f"--host-resolver-rules=MAP {NAME} 127.0.0.1")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        if not script:
            options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
        self.driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        self.url = url
        self.resize(width, height)
        scheme = "dark" if dark else "light"
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)

    def resize(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def open(self, path: str) -> None:
        self.driver.get(self.url + path)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        """Returns the only element of a selector, once it is there."""
        return self.until(lambda: self.all(selector))[0]  # type: ignore[no-any-return]

    def text(self, selector: str = "main") -> str:
        return self.one(selector).text

    def press(self, label: str) -> None:
        """Clicks the button or link with this text, once it is there."""
        try:
            self.until(lambda: self._press(label))
        except TimeoutException:
            raise AssertionError(f"no button {label!r} on {self.driver.current_url}:\n{self.text('body')}") from None

    def _press(self, label: str) -> bool:
        for element in self.all("button, a, summary"):
            if element.text == label and element.is_displayed():
                element.click()
                return True
        return False

    def fill(self, selector: str, text: str) -> None:
        element = self.one(selector)
        element.clear()
        element.send_keys(text)

    def until(self, condition: Callable[[], object]) -> object:
        """Waits until a condition holds, and returns its value. The condition may fail while the page changes."""
        wait = WebDriverWait(
            self.driver, WITHIN, poll_frequency=0.05, ignored_exceptions=(WebDriverException, LookupError)
        )
        return wait.until(lambda _: condition())

    def until_text(self, text: str, selector: str = "body") -> None:
        """Waits until a text is on the page."""
        try:
            self.until(lambda: text in self.text(selector))
        except TimeoutException:
            raise AssertionError(f"no {text!r} on {self.driver.current_url}:\n{self.text('body')}") from None

    def run(self, script: str, *arguments: object) -> object:
        """Runs a script in the page, and returns what it returns."""
        return self.driver.execute_script(script, *arguments)

    def errors(self) -> list[str]:
        """Returns the browser's complaints: about scripts, policies, resources."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


@contextlib.contextmanager
def chromium(
    url: str, width: int = 1280, height: int = 900, *, dark: bool = False, script: bool = True
) -> Iterator[Chromium]:
    """Runs a browser for the length of a with block. url: the page's address, without a slash at the end."""
    window = Chromium(url, width, height, dark=dark, script=script)
    try:
        yield window
    finally:
        window.driver.quit()
