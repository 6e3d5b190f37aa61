"""Tests what the page is like to use: on a phone, in the dark, by keyboard, with a screen reader, without script."""

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from support.servers.web import Chromium, WebProcess, chromium

from qs_client import QueueClient

pytestmark = pytest.mark.slow  # some 20 s in all: three browsers start

CONTRAST = """
const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
const lightness = ([r, g, b]) => {
  const part = (value) => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
};
const backgroundOf = (element) => {
  for (; element; element = element.parentElement) {
    const color = parse(getComputedStyle(element).backgroundColor);
    if (color.length === 3 || color[3] === 1) return color;
  }
  return [255, 255, 255];
};
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || !element.checkVisibility() || element.closest(".skip")) continue;
  const [one, two] = [parse(getComputedStyle(element).color), backgroundOf(element)].map(lightness);
  const contrast = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
  if (contrast < 4.5) found.push(walker.currentNode.data.trim() + ": " + contrast.toFixed(2));
}
return found;
"""
"""The texts whose contrast is under that of WCAG's level AA."""

NAMELESS = """
return [...document.querySelectorAll("input:not([type=hidden]), select, textarea, button, a, img, svg")]
  .filter((each) => each.checkVisibility() && !each.closest("[aria-hidden=true]"))
  .filter((each) => !(each.getAttribute("aria-label") || each.labels?.length || each.textContent.trim()
    || (each.tagName === "IMG" && each.hasAttribute("alt"))))
  .map((each) => each.outerHTML);
"""
"""What a screen reader has no name for."""


@pytest.fixture(scope="module")
def paths(server: object, web: WebProcess) -> Iterator[list[str]]:
    """One address of each kind of page."""
    with QueueClient(server.host, server.port) as client:  # type: ignore[attr-defined]
        name = "a-queue-with-quite-a-long-name-as-they-are-in-the-wild." * 3
        client.new_queue(name)
        mids = client.push_many(name, ['{"order": 1, "lines": [' + "1, " * 200 + "1]}"] * 30)
        client.set_queue(name, dead_letter="letters", max_receives=1)
        client.release(client.receive(name)[0])
        client.receive(name)
        client.push(name, "later", delay=3600)
        client.pause(name)
        for number in range(11):
            client.new_queue(f"bus:orders:name-{number}")
        letter = next(client.list_messages("letters", state="all"))
        queue = quote(name)
        yield [
            "/", "/?filter=nothing-has-this", f"/queue?q={queue}", f"/message?q={queue}&id={mids[4]}",
            f"/message?q={queue}&id={mids[4]}&view=hex", f"/message?q={queue}&id={mids[1]}", "/server", "/sign-in",
            f"/queue?q={queue}&state=delayed", "/queue?q=letters", f"/message?q=letters&id={letter}", "/?only=bus",
            "/queue?q=missing", f"/queue?q={queue}&done=pushed",
        ]  # fmt: skip


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_contrast(web: WebProcess, paths: list[str], *, dark: bool) -> None:
    """Every text has the contrast of level AA, by day and by night."""
    with chromium(web.url, dark=dark) as window:
        for path in paths:
            window.open(path)
            assert window.run(CONTRAST) == [], path
        window.run("document.querySelector('h1').style.color = 'rgb(120, 120, 120)'")
        assert window.run(CONTRAST) != []  # it would be noticed
        back = str(window.run("return getComputedStyle(document.body).backgroundColor"))
        assert (back == "rgb(18, 23, 26)") == dark


def test_names_and_structure(window: Chromium, paths: list[str]) -> None:
    """Every control has a name, tables have captions and heads, there is one main heading, and the browser reports no
    error."""
    for path in paths:
        window.open(path)
        assert window.run(NAMELESS) == [], path
        assert window.run("return document.querySelectorAll('h1').length") == 1
        assert window.run("return document.documentElement.lang") == "en"
        assert window.run("return [...document.querySelectorAll('table')].filter((t) => !t.caption).length") == 0
        loose = "return [...document.querySelectorAll('th')].filter((th) => !th.scope).length"
        assert window.run(loose) == 0
    assert [error for error in window.errors() if "404" not in error] == []


