"""The playground in a real browser: what a user sees is what the pipeline makes, and every control does its work."""

import base64
import io
import json
import math
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
from partial_models import partial_models
from PIL import Image
from server_process import ServerProcess

from triptych import Pipeline

playwright = pytest.importorskip("playwright.sync_api")
expect, Page, Browser = playwright.expect, playwright.Page, playwright.Browser

CHROMIUM = shutil.which("chromium")
FILES = Path(__file__).parents[2] / "triptych" / "serve" / "playground"
TEXT = "a green hat and a yellow circle"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--mute-audio",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
]
SECONDS = 30_000  # milliseconds that a browser on a busy machine gets for anything


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("needs chromium (apt-get install chromium)")
    expect.set_options(timeout=SECONDS)
    with playwright.sync_playwright() as tools:
        started = tools.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def opened(browser: Browser, server: str) -> Iterator[Callable[..., Page]]:
    """Opens the page in a new profile; a script error or a refused resource fails the test."""
    contexts, errors = [], []

    def run(
        path: str = "/", before: Callable[[Page], Any] = lambda page: None, is_ready: bool = True, **options: Any
    ) -> Page:
        if not contexts:
            contexts.append(browser.new_context(viewport={"width": 1280, "height": 1000}, **options))
            contexts[0].set_default_timeout(SECONDS)
        page = contexts[0].new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if "Content Security" in said.text else None)
        before(page)
        page.goto(path if path.startswith("http") else server + path)
        if is_ready:
            page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield run
    for context in contexts:
        context.close()
    assert errors == []


@pytest.fixture
def page(opened: Callable[..., Page]) -> Page:
    return opened()


@pytest.fixture(scope="module")
def modules(browser: Browser, server: str) -> Iterator[Page]:
    """A page that only runs functions of the modules."""
    context = browser.new_context()
    context.set_default_timeout(SECONDS)
    page = context.new_page()
    page.goto(f"{server}/playground/icon.svg")
    yield page
    context.close()


def finish(page: Page) -> None:
    expect(page.locator("#play")).to_have_text("Play again")


def draw(page: Page, text: str = TEXT, seed: int = 0) -> None:
    page.fill("#seed", str(seed))
    page.fill("textarea", text)
    page.press("textarea", "Enter")
    finish(page)


def image_in(page: Page, within: str = "#board") -> np.ndarray:
    uri = page.locator(f"{within} .image img").get_attribute("src")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


def masked(page: Page, pane: str) -> list[int]:
    selected = page.locator(f"#board .{pane} .cell").evaluate_all("all => all.map(each => each.ariaSelected)")
    return [i for i, each in enumerate(selected) if each == "true"]


def codes(page: Page, pane: str = "image", within: str = "#board") -> list[int | None]:
    names = page.locator(f"{within} .{pane} .cell").evaluate_all("all => all.map(each => each.ariaLabel)")
    matches = [re.search(r"code (\d+)", name) for name in names]
    return [int(each[1]) if each else None for each in matches]


