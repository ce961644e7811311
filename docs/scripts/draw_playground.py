"""Take the pictures of the playground in docs/images: `python docs/scripts/draw_playground.py`.

Needs playwright and chromium. The model is the built-in one, with seed 3; nothing is chosen among several results.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect, sync_playwright

TARGET = Path(__file__).parent.parent / "images"
TEXT = "a green hat and a yellow circle"
DESK, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
FLAGS = ["--no-sandbox", "--disable-gpu", "--mute-audio"]
_SECONDS = 60_000  # milliseconds for anything, on a busy machine


@contextmanager
def serving() -> Iterator[str]:
    """The address of a server."""
    command = [sys.executable, "-m", "triptych", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield re.search(r"http://\S+", process.stdout.readline())[0]  # type: ignore[index]
        finally:
            process.terminate()


@contextmanager
def pages() -> Iterator[Callable[..., Page]]:
    """Opens pages of the playground: `open(scheme, size)`."""
    expect.set_options(timeout=_SECONDS)
    with serving() as address, sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)

        def open_page(scheme: Any = "light", size: Any = None, path: str = "/", **options: Any) -> Page:
            size = size or DESK
            page = browser.new_context(viewport=size, color_scheme=scheme, **options).new_page()
            page.set_default_timeout(_SECONDS)
            page.goto(address + path)
            page.wait_for_selector("html[data-ready]", state="attached")
            return page

        yield open_page
        browser.close()


def draw_and_speak(page: Page) -> None:
    page.fill("#seed", "3")
    page.fill("textarea", TEXT)
    page.get_by_role("button", name="Draw and speak", exact=True).click()
    page.click("summary")
    page.fill("#num_steps", "12")
    page.click("summary")
    page.locator(".settings").evaluate("line => (line.scrollLeft = 0)")
    page.click("#play")
    expect(page.locator("#play")).to_have_text("Play again")


def show_half(page: Page) -> None:
    """Show the last frame in which a third of the image is masked: images and audio come in any order."""
    frames, scrubber = int(page.locator("#scrubber").get_attribute("max") or 0), page.locator("#scrubber")
    for frame in range(frames, 0, -1):
        scrubber.evaluate("(range, at) => { range.value = at; range.dispatchEvent(new Event('input')); }", frame)
        if page.locator("#board .image .cell.masked").count() >= 6:
            return


def hover(page: Page) -> None:
    """Show what the model expects of a masked code of the image."""
    page.locator("#board .image .cell.masked").nth(2).hover()
    expect(page.locator("#tip")).to_be_visible()


def draw(folder: Path) -> None:
    with pages() as open_page:
        for name, scheme in (("playground", "light"), ("playground-dark", "dark")):
            page = open_page(scheme)
            draw_and_speak(page)
            page.select_option("#heat", "confidence")
            show_half(page)
            hover(page)
            page.screenshot(path=folder / f"{name}.png")
        page = open_page("light", PHONE, has_touch=True, is_mobile=True)
        draw_and_speak(page)
        show_half(page)
        page.screenshot(path=folder / "playground-phone.png")


if __name__ == "__main__":
    draw(TARGET)