def test_a_phone(web: WebProcess, paths: list[str]) -> None:
    """At 400 px nothing but tables is wider than the window, and every button can be reached."""
    with chromium(web.url, 400, 800) as window:
        for path in paths:
            window.open(path)
            assert window.run("return document.documentElement.scrollWidth") == 400, path
            cut = window.run("""
                return [...document.querySelectorAll("button, input:not([type=hidden]), h1, .tile dd")]
                  .filter((each) => each.checkVisibility() && !each.closest(".table"))
                  .filter((each) => each.getBoundingClientRect().right > 400 || each.scrollWidth > each.clientWidth + 1
                    && each.tagName !== "INPUT").map((each) => each.outerHTML);
            """)
            assert cut == [], path


def test_keyboard(window: Chromium, paths: list[str]) -> None:
    """The first stop of the tab key leads to the content, and each stop can be seen."""
    window.open(paths[0])
    body = window.one("body")
    body.send_keys("\ue004")  # the tab key
    assert window.run("return document.activeElement.className") == "skip"
    assert window.run("return document.activeElement.getBoundingClientRect().left >= 0")
    for _ in range(12):
        window.one("body").send_keys("\ue004")
        style = window.run("return getComputedStyle(document.activeElement).outlineStyle")
        assert style != "none", window.run("return document.activeElement.outerHTML")


def test_without_script(web: WebProcess, client: QueueClient, qid: str) -> None:
    """With scripts switched off, forms and links do everything."""
    with chromium(web.url, script=False) as window:
        window.open(f"/?filter={quote(qid)}")
        assert not window.one("#live").is_displayed()
        window.one("tbody input[type=checkbox]").click()
        window.press("Pause")
        window.until_text("Paused 1 queue.")
        window.open(f"/queue?q={quote(qid)}")
        window.fill("#payload", "without script")
        window.press("Push")
        window.until_text("Pushed 1 message.")
        window.press("Purge…")
        window.press("Remove 1 message")
        window.until_text("1 message removed")
        assert client.stats(qid)[0].ready == 0
        window.open("/?sort=-ready")
        window.press("Queue")
        assert "sort=name" in window.driver.current_url


@pytest.mark.parametrize("width", [390, 1000, 1200, 1700])
def test_long_figures_and_reasons(web: WebProcess, client: QueueClient, qid: str, width: int) -> None:
    """However many tiles there are in a row, the longest span is inside its tile; and the list shows enough of a reason
    to tell what happened, in a table that fits a desktop."""
    client.set_queue(qid, dead_letter=f"{qid}-dead", max_receives=1)
    client.push_many(qid, ["one", "two", "three"])
    client.release(client.receive(qid)[0], reason="ValueError: not enough values to unpack (expected 2, got 1)")
    client.set_queue(qid, max_receives=5)
    client.release(client.receive(qid)[0], reason="OSError: the picture /srv/pictures/cat.jpg is empty", delay=3600)
    client.receive(qid)
    with chromium(web.url, width, 900) as window:
        for name in (qid, f"{qid}-dead"):
            window.open(f"/queue?q={quote(name)}")
            assert window.one(".why div").size["width"] >= 150
            assert window.run("""
                const tiles = [...document.querySelectorAll(".tile dd")];
                for (const each of tiles) each.textContent = "59 min 59 s";
                return tiles.filter((each) => each.scrollWidth > each.clientWidth).length;
            """) == 0, name  # fmt: skip
            if width >= 1200:
                cut = "const e = document.querySelector('.why div'); return e.scrollHeight > e.clientHeight"
                assert window.run(cut) is False
                table = (
                    "const e = document.querySelector('.messages').parentElement; return [e.scrollWidth, e.clientWidth]"
                )
                wanted, has = window.run(table)  # type: ignore[misc]
                assert wanted == has, name