def drag(page: Page, start: int, end: int) -> None:
    boxes = [page.locator("#board .image .cell").nth(i).bounding_box() for i in (start, end)]
    (x0, y0), (x1, y1) = [(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in boxes]
    page.mouse.move(x0, y0)
    page.mouse.down()
    page.mouse.move(x1, y1, steps=3)
    page.mouse.up()


def scrub(page: Page, frame: int) -> None:
    page.locator("#scrubber").evaluate(
        "(range, frame) => { range.value = frame; range.dispatchEvent(new Event('input')); }", frame
    )


# -- files ------------------------------------------------------------------------------------------------------------


def test_only_the_files_of_the_page_are_served(server: str) -> None:
    policy = httpx.get(server).headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert not re.search(r"unsafe|https?:|\*", policy)
    for path in FILES.iterdir():
        answer = httpx.get(f"{server}/playground/{path.name}")
        assert (answer.status_code, answer.content) == (200, path.read_bytes()), path.name
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    for name in (
        "",
        "main",
        "..%2fapp.py",
        "%2e%2e/app.py",
        "..%5capp.py",
        "/etc/passwd",
        "index.html%00.js",
        "a" * 5000,
    ):
        assert httpx.get(f"{server}/playground/{name}").status_code == 404, name[:40]


def test_the_page_names_no_other_host_and_every_import_exists() -> None:
    for path in FILES.iterdir():
        text = path.read_text()
        assert set(re.findall(r"https?://[^\s\"'/]+", text)) <= {"http://www.w3.org"}, path.name
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\beval\(", text), path.name
        for name in re.findall(r"from \"\./([\w.]+)\"", text):
            assert (FILES / name).is_file(), f"{path.name} imports {name}"


# -- runs -------------------------------------------------------------------------------------------------------------


def test_draws_what_the_pipeline_draws(page: Page, pipe: Pipeline) -> None:
    draw(page, seed=3)
    np.testing.assert_array_equal(image_in(page), np.asarray(pipe.text_to_image(TEXT, seed=3)))
    assert page.locator("#board .chips .cell").all_text_contents() == TEXT.split()
    assert masked(page, "image") == []
    expect(page.locator("#history li")).to_have_count(1)
    with page.expect_download() as saved:
        page.click("text=PNG")
    first = image_in(page)
    np.testing.assert_array_equal(np.asarray(Image.open(saved.value.path())), first)
    page.click("#play")
    expect(page.locator("#history li")).to_have_count(2)
    assert page.input_value("#seed") != "3"
    page.fill("#seed", "3")
    page.check("#lock")
    for count in (3, 4):
        page.click("#play")
        expect(page.locator("#history li")).to_have_count(count)
        assert page.input_value("#seed") == "3"
        np.testing.assert_array_equal(image_in(page), first)


@pytest.mark.parametrize(("typed", "read"), [("CAT!!!", "a cat"), ("2 kitties please!", "two cats")])
def test_prompts_are_drawn_as_they_are_read(page: Page, pipe: Pipeline, typed: str, read: str) -> None:
    draw(page, typed, seed=3)
    np.testing.assert_array_equal(image_in(page), np.asarray(pipe.text_to_image(read, seed=3)))
    assert page.locator("#board .chips .cell").all_text_contents() == read.split()


def test_stop_keeps_the_frames(page: Page) -> None:
    page.click("summary")
    page.select_option("#sampler", "remdm")  # it masks some tokens again at every step
    page.fill("#num_steps", "4000")
    page.fill("textarea", TEXT)
    page.press("textarea", "Tab")
    page.click("#play")
    expect(page.locator("#clock")).to_contain_text("step")
    expect(page.locator("#play")).to_have_text("Stop")
    page.click("#play")
    finish(page)
    assert 1 <= int(page.locator("#scrubber").get_attribute("max")) < 4000
    assert masked(page, "image")
    expect(page.locator("#branch")).to_be_enabled()
    expect(page.locator("#history li")).to_have_count(0)  # what was stopped is no result


def test_a_drag_masks_and_shift_restores(page: Page) -> None:
    draw(page)
    page.click("#accept")
    before = codes(page)
    drag(page, 4, 7)
    assert masked(page, "image") == [4, 5, 6, 7]
    page.keyboard.down("Shift")
    drag(page, 6, 7)
    page.keyboard.up("Shift")
    assert masked(page, "image") == [4, 5]
    assert codes(page) == before  # what is masked is still known, so that it can be restored
    page.click("#play")
    finish(page)
    after = codes(page)
    assert [x for i, x in enumerate(after) if i not in (4, 5)] == [x for i, x in enumerate(before) if i not in (4, 5)]
    page.click("#discard")
    assert masked(page, "image") == [4, 5]
    page.click("#undo")
    page.click("#undo")
    assert masked(page, "image") == []
    assert codes(page) == before


def test_scrub_heat_hover_and_branch(page: Page) -> None:
    draw(page)
    last = int(page.locator("#scrubber").get_attribute("max"))
    assert last >= 2
    left = []
    for frame in range(last + 1):
        scrub(page, frame)
        left.append(len(masked(page, "image")))
    assert (left[0], left[-1]) == (16, 0)
    assert left == sorted(left, reverse=True)
    scrub(page, 1)
    page.select_option("#heat", "entropy")
    heats = page.locator("#board .image .heated").evaluate_all(
        "all => all.map(each => each.style.getPropertyValue('--heat'))"
    )
    assert len(heats) == 16
    assert all(0 <= float(each) < 1 for each in heats)
    page.hover("#board .image .cell >> nth=0")
    expect(page.locator("#tip li")).to_have_count(5)
    probabilities = [float(each.removesuffix(" %")) for each in page.locator("#tip .percent").all_text_contents()]
    assert probabilities == sorted(probabilities, reverse=True)
    kept = {i: code for i, code in enumerate(codes(page)) if i not in masked(page, "image")}
    assert kept
    page.click("#branch")
    finish(page)
    assert page.input_value("#seed") != "0"
    assert {i: codes(page)[i] for i in kept} == kept
    assert masked(page, "image") == []


def test_two_seeds_side_by_side(page: Page, pipe: Pipeline) -> None:
    page.fill("textarea", TEXT)
    page.fill("#seed", "7")
    page.click("#compare-button")
    finish(page)
    images = [image_in(page, f"#compare .side >> nth={i} >>") for i in (0, 1)]
    for seed, made in zip((7, 8), images):
        np.testing.assert_array_equal(made, np.asarray(pipe.text_to_image(TEXT, seed=seed)))
    page.click("text=Keep B")
    expect(page.locator("#compare")).to_be_hidden()
    np.testing.assert_array_equal(image_in(page), images[1])


def test_one_text_is_drawn_and_spoken_on_one_clock(page: Page, pipe: Pipeline) -> None:
    page.click("text=Draw and speak")
    draw(page, "a cat", seed=5)
    np.testing.assert_array_equal(image_in(page), np.asarray(pipe.text_to_image("a cat", seed=5)))
    with page.expect_download() as saved:
        page.click("text=WAV")
    samples, rate = soundfile.read(saved.value.path(), dtype="float32")
    spoken = pipe.text_to_speech("a cat", seed=5)
    assert (rate, len(samples)) == (spoken.sample_rate, len(spoken.samples))
    np.testing.assert_allclose(samples, np.clip(spoken.samples, -1, 1), atol=2e-4)
    # Frames of both: at some frame the image is done and the audio is not, or the other way round.
    counts = set()
    for frame in range(1, int(page.locator("#scrubber").get_attribute("max")) + 1):
        scrub(page, frame)
        counts.add((len(masked(page, "image")), len(masked(page, "audio"))))
    assert len({image for image, _ in counts}) > 2
    assert len({audio for _, audio in counts}) > 2
    colours = page.locator("#board .spectrum canvas").evaluate(
        "it => new Set(new Uint32Array(it.getContext('2d').getImageData(0, 0, it.width, it.height).data.buffer)).size"
    )
    assert colours > 20


def test_caption_and_answer_after_a_dropped_file(page: Page, pipe: Pipeline) -> None:
    drawn = pipe.text_to_image(TEXT, seed=0)
    buffer = io.BytesIO()
    drawn.save(buffer, "PNG")
    page.set_input_files(
        ".image input[type=file]", {"name": "a.png", "mimeType": "image/png", "buffer": buffer.getvalue()}
    )
    expect(page.locator("#board .image img")).to_be_visible()
    assert codes(page) == pipe.bundle.image.encode([drawn])[0].tolist()
    page.click("text=Caption")
    page.click("#play")
    finish(page)
    assert page.input_value("textarea").startswith(pipe.limits.caption_prompt)
    assert "hat" in page.input_value("textarea")
    page.click("#accept")
    page.fill("textarea", "what colour is the hat")
    page.click("text=Answer")
    page.click("#play")
    finish(page)
    assert page.input_value("textarea").startswith("what colour is the hat")
    assert len(page.input_value("textarea").split()) > 5


def test_a_link_holds_canvas_and_seed(page: Page, opened: Callable[..., Page]) -> None:
    draw(page)
    page.click("#accept")
    drag(page, 0, 1)
    page.fill("#seed", "11")
    page.click("#link")
    link = page.evaluate("location.hash")
    assert link.startswith("#c=")
    other = opened("/" + link)
    assert masked(other, "image") == [0, 1]
    assert other.locator("#board .chips .cell").all_text_contents() == TEXT.split()
    for each in (page, other):
        each.click("#play")
        finish(each)
        assert each.input_value("#seed") == "11"
    np.testing.assert_array_equal(image_in(page), image_in(other))
    broken = opened("/#c=bm90IGEgY2FudmFz")
    expect(broken.locator("#message")).to_have_text("This link is damaged: its canvas cannot be read.")


def test_a_link_holds_the_voice(modules: Page) -> None:
    voices = modules.evaluate(
        """async () => {
            const { linkOf, readLink } = await import("/playground/permalink.js");
            const { EMPTY } = await import("/playground/canvas.js");
            const given = ["emma", "", undefined];
            const links = given.map((voice) => linkOf({ canvas: EMPTY, model: "m", seed: 1, sampling: {}, voice }));
            return Promise.all(links.map(async (link) => (await readLink(link, null)).voice));
        }"""
    )
    assert voices == ["emma", "", ""]


def test_the_page_of_the_api_lists_every_route(page: Page, server: str) -> None:
    page.get_by_role("link", name="API").click()
    page.wait_for_selector("html[data-ready]", state="attached")
    paths = httpx.get(f"{server}/openapi.json").json()["paths"]
    listed = page.locator(".route h2").all_inner_texts()
    assert listed == [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
    canvas = page.locator("#post-v1-canvas")
    expect(canvas.locator("p").first).to_contain_text("Fill a canvas")
    row = canvas.get_by_role("row", name="segments")
    expect(row).to_contain_text("required")
    expect(row).to_contain_text("list of Segment")
    expect(page.locator("#post-v1-images-edits").get_by_role("row", name="image required")).to_contain_text("file")


# -- models with fewer modalities -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def partial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with partial_models(tmp_path_factory.mktemp("models")) as process:
        yield process


def visible(page: Page, what: str) -> list[str]:
    return [each.get_attribute("aria-label") or each.inner_text() for each in page.locator(f"{what}:visible").all()]


def test_panes_and_presets_of_a_model_of_texts(partial: ServerProcess, opened: Callable[..., Page]) -> None:
    page = opened(partial.address)
    assert visible(page, "#board .pane") == ["Text"]
    assert visible(page, "#presets button") == ["Continue", "Fill in"]
    page.fill("textarea", "ab")
    page.fill("#num_steps", "4", force=True)
    page.click("#play")
    finish(page)
    assert page.input_value("textarea").startswith("ab")


def test_panes_and_presets_follow_the_model(partial: ServerProcess, opened: Callable[..., Page]) -> None:
    page = opened(partial.address)
    page.select_option("#model", "pair")
    assert visible(page, "#board .pane") == ["Text", "Image"]
    assert visible(page, "#presets button") == ["Draw", "Caption", "Continue", "Fill in", "Answer"]
    page.select_option("#model", "image")
    assert visible(page, "#board .pane") == ["Image"]
    assert visible(page, "#presets button") == ["Draw", "Fill in"]
    page.click("#play")
    finish(page)
    assert image_in(page).shape == (16, 16, 3)
    page.click("#accept")
    drag(page, 0, 1)
    assert masked(page, "image") == [0, 1]


# -- hands ------------------------------------------------------------------------------------------------------------


def test_keyboard(page: Page) -> None:
    page.fill("textarea", "a red hat")
    page.press("textarea", "Tab")
    expect(page.locator("#board .chips .cell")).to_have_count(3)
    page.locator("#board .chips .cell").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press(" ")
    assert masked(page, "text") == [1]
    page.keyboard.press(" ")
    assert masked(page, "text") == []
    page.keyboard.type("blue")
    page.keyboard.press("Enter")
    expect(page.locator("#board .chips")).to_have_text("abluehat")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Backspace")
    expect(page.locator("#board .chips")).to_have_text("ablue")
    page.keyboard.press("Control+z")
    expect(page.locator("#board .chips")).to_have_text("abluehat")
    page.locator("#board .image .cell").first.focus()
    page.keyboard.press("Control+Enter")
    finish(page)
    page.click("#accept")
    page.locator("#board .image .cell").first.focus()
    for key in ("ArrowDown", "ArrowRight", " "):
        page.keyboard.press(key)
    assert masked(page, "image") == [5]
    option = page.locator("#tip .option").nth(1).text_content()
    page.keyboard.press("2")
    expect(page.locator("#board .image .cell").nth(5)).to_have_attribute("aria-label", re.compile(rf"{option},"))
    assert masked(page, "image") == []


def test_gaps_are_single_tokens(page: Page) -> None:
    page.fill("textarea", "a ___ hat")
    page.press("textarea", "Enter")
    finish(page)
    assert page.locator("#board .chips .cell").nth(0).text_content() == "a"
    assert page.locator("#board .chips .cell").nth(2).text_content() == "hat"
    assert page.locator("#board .chips .cell").nth(1).text_content()


def test_phone(opened: Callable[..., Page]) -> None:
    page = opened(has_touch=True)
    page.set_viewport_size({"width": 390, "height": 844})
    page.tap("text=three red hearts")
    expect(page.locator("#board .chips .cell")).to_have_count(3)
    page.tap("#play")
    finish(page)
    page.tap("#accept")
    cell = page.locator("#board .image .cell").nth(9)
    cell.tap()
    assert masked(page, "image") == [9]
    cell.tap()  # there is no Shift key: a second tap restores
    assert masked(page, "image") == []
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    boxes = [page.locator(f"#board .{each}").bounding_box() for each in ("text", "image")]
    assert boxes[0]["y"] + boxes[0]["height"] <= boxes[1]["y"] + 1


def test_dark(opened: Callable[..., Page]) -> None:
    def brightness(page: Page) -> float:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 3

    page = opened(color_scheme="dark")
    assert brightness(page) < 60
    page.click("#theme")
    assert brightness(page) > 200
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    assert brightness(page) > 200


def test_every_control_has_a_name(page: Page) -> None:
    draw(page, "a cat")
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, textarea, [role=gridcell], [role=grid]")]
            .filter((each) => !each.closest("[hidden]"))
            .filter((each) => !(each.ariaLabel || each.textContent.trim() || each.labels?.length))
            .map((each) => each.outerHTML)"""
    )
    assert nameless == []
    page.keyboard.press("Tab")
    focus = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert focus != "none"


def test_microphone(page: Page) -> None:
    page.click("text=Record")
    expect(page.locator("#message")).to_contain_text("Recording")
    page.wait_for_timeout(700)
    page.click("text=Stop recording")
    expect(page.locator("#board .audio .cell").first).to_be_visible()
    seconds = float(page.locator("#board .axis span").nth(1).text_content().removesuffix(" s"))
    assert 0.3 < seconds < 5


# -- what can go wrong ------------------------------------------------------------------------------------------------


def test_html_is_text(opened: Callable[..., Page]) -> None:
    evil = '<img src=x onerror="window.evil=1">'

    def encode(route: Any) -> None:
        route.fulfill(json={"modality": "text", "tokens": [1, 2], "pieces": [evil, " <b>b</b>"], "content": evil})

    page = opened(before=lambda page: page.route("**/v1/encode", encode))
    page.fill("textarea", evil)
    page.press("textarea", "Tab")
    expect(page.locator("#board .chips .cell")).to_have_count(2)
    assert page.locator("#board .chips .cell").all_text_contents() == [evil, "<b>b</b>"]
    page.unroute("**/v1/encode")
    page.click("#play")
    expect(page.locator("#message")).to_contain_text("this model cannot read")
    expect(page.locator("#message")).to_have_class("error")
    assert page.locator("#board .chips img, .chips b, #message img").count() == 0
    assert page.evaluate("window.evil") is None


def test_asks_for_a_key_and_keeps_it_for_the_tab(opened: Callable[..., Page]) -> None:
    seen = []

    def guard(route: Any) -> None:
        seen.append(route.request.headers.get("authorization"))
        if seen[-1] == "Bearer secret-key":
            route.continue_()
        else:
            route.fulfill(
                status=401, json={"error": {"message": "expected an API key", "type": "authentication_error"}}
            )

    def answer(page: Page, key: str) -> None:
        expect(page.locator("#key-dialog")).to_be_visible()
        page.fill("#key", key)
        page.press("#key", "Enter")

    page = opened(before=lambda page: page.route("**/v1/**", guard), is_ready=False)
    answer(page, "wrong")
    expect(page.locator("#key-message")).to_have_text("expected an API key")
    answer(page, "secret-key")
    page.wait_for_selector("html[data-ready]", state="attached")
    assert page.evaluate("[sessionStorage.getItem('triptych-key'), localStorage.length]") == ["secret-key", 0]
    draw(page, "a cat")
    assert seen[:3] == [None, "Bearer wrong", "Bearer secret-key"]


def test_a_full_queue_is_waited_for(page: Page) -> None:
    refusals = iter([1, 1])

    def busy(route: Any) -> None:
        if next(refusals, None) is None:
            return route.continue_()
        return route.fulfill(
            status=429, headers={"Retry-After": "1"}, json={"error": {"message": "the server is busy"}}
        )

    page.route("**/v1/canvas", busy)
    page.fill("textarea", "a cat")
    page.press("textarea", "Enter")
    expect(page.locator("#message")).to_contain_text("The server is busy. Trying again in 1 s (attempt 2 of 6).")
    finish(page)


def test_a_menu_of_models(opened: Callable[..., Page], server: str) -> None:
    models = httpx.get(f"{server}/v1/models").json()
    models["data"].append({**models["data"][0], "id": "other"})
    page = opened(before=lambda page: page.route("**/v1/models", lambda route: route.fulfill(json=models)))
    page.select_option("#model", "other")
    page.click("#play")
    expect(page.locator("#message")).to_contain_text("there is no model 'other'")


def test_errors_are_said_in_a_line(page: Page) -> None:
    page.fill("textarea", "a zebra")
    page.press("textarea", "Enter")
    expect(page.locator("#message")).to_contain_text("unknown word 'zebra'")
    page.click("text=Transcribe")
    expect(page.locator("#message")).to_contain_text("A transcript needs audio")
    page.fill("textarea", "a cat")
    page.press("textarea", "Tab")
    page.route("**/v1/canvas", lambda route: route.abort())
    page.click("#play")
    expect(page.locator("#message")).to_contain_text("does not answer")
    expect(page.locator("#play")).to_have_text("Play")


# -- modules ----------------------------------------------------------------------------------------------------------


def test_gif_of_the_denoising(page: Page) -> None:
    draw(page)
    steps = int(page.locator("#scrubber").get_attribute("max"))
    with page.expect_download() as saved:
        page.click("text=GIF")
    gif = Image.open(saved.value.path())
    assert gif.n_frames == steps + 1
    gif.seek(steps)
    small = np.asarray(gif.convert("RGB").resize((64, 64), Image.Resampling.NEAREST), np.int64)
    assert np.abs(small - image_in(page)).mean() < 4  # 256 colours for all frames
    gif.seek(0)
    assert np.abs(np.asarray(gif.convert("RGB").resize((64, 64)), np.int64) - small).mean() > 20


def test_gif_encoder_is_exact_with_256_colours(modules: Page) -> None:
    rng = np.random.default_rng(0)
    palette = rng.integers(0, 256, (256, 3))
    noise = palette[rng.integers(0, 256, (2, 70, 80))]  # so much noise that the table of codes is cleared
    flat = np.broadcast_to(palette[7], (1, 70, 80, 3))
    frames = np.concatenate([noise, flat])
    rgba = np.concatenate([frames, np.full((3, 70, 80, 1), 255)], axis=-1)
    made = modules.evaluate(
        """async (frames) => {
            const { encodeGif } = await import("/playground/gif.js");
            return [...encodeGif(80, 70, frames.map((each) => Uint8Array.from(each)), [5, 6, 7])];
        }""",
        [each.ravel().tolist() for each in rgba],
    )
    gif = Image.open(io.BytesIO(bytes(made)))
    assert gif.n_frames == 3
    for i, frame in enumerate(frames):
        gif.seek(i)
        np.testing.assert_array_equal(np.asarray(gif.convert("RGB")), frame)
        assert gif.info["duration"] == 10 * (5 + i)


def test_spectrum_and_wav_against_numpy(modules: Page) -> None:
    samples = [0.5 * math.sin(2 * math.pi * 32 * i / 512) for i in range(2048)]
    result = modules.evaluate(
        """async (samples) => {
            const { fft, spectrogram } = await import("/playground/spectrum.js");
            const { decodeWav, encodeWav } = await import("/playground/wav.js");
            const [re, im] = [Float64Array.from(samples), new Float64Array(samples.length)];
            fft(re, im);
            const wav = encodeWav(samples, 16000);
            const { samples: again, rate } = decodeWav(wav);
            const peaks = spectrogram(samples, 3).map((column) => column.indexOf(Math.max(...column)));
            return { re: [...re], im: [...im], wav: [...wav], again: [...again], rate, peaks };
        }""",
        samples,
    )
    truth = np.fft.fft(samples)
    np.testing.assert_allclose(np.array(result["re"]) + 1j * np.array(result["im"]), truth, atol=1e-9)
    assert result["peaks"] == [32, 32, 32]
    read, rate = soundfile.read(io.BytesIO(bytes(result["wav"])))
    assert rate == result["rate"] == 16000
    np.testing.assert_allclose(read, samples, atol=1e-4)
    np.testing.assert_allclose(result["again"], samples, atol=1e-4)


def test_a_text_for_both_media_is_generated_first(modules: Page) -> None:
    phases = modules.evaluate(
        """async () => {
            const { phasesOf, segmentOf } = await import("/playground/canvas.js");
            const part = (modality, tokens) => segmentOf({ modality, tokens, pieces: [] });
            const text = (tokens) => part("text", tokens);
            const [known, wanted] = [[1, 2], [null, null]];
            const [image, audio] = [(ids) => part("image", ids), (ids) => part("audio", ids)];
            const canvas = (t, i, a) => phasesOf({ text: t && text(t), image: i && image(i), audio: a && audio(a) });
            return JSON.stringify([
                canvas(known, wanted, wanted), canvas(wanted, wanted, known), canvas(wanted, known, null),
                canvas(wanted, wanted, wanted), canvas(null, wanted, null), canvas(wanted, null, null),
                canvas(known, known, null),
            ]);
        }"""
    )
    assert json.loads(phases) == [
        [[["text", "image"], ["text", "audio"]]],
        [[["text", "audio"]], [["text", "image"]]],
        [[["text", "image"]]],
        [[["text", "image"]], [["text", "audio"]]],
        [[["image"]]],
        [[["text"]]],
        [],
    ]


def test_a_voice_is_asked_for_without_a_change_of_the_canvas(modules: Page) -> None:
    sent, text, audio = modules.evaluate(
        """async () => {
            const { blank, EMPTY, segmentOf } = await import("/playground/canvas.js");
            const { Run } = await import("/playground/run.js");
            const [sent, audio] = [[], { modality: "audio", tokens: [5], frames: 1, codebooks: 1, frame_rate: 25 }];
            const spoken = { modality: "text", tokens: [8, 9], pieces: ["say", " cat"] };
            async function* events(path, body) {
                sent.push(body);
                yield { type: "canvas.created", warnings: [] };
                yield { type: "canvas.completed", segments: [spoken, audio] };
            }
            const text = { ...segmentOf({ modality: "text", tokens: [9], pieces: ["cat"] }), typed: "cat" };
            const canvas = { ...EMPTY, text, audio: blank("audio", { audio }) };
            const options = { model: "m", seed: 1, sampling: {}, topK: 1, previewEvery: 0 };
            const run = new Run({ events }, canvas, { ...options, voiced: (words) => `say ${words} as x` }, () => {});
            await run.play();
            return [sent[0].segments, run.last.canvas.text.ids, run.last.canvas.audio.ids];
        }"""
    )
    assert sent[0] == {"modality": "text", "content": "say cat as x"}
    assert (sent[1]["modality"], sent[1]["open"]) == ("audio", True)
    assert (text, audio) == ([9], [5])
