"""The explorer in a real Chromium, opened from disk: every control, every state, and hostile text."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from explore_runs import HOSTILE, read_data, world, write_run

import smoothing
from fpa.collect import collect
from fpa.engines.fake import FakeEngine
from fpa.explore import explore
from fpa.explore.pack import write_data
from fpa.questions import load_questions
from fpa.run import open_run
from fpa.settings import Settings
from fpa.store import question_key
from smoothing.metrics import total_variation

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is missing: pip install playwright"
)
expect = playwright.expect
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: install it, or name it in CHROMIUM"),
    pytest.mark.xdist_group("browser"),
]
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
ARABIC = "الجواب الصحيح هو الخيار الثاني لأن الأرض تدور حول الشمس"
CHINESE = ["因为", "地球", "围绕", "太", "", "阳", "公转", "，", "答案", "\n", "是", "二", "。"]


@dataclass(frozen=True)
class Told:
    """A fit with a probability of a change, its curve's change doubled: pages must tell the two apart."""

    inner: Any
    grid: np.ndarray

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def change_probability(self, threshold: float) -> np.ndarray:
        curve = self.inner.predict(self.grid)
        return np.minimum(1.0, 2 * np.concatenate([[0.0], total_variation(curve[1:], curve[:-1])]))


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages of a mixed run with a reference, of an empty one, of one question with and without its rollouts'
    tokens, and of two hundred."""
    folder = tmp_path_factory.mktemp("browser")
    arabic = [(" " if i else "") + word for i, word in enumerate(ARABIC.split())]
    hostile_tokens = [" a", HOSTILE, *(f" {HOSTILE[:8]}{i}" for i in range(8))]
    worlds = [
        world("plain", subject="astronomy"),
        world("calm", fork=None, subject="law"),
        world(
            HOSTILE, hostile_tokens, question=HOSTILE, choices=(HOSTILE, "b", "c", "d"), subject=HOSTILE,
        ),
        world("rtl", arabic, question="ما هو الجواب الصحيح؟", choices=("الأول", "الثاني", "الثالث")),
        world("cjk", CHINESE, question="哪个天体位于中心？", choices=("地球", "太阳", "月球", "火星")),
        world("ten", choices=tuple("abcdefghij")),
        world("long", [f" t{i}" for i in range(2000)], fork=1000, samples=4, every=10, entropies=False),
    ]  # fmt: skip
    run = write_run(
        folder / "run",
        worlds,
        uncollected=(world("path"),),
        asked_only=(world("asked"),),
        failed={"asked": HOSTILE},
    )
    dense = [replace(w, samples=60) for w in worlds[:2]]
    reference = write_run(folder / "reference", dense, seed=50, texts=False)
    known = dict(smoothing.MODELS)
    smoothing.MODELS["told"] = lambda observations, _: Told(
        smoothing.fit(observations, "segment"), observations.grid
    )
    try:
        explore(run, folder / "mixed", reference, ("full", "told"), samples=(5,), every=(1, 4), workers=1)
    finally:
        smoothing.MODELS.clear()
        smoothing.MODELS.update(known)
    explore(write_run(folder / "empty", []), folder / "none", workers=1)
    explore(write_run(folder / "single", worlds[:1]), folder / "one", methods=("raw",), workers=1)
    odd = world("odd")  # its base path says B, where nearly all others say A
    odd.p[-1], odd.divert[-1] = 0.05, np.eye(5)[0]
    textless = write_run(folder / "textless", [worlds[0], odd], texts=False)
    explore(textless, folder / "bare", methods=("raw",), workers=1)
    branched(folder / "mixed", folder / "branches")
    repeat(folder / "mixed", folder / "many")
    for name, options in (
        ("entropix", {"rules": "four-state", "keep_entropy": 1.0}),
        ("eager", {"theta": 1.5}),
    ):
        guided = Settings(
            strategy=name,
            options=options,
            samples=4,
            every=6,
            base_tokens=40,
            rollout_tokens=40,
            keep_text=True,
        )
        collect(guided, FakeEngine(), load_questions("demo", limit=1), folder / f"by-{name}")
        explore(folder / f"by-{name}", folder / name, methods=("raw",), workers=1)
    made = ("run", "mixed", "none", "one", "bare", "branches", "many", "entropix", "eager")
    return {name: folder / name for name in made}


def branched(source: Path, target: Path) -> None:
    """The same pages, of a run that has three times the rollouts that its draws need."""
    shutil.copytree(source, target)
    file = target / "data" / f"{question_key('plain')}.js"
    core = read_data(file)
    write_data(file, file.stem, core | {"rollouts": 3 * core["rollouts"], "spent": 3 * core["spent"]})


def repeat(source: Path, target: Path) -> None:
    """Pages of two hundred questions, q0 to q199 of four subjects: those of ``plain`` and ``calm``."""
    shutil.copytree(source, target)
    index = read_data(source / "data" / "index.js")
    columns, cards = index["columns"], read_data(source / "data" / "cards-0.js")
    places = [columns["id"].index("plain" if i % 3 else "calm") for i in range(200)]
    for name in columns:
        columns[name] = [columns[name][place] for place in places]
    columns["id"] = [f"q{i}" for i in range(200)]
    columns["subject"] = [f"s{i % 4}" for i in range(200)]
    columns["largest"] = [(v * (i + 1) % 83) / 100 for i, v in enumerate(columns["tokens"])]
    columns["key"] = [f"q{i}" for i in range(200)]
    for i, place in enumerate(places):
        key = read_data(source / "data" / "index.js")["columns"]["key"][place]
        for suffix in ("", ".cells", ".texts"):
            write_data(
                target / "data" / f"q{i}{suffix}.js",
                f"q{i}{suffix}",
                read_data(source / "data" / f"{key}{suffix}.js"),
            )
    write_data(target / "data" / "index.js", "index", index)
    write_data(target / "data" / "cards-0.js", "cards-0", [cards[place] for place in places])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as p:
        chromium = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


class Page:
    """A page under test; whatever it complains about fails the test."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.context = browser.new_context(viewport={"width": 1300, "height": 1000}, **options)
        self.page = self.context.new_page()
        self.devtools = self.context.new_cdp_session(self.page)
        self.devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
        self.problems: list[str] = []
        self.asked: list[str] = []
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on(
            "console", lambda m: self.problems.append(m.text) if m.type in ("error", "warning") else None
        )
        self.page.on("request", lambda request: self.asked.append(request.url))

    def open(self, site: Path, state: str = "") -> Any:
        self.page.goto("about:blank")
        self.page.goto(f"{site.as_uri()}/index.html{state}")
        self.page.wait_for_selector("html[data-ready]", state="attached")
        return self.page

    def busy(self) -> float:
        """Seconds of its own processor time that the page has taken so far: other load does not count."""
        return next(
            m["value"]
            for m in self.devtools.send("Performance.getMetrics")["metrics"]
            if m["name"] == "TaskDuration"
        )

    def question(self, site: Path, question_id: str, state: str = "") -> Any:
        return self.open(site, f"#q={question_key(question_id)}{state}")


@pytest.fixture
def shown(browser: Any) -> Iterator[Page]:
    page = Page(browser)
    yield page
    page.context.close()
    assert page.problems == []
    assert all(url.startswith(("file:", "about:", "blob:", "data:")) for url in page.asked)


def state(page: Any) -> str:
    return page.evaluate("location.hash")


def rows(page: Any) -> list[str]:
    return page.locator(".all tbody th a, .card-head b").all_inner_texts()


def curves(page: Any) -> list[str]:
    return page.eval_on_selector_all(".plot .curve", "nodes => nodes.map(n => n.getAttribute('d'))")


# --- all questions


def test_first_view_of_two_hundred_is_small_and_quick(shown: Page, sites: dict[str, Path]) -> None:
    page = shown.open(sites["many"])
    files = [Path(url.removeprefix("file://")) for url in shown.asked if url.startswith("file:")]
    assert sum(f.stat().st_size for f in files) < 1_000_000
    assert [f.name for f in files if f.parent.name == "data"] == ["index.js", "cards-0.js"]
    assert shown.busy() < 1.0
    assert page.inner_text(".tally") == "200 questions"


def test_table_sorts_filters_and_searches(shown: Page, sites: dict[str, Path]) -> None:
    page = shown.open(sites["many"])
    assert rows(page)[:3] == ["q0", "q1", "q2"]
    assert page.locator("tbody tr").count() < 200
    while page.locator(".more").is_visible():
        page.locator(".more").scroll_into_view_if_needed()
        page.wait_for_timeout(30)
    assert rows(page) == [f"q{i}" for i in range(200)]

    header = page.locator("th.c-largest")
    header.locator("button").click()
    page.wait_for_selector("th.c-largest[aria-sort=descending]")
    sizes = [float(v) for v in page.locator("td.c-largest").all_inner_texts()]
    assert sizes == sorted(sizes, reverse=True)
    header.locator("button").click()
    page.wait_for_selector("th.c-largest[aria-sort=ascending]")
    sizes = [float(v) for v in page.locator("td.c-largest").all_inner_texts()]
    assert sizes == sorted(sizes)
    assert "sort=largest" in state(page)
    # Titles end where their numbers do, with or without the arrow.
    ends = """n => n.map(e => { const r = document.createRange(); r.selectNodeContents(e.querySelector("button")
      ? e.querySelector("button").firstChild : e); return r.getBoundingClientRect().right; })"""
    for name in ("largest", "tokens"):
        title, number = (page.eval_on_selector_all(f"{cell}.c-{name}", ends)[0] for cell in ("th", "td"))
        assert title == pytest.approx(number, abs=1)
    tops = page.eval_on_selector_all(
        ".all thead button",
        """n => n.map(e => { const r = document.createRange(); r.selectNodeContents(e.firstChild);
          return r.getBoundingClientRect().top; })""",
    )
    assert max(tops) - min(tops) < 1

    page.select_option("[name=subject]", "s1")
    expect(page.locator(".tally")).to_have_text("50 of 200 questions")
    page.fill("#find", "q1")
    expect(page.locator(".tally")).to_have_text("28 of 200 questions")
    assert page.evaluate("document.activeElement.id") == "find"
    assert all(re.fullmatch(r"q1\d*", r) for r in rows(page))
    before = rows(page)
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    assert rows(page) == before
    assert page.input_value("#find") == "q1"
    page.fill("#find", "nowhere")
    expect(page.locator(".tally")).to_have_text("0 of 200 questions")
    page.click("text=Show all")
    expect(page.locator(".tally")).to_have_text("200 questions")


def test_filters_by_forks_size_and_answer(shown: Page, sites: dict[str, Path]) -> None:
    page = shown.open(sites["mixed"])
    ids = set(rows(page))
    assert ids == {"plain", "calm", HOSTILE, "rtl", "cjk", "ten", "long", "path", "asked"}
    page.select_option("[name=forks]", "none")
    expect(page.locator(".all tbody th a")).to_have_text(["calm", "long"])
    page.select_option("[name=forks]", "some")
    expect(page.locator(".tally")).to_have_text("5 of 9 questions")
    page.select_option("[name=least]", "0.7")
    expect(page.locator(".tally")).to_have_text(re.compile(r"^\d of 9 questions$"))
    page.select_option("[name=least]", "")
    page.select_option("[name=forks]", "")
    page.select_option("[name=answer]", "right")
    expect(page.locator(".tally")).to_have_text("0 of 9 questions")
    page.select_option("[name=answer]", "wrong")
    expect(page.locator(".tally")).to_have_text("8 of 9 questions")
    page.select_option("[name=answer]", "")
    page.select_option("[name=sort]", "tokens")
    page.click(".order")
    expect(page.locator(".all tbody th a").first).to_have_text("long")


def test_small_multiples_open_their_question_and_lead_back(shown: Page, sites: dict[str, Path]) -> None:
    page = shown.open(sites["many"])
    page.click("text=Small multiples")
    expect(page.locator(".card").first).to_be_visible()
    assert rows(page)[0] == "q0"
    page.select_option("[name=forks]", "none")
    expect(page.locator(".tally")).to_have_text(re.compile("of 200"))
    wanted = rows(page)[1]
    page.click(f".card:has(b:text-is('{wanted}'))")
    expect(page.locator(".steps > span")).to_have_text("2 / 67")  # of those that the filter lets through
    page.click("#back")
    expect(page.locator(".card").first).to_be_visible()
    assert "view=cards" in state(page)
    assert "forks=none" in state(page)
    page.go_back()
    expect(page.locator(".steps > span")).to_have_text("2 / 67")


def test_buttons_keep_the_focus(shown: Page, sites: dict[str, Path]) -> None:
    page = shown.open(sites["many"])
    for address, button in (
        ("sort=largest", "th.c-largest button"),
        ("sort=id", "th.c-id button"),
        ("down=1", ".order"),
        ("view=cards", "button:text-is('Small multiples')"),
    ):
        page.locator(button).press("Enter")
        expect(page).to_have_url(re.compile(address))
        expect(page.locator(button)).to_be_focused()
    page = shown.question(sites["mixed"], "plain", "&t=2")
    chip = page.locator(".fork-chip").first
    expect(chip).to_have_attribute("aria-pressed", "false")
    chip.press("Enter")
    expect(chip).to_have_attribute("aria-pressed", "true")
    expect(chip).to_be_focused()


# --- one question


def test_curves_bands_and_methods(shown: Page, sites: dict[str, Path]) -> None:
    page = shown.question(sites["mixed"], "plain")
    assert len(curves(page)) == 5
    assert page.locator(".plot .band").count() == 5
    # The reference is beside the front method at first; the method in front is not compared with itself.
    assert page.locator(".toggles [data-with=reference]").get_attribute("aria-pressed") == "true"
    assert page.locator(".plot .overlay").count() == 5
    assert not page.locator(".toggles [data-with=full]").is_visible()
    page.click(".toggles [data-with=raw]")
    expect(page.locator(".plot .overlay")).to_have_count(10)
    page.click(".toggles [data-with=told]")
    expect(page.locator(".plot .overlay")).to_have_count(15)
    page.click(".toggles [data-with=reference]")
    expect(page.locator(".plot .overlay")).to_have_count(10)
    front = curves(page)
    page.click(".pills [data-method=raw]")
    expect(page.locator("[data-method=raw]")).to_have_attribute("aria-pressed", "true")
    assert curves(page) != front
    assert "m=raw" in state(page)
    before = curves(page)
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    assert curves(page) == before
    page.click("[data-show=stacked]")
    expect(page.locator("[data-show=stacked]")).to_have_attribute("aria-pressed", "true")
    assert page.locator(".plot .band").count() == page.locator(".plot .overlay").count() == 0
    page.click("[data-show=lines]")
    page.click(".legend [data-k='0']")
    expect(page.locator(".plot .curve")).to_have_count(4)
    assert "hide=A" in state(page)


def test_probability_of_a_change_is_told_apart_from_its_size(shown: Page, sites: dict[str, Path]) -> None:
    page = shown.question(sites["mixed"], "plain", "&t=6")
    facts = page.locator(".facts")
    expect(facts).to_contain_text("size of change")
    size = int(re.search(r"(\d+) %$", facts.inner_text())[1])  # type: ignore[index]
    assert 20 < size < 90
    page.click("[data-method=told]")
    expect(facts).to_contain_text("P(change)")
    told = int(re.search(r"(\d+) %$", facts.inner_text())[1])  # type: ignore[index]
    assert told > size
    assert "Probability of a change above 0.15" in page.inner_text(".plot-host")


def test_sliders_redraw_the_reduced_run_and_its_price(shown: Page, sites: dict[str, Path]) -> None:
    page = shown.question(sites["mixed"], "plain")
    draws = open_run(sites["run"]).draws("plain")
    everything = curves(page)
    assert f"{draws.generated_tokens:,} tokens" in page.inner_text(".cost")
    page.focus("#size")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".slider output").first).to_have_text("5 of 20")
    page.focus("#stride")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".slider output").last).to_have_text("every 4 tokens")
    assert page.evaluate("document.activeElement.id") == "stride"
    chosen = draws.select(5, 4)
    share = chosen.generated_tokens / draws.generated_tokens
    cost = page.inner_text(".cost")
    assert f"{chosen.generated_tokens:,} tokens in {chosen.continuations} rollouts" in cost
    assert f"{100 * share:.1f} %" in cost or f"{100 * share:.0f} %" in cost
    assert "off the reference" in cost
    assert curves(page) != everything
    assert "S=5" in state(page)
    assert "N=4" in state(page)
    page.keyboard.press("ArrowLeft")
    page.focus("#size")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".slider output").first).to_have_text("20 (all)")
    assert curves(page) == everything


def test_text_and_plot_are_linked_both_ways(shown: Page, sites: dict[str, Path]) -> None:
    page = shown.question(sites["mixed"], "plain")
    assert "t=6" in state(page)  # it opens at the largest fork
    expect(page.locator(".tok.pin")).to_have_text(" w6")
    assert page.locator(".tok.forked").all_inner_texts() == [" w6"]

    page.hover(".tok[data-t='12']")
    marks = page.locator(".plot > rect[visibility=visible]")
    expect(marks).to_have_count(2)
    box = page.locator(".plot").bounding_box()
    across = (box["width"] - 46 - 26) / 20
    assert float(marks.first.get_attribute("x")) == pytest.approx(46 + 12 * across, abs=2)
    page.mouse.move(box["x"] + 46 + 3.5 * across, box["y"] + 100)
    expect(page.locator(".tok.hover")).to_have_text(" w3")
    page.mouse.click(box["x"] + 46 + 3.5 * across, box["y"] + 100)
    expect(page.locator(".tok.pin")).to_have_text(" w3")
    page.click(".tok[data-t='9']")
    expect(page.locator(".inspector h2")).to_contain_text("Token 9")
    page.click(".fork-chip")
    expect(page.locator(".inspector h2")).to_contain_text("Token 6")


@pytest.mark.parametrize("place", ["#plot", "#text"])
def test_keyboard_moves_and_says_where(shown: Page, sites: dict[str, Path], place: str) -> None:
    page = shown.question(sites["mixed"], "plain", "&t=2")
    page.focus(place)
    page.keyboard.press("ArrowRight")
    expect(page.locator(".tok.pin")).to_have_text(" w3")
    expect(page.locator("#live")).to_have_text(re.compile(r"^Token 3, w3; [AB] \d+ %"))
    expect(page.locator("#plot")).to_have_attribute("aria-valuenow", "3")
    page.keyboard.press("Shift+ArrowRight")
    expect(page.locator(".tok.pin")).to_have_text(" w6")
    page.keyboard.press("End")
    expect(page.locator(".tok.pin")).to_have_text(" w19")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".tok.pin")).to_have_text(" w19")
    page.keyboard.press("Home")
    expect(page.locator(".tok.pin")).to_have_text(" w0")
    assert page.evaluate("'#' + document.activeElement.id") == place


def test_keys_between_questions_and_pages(shown: Page, sites: dict[str, Path]) -> None:
    page = shown.question(sites["mixed"], "plain")
    number = int(page.inner_text(".steps > span").split("/")[0])
    page.keyboard.press("]")
    expect(page.locator(".steps > span")).to_have_text(f"{number + 1} / 9")
    page.keyboard.press("[")
    expect(page.locator(".steps > span")).to_have_text(f"{number} / 9")
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).not_to_be_visible()
    page.keyboard.press("/")
    expect(page.locator("#find")).to_be_focused()


def test_the_next_question_is_the_next_row_seen_as_the_one_before(
    shown: Page, sites: dict[str, Path]
) -> None:
    page = shown.open(sites["mixed"], "#sort=forks&down=1&find=which")
    names = rows(page)
    assert len(names) == 6
    assert names != sorted(names)
    page.click(f".all tbody a:text-is('{names[0]}')")
    number = page.locator(".steps > span")
    expect(number).to_have_text("1 / 6")
    assert page.locator(".step").first.get_attribute("aria-disabled") == "true"
    page.click("[data-method=told]")
    page.click("[data-shade=entropy]")
    page.click("[data-show=stacked]")
    page.click(".tok[data-t='3']")
    expect(page.locator(".inspector h2")).to_contain_text("Token 3")
    for i, go_on in enumerate((lambda: page.keyboard.press("]"), lambda: page.click(".step >> nth=1")), 1):
        go_on()
        expect(number).to_have_text(f"{i + 1} / 6")
        assert page.locator(".crumbs > bdi").inner_text() == names[i]
        for pressed in ("[data-method=told]", "[data-shade=entropy]", "[data-show=stacked]"):
            expect(page.locator(pressed)).to_have_attribute("aria-pressed", "true")
        assert "t=3" not in state(page).split("&")
    # All of it is in the address: a shared one leads back to the same rows.
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    expect(number).to_have_text("3 / 6")
    page.click("#back")
    expect(page.locator(".tally")).to_have_text("6 of 9 questions")
    assert rows(page) == names
    # A question that the filter leaves out is one of the whole run.
    page = shown.question(sites["mixed"], "calm", "&find=nowhere")
    expect(page.locator(".steps > span")).to_have_text(re.compile(" / 9$"))


def test_an_error_is_gone_with_what_failed(shown: Page, sites: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(sites["mixed"], tmp_path / "site")
    (tmp_path / "site" / "data" / f"{question_key('plain')}.js").unlink()
    page = shown.question(tmp_path / "site", "path")
    page.evaluate(f"location.hash = 'q={question_key('plain')}'")
    expect(page.locator(".error")).to_contain_text("is missing: build the pages again")
    page.go_back()
    expect(page.locator(".crumbs > bdi")).to_have_text("path")
    expect(page.locator(".error")).to_have_count(0)
    page.go_forward()
    expect(page.locator(".error")).to_be_visible()
    page.keyboard.press("[")
    expect(page.locator(".crumbs > bdi")).to_have_text("path")
    assert all("ERR_FILE_NOT_FOUND" in problem for problem in shown.problems)
    shown.problems.clear()


def test_next_tokens_show_probabilities_answers_and_examples(shown: Page, sites: dict[str, Path]) -> None:
    page = shown.question(sites["mixed"], "plain", "&t=6")
    lines = page.locator(".next > li")
    expect(lines).to_have_count(3)
    assert [line.split("\n")[0] for line in lines.all_inner_texts()] == ["else0…", "␣w6", "else1…"]
    assert page.locator(".chance").all_inner_texts() == ["45 %", "40 %", "15 %"]
    assert lines.nth(0).locator(".dist").get_attribute("aria-label") == "answers after it: A 100 %"
    lines.nth(0).locator("summary").focus()
    page.keyboard.press("Enter")
    expect(lines.nth(0).locator("blockquote")).to_have_text(
        [" else0 so it is (A)."] * 3, use_inner_text=False
    )
    counts = lines.nth(0).locator(".counts").inner_text()
    assert "100 %" in counts


def test_opened_next_tokens_stay_open_and_are_in_the_address(shown: Page, sites: dict[str, Path]) -> None:
    page = shown.question(sites["mixed"], "plain", "&t=6")
    details = page.locator(".next details")
    for i in (2, 0):
        details.nth(i).locator("summary").click()
    expect(page).to_have_url(re.compile(r"open=0\.2"))
    expect(page.locator(".next blockquote")).to_have_count(6)
    page.click("[data-method=told]")
    page.click(".tok[data-t='6']")
    expect(page.locator(".facts")).to_contain_text("P(change)")
    expect(page.locator(".next blockquote")).to_have_count(6)
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    expect(page.locator(".next blockquote")).to_have_count(6)
    assert [details.nth(i).get_attribute("open") for i in range(3)] == ["", None, ""]
    page.click(".tok[data-t='4']")
    expect(page.locator(".inspector h2")).to_contain_text("Token 4")
    assert "open" not in state(page)
    expect(page.locator(".next details[open]")).to_have_count(0)
    # What is not there to be opened is let be.
    page = shown.question(sites["mixed"], "plain", "&t=6&open=1.99.x")
    expect(page.locator(".next details[open]")).to_have_count(1)


def test_next_tokens_that_were_not_kept_are_not_called_unsampled(shown: Page, sites: dict[str, Path]) -> None:
    page = shown.question(sites["bare"], "plain", "&t=6")
    lines = page.locator(".next > li")
    expect(lines).to_have_count(4)
    expect(lines.nth(3)).to_contain_text("another token")
    expect(page.locator(".next .none")).to_have_text(["not told apart"] * 2)
    assert "counted together" in page.locator(".next .none").first.get_attribute("title")
    page = shown.question(sites["mixed"], "path", "&t=6")
    expect(page.locator(".next .none").first).to_have_text("not sampled")


def test_enlarging_and_saving(shown: Page, sites: dict[str, Path], tmp_path: Path) -> None:
    page = shown.question(sites["mixed"], "long")
    box = page.locator(".plot").bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 120, steps=3)
    page.mouse.up()
    expect(page.get_by_role("button", name="Whole path")).to_be_visible()
    low, high = map(int, re.search(r"x=(\d+)-(\d+)", state(page)).groups())  # type: ignore[union-attr]
    assert 300 < low < high < 1700
    with page.expect_download() as saved:
        page.click("text=Save SVG")
    text = Path(saved.value.path()).read_text()
    assert text.startswith("<svg")
    assert "P(answer)" in text
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Whole path")).not_to_be_visible()
    assert "x=" not in state(page)


def test_a_mixture_is_not_called_all(shown: Page, sites: dict[str, Path]) -> None:
    page = shown.question(sites["mixed"], "calm")
    size = page.locator(".slider output").first
    expect(size).to_have_text("20 (all)")
    assert not size.get_attribute("title")
    page = shown.question(sites["branches"], "plain")
    expect(size).to_have_text("20 (mixed)")
    assert "chosen by its probability" in size.get_attribute("title")
    expect(page.locator(".cost")).to_contain_text("% of the run")


def test_a_saved_figure_explains_itself(shown: Page, sites: dict[str, Path]) -> None:
    def saved(page: Any) -> tuple[str, str]:
        with page.expect_download() as file:
            page.click("text=Save SVG")
        text = Path(file.value.path()).read_text()
        words = " ".join(ElementTree.fromstring(text).itertext())
        return text, " ".join(words.split())

    page = shown.question(sites["mixed"], "plain", "&S=5&N=4&with=raw.reference.told")
    text, words = saved(page)
    for told in (
        "plain: Which one is it?", "A: one", "D: four", "Full Model, 90 % band", "raw frequencies", "told",
        "reference reference (S = 60, N = 1 token)", "Full Model with S = 5, N = 4 tokens", "Run run",
        "tokens in 25 rollouts", "sampled position", "total variation",
    ):  # fmt: skip
        assert told in words, told
    # Nothing lies outside of it, and the selected token's marks are not part of it.
    assert "mark" not in text
    outside = page.evaluate(
        """text => {
          const svg = document.body.appendChild(new DOMParser().parseFromString(text, "text/xml").documentElement);
          const box = svg.getBoundingClientRect();
          const texts = [...document.body.appendChild(svg).querySelectorAll("text")];
          return texts.filter(t => { const b = t.getBoundingClientRect();
            return b.right > box.right || b.bottom > box.bottom || b.left < box.left }).map(t => t.textContent);
        }""",
        text,
    )
    assert outside == []
    words = saved(shown.question(sites["mixed"], "long", "&show=stacked&hide=B"))[1]
    assert "band" not in words
    assert "not shown: B" in words
    assert "Full Model with S = 4" in words


@pytest.mark.parametrize("place", ["#plot", "#text"])
def test_enlarging_by_keys_follows_the_token(shown: Page, sites: dict[str, Path], place: str) -> None:
    page = shown.question(sites["mixed"], "long", "&t=400")
    pin = page.locator(".plot > rect[visibility=visible]")

    def view() -> tuple[int, int] | None:
        found = re.search(r"x=(\d+)-(\d+)", state(page))
        return found and (int(found[1]), int(found[2]))

    page.focus(place)
    page.keyboard.press("+")
    expect(page.get_by_role("button", name="Whole path")).to_be_visible()
    assert view() == (0, 1000)
    page.keyboard.press("+")
    expect(page).to_have_url(re.compile("x=150-650"))
    for key, wanted in (("End", (1500, 2000)), ("Home", (0, 500))):
        page.keyboard.press(key)
        expect(pin).to_have_count(1)
        assert view() == wanted
    page.keyboard.press("-")
    assert view() == (0, 1000)
    assert page.evaluate("'#' + document.activeElement.id") == place
    for _ in range(12):
        page.keyboard.press("+")
    assert view() == (0, 4)
    page.keyboard.press("0")
    assert view() is None
    expect(pin).to_have_count(1)


def test_enlarging_by_buttons(browser: Any, sites: dict[str, Path]) -> None:
    shown = Page(browser, has_touch=True)
    shown.page.set_viewport_size({"width": 390, "height": 840})
    page = shown.question(sites["mixed"], "plain", "&t=6")
    closer, wider = (page.get_by_role("button", name=name) for name in ("Enlarge", "Show more of"))
    expect(wider).to_have_attribute("aria-disabled", "true")
    closer.tap()
    closer.tap()
    assert "x=4-9" in state(page)
    page.locator(".tok[data-t='15']").tap()
    assert "x=13-18" in state(page)
    wider.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert "x=" not in state(page)
    expect(wider).to_be_focused()
    closer.tap()
    page.get_by_role("button", name="Whole path").press("Enter")
    expect(page.locator("#plot")).to_be_focused()
    assert shown.problems == []
    shown.context.close()


def test_shades(shown: Page, sites: dict[str, Path]) -> None:
    page = shown.question(sites["mixed"], "plain")

    def shades() -> list[float]:
        return [
            float(s)
            for s in page.eval_on_selector_all(".tok", "n => n.map(e => e.style.getPropertyValue('--s'))")
        ]

    change = shades()
    assert change.index(max(change)) == 6
    assert sorted(change)[-2] < 0.5
    page.click("[data-shade=surprise]")
    expect(page.locator("[data-shade=surprise]")).to_have_attribute("aria-pressed", "true")
    surprise = shades()
    assert surprise[6] == pytest.approx(0.1 + 0.9 * 0.6, abs=1e-3)
    page.click("[data-shade=entropy]")
    expect(page.locator(".shade-key")).to_contain_text("nats")
    assert shades().index(max(shades())) == 6


@pytest.mark.parametrize(
    ("strategy", "shade", "names"),
    [("entropix", "four", {"keep", "branch", "default"}), ("eager", "eager", {"splits", "goes on"})],
)
def test_the_states_of_a_guided_run(
    shown: Page, sites: dict[str, Path], strategy: str, shade: str, names: set[str]
) -> None:
    """Its own rules at the tokens of its base path, and the states of each rollout that can be read."""
    page = shown.question(sites[strategy], "demo-01", f"&t=0&shade={shade}")
    expect(page.locator("button[data-shade=" + shade + "]")).to_have_attribute(
        "title", re.compile("its own numbers")
    )
    key = page.locator(".state-key")
    expect(key).to_contain_text("of the rollouts’")
    shares = [float(x) for x in re.findall(r"([0-9.]+) % of the rollouts", key.inner_text())]
    assert sum(shares) == pytest.approx(100, abs=0.3)
    if strategy == "eager":
        expect(key).to_contain_text("θ = 1.5 nats")
    line = page.locator(".next > li", has=page.locator("summary")).first
    line.locator("summary").click()
    strip = line.locator(".strip").first
    expect(strip).to_be_visible()
    label = strip.get_attribute("aria-label") or ""
    assert label.startswith("States of its tokens, among them ")
    assert set(label.removeprefix("States of its tokens, among them ").split(", ")) <= names
    assert set(strip.inner_text()) <= set("kbcrd")


def test_tokens_by_entropix_state(shown: Page, sites: dict[str, Path]) -> None:
    page = shown.question(sites["mixed"], "plain")
    page.click("[data-shade=four]")
    expect(page.locator(".state-key li")).to_have_text(
        ["keep 19", "branch 0", "clarify 0", "resample 0", "default 1"]
    )
    looks = page.eval_on_selector_all("#text .tok", "n => n.map(e => e.dataset.state)")
    assert looks == ["sure"] * 6 + ["rest"] + ["sure"] * 13

    def drawn(selector: str) -> tuple[str, str]:
        style = "e => [getComputedStyle(e).textDecorationLine, getComputedStyle(e).textDecorationStyle]"
        return tuple(page.eval_on_selector(selector, style))

    # Told apart by the line under them, not by colour alone.
    lines = [drawn(f".state-key li:nth-child({i}) .state-mark") for i in range(1, 6)]
    assert len(set(lines)) == 5
    assert drawn("#text .tok[data-t='6']") == lines[4]
    page.hover(".tok[data-t='6']")
    page.click(".tok[data-t='6']")
    expect(page.locator(".inspector .states")).to_contain_text("default (four states), adaptive (thresholds)")
    assert "state default" in page.locator("#plot").get_attribute("aria-valuetext")
    assert "shade=four" in state(page)
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    assert page.eval_on_selector_all("#text .tok", "n => n.map(e => e.dataset.state)") == looks
    page.click("[data-shade=threshold]")
    expect(page.locator(".state-key li").last).to_have_text(re.compile(r"adaptive \d+"))
    page.click("[data-shade=change]")
    expect(page.locator(".state-key")).not_to_be_visible()
    assert page.locator("#text .tok[data-state='sure']").count() == 0
    # Without entropies there are no states, and an address that asks for them shows the page all the same.
    page = shown.question(sites["mixed"], "long", "&shade=four")
    assert page.locator("[data-shade=four]").is_disabled()
    expect(page.locator("[data-shade=change]")).to_have_attribute("aria-pressed", "true")


# --- states


def test_hostile_text_is_only_text(shown: Page, sites: dict[str, Path]) -> None:
    page = shown.question(sites["mixed"], HOSTILE, "&t=1")
    assert page.locator("h1").inner_text() == HOSTILE
    assert page.locator(".choice").first.inner_text() == HOSTILE
    assert page.locator(".tok[data-t='1']").inner_text() == HOSTILE
    assert HOSTILE in page.inner_text(".inspector h2")
    for view in ("", "#view=cards", "#find=script"):
        overview = shown.open(sites["mixed"], view)
        assert HOSTILE in overview.inner_text("main")
    failed = shown.question(sites["mixed"], "asked")
    assert HOSTILE in failed.inner_text(".notices")
    for state_ in (f"#q={HOSTILE}", f"#find={HOSTILE}", f"#subject={HOSTILE}&sort={HOSTILE}&view={HOSTILE}"):
        shown.open(sites["mixed"], state_)
    assert page.evaluate("window.hurt") is None
    assert page.locator("main script, main img").count() == 0


@pytest.mark.parametrize(
    "wrong",
    [
        "&t=99999",
        "&t=-1",
        "&t=x",
        "&x=9-3",
        "&x=5000-9000",
        "&S=7&N=3",
        "&m=none",
        "&with=none&hide=Z&show=x",
    ],
)
def test_addresses_that_do_not_fit_still_show_the_question(
    shown: Page, sites: dict[str, Path], wrong: str
) -> None:
    page = shown.question(sites["mixed"], "plain", wrong)
    assert len(curves(page)) == 5
    assert page.locator(".tok").count() == 20


def test_empty_single_and_unfinished(shown: Page, sites: dict[str, Path]) -> None:
    assert "holds no questions yet" in shown.open(sites["none"]).inner_text("main")
    page = shown.open(sites["one"])
    assert page.inner_text(".tally") == "1 question"
    page.click(".all tbody a")
    expect(page.locator(".plot .curve")).to_have_count(5)
    assert page.locator(".step[aria-disabled]").count() == 2
    page = shown.question(sites["mixed"], "path")
    assert "No rollouts of this question yet" in page.inner_text(".notices")
    page.click(".tok[data-t='6']")
    expect(page.locator(".next > li")).to_have_count(3)
    page = shown.question(sites["mixed"], "asked")
    assert "no base path yet" in page.inner_text(".notices")
    assert "no such question" in shown.open(sites["mixed"], "#q=nothing").inner_text("main")


def test_an_answer_against_the_curve_is_explained(
    shown: Page, sites: dict[str, Path], tmp_path: Path
) -> None:
    page = shown.open(sites["bare"])
    odd = page.locator(".all tbody tr", has=page.locator("a:text-is('odd')"))
    assert odd.locator(".c-right").inner_text().startswith("B")
    expect(odd.locator(".c-confidence")).to_have_text(re.compile(r"^A \d+ %$"))
    page = shown.question(sites["bare"], "odd")
    expect(page.locator(".notices")).to_contain_text("The base path answers B, but the curve ends in A")
    expect(page.locator(".notices")).to_contain_text("said once, greedily")
    assert page.locator(".note:visible").count() == 1
    page = shown.question(sites["bare"], "plain")
    assert page.locator(".note:visible").count() == 0
    released = tmp_path / "released"
    shutil.copytree(sites["bare"], released)
    index = read_data(released / "data" / "index.js")
    index["run"]["track"] = "llama"
    write_data(released / "data" / "index.js", "index", index)
    page = shown.question(released, "odd")
    expect(page.locator(".notices")).to_contain_text("labels that they were released with")


def test_no_forks(shown: Page, sites: dict[str, Path]) -> None:
    page = shown.question(sites["mixed"], "calm")
    assert "No fork" in page.inner_text(".fork-list")
    assert page.locator(".plot .fork, .tok.forked").count() == 0
    expect(page.locator(".tok.pin")).to_have_text(" w0")


def test_two_thousand_tokens_are_quick(shown: Page, sites: dict[str, Path]) -> None:
    page = shown.question(sites["mixed"], "long")
    assert shown.busy() < 1.0
    assert page.locator(".tok").count() == 2000
    assert page.inner_text(".tok.pin") != ""
    assert "a lower bound" in page.inner_text(".plot-host")
    page.focus("#text")
    page.keyboard.press("End")
    expect(page.locator(".tok.pin")).to_have_text(" t1999")
    box, text = page.locator(".tok.pin").bounding_box(), page.locator("#text").bounding_box()
    assert text["y"] <= box["y"] <= text["y"] + text["height"]


def test_right_to_left_and_chinese(shown: Page, sites: dict[str, Path]) -> None:
    page = shown.question(sites["mixed"], "rtl", "&t=2")
    assert page.inner_text("#text").replace("\n", " ") == ARABIC
    first, second = (page.locator(f".tok[data-t='{t}']").bounding_box() for t in (0, 1))
    assert first["x"] > second["x"]
    page.focus("#text")
    page.keyboard.press("ArrowLeft")  # onwards, in Arabic
    assert "t=3" in state(page)
    page = shown.question(sites["mixed"], "cjk", "&t=4")
    assert page.inner_text(".tok.pin") == "·"  # a token that is only part of a character
    assert page.locator(".tok[data-t='9']").inner_text().startswith("↵")
    assert page.inner_text("h1") == "哪个天体位于中心？"


def test_ten_choices_have_colours_of_their_own(shown: Page, sites: dict[str, Path]) -> None:
    page = shown.question(sites["mixed"], "ten")
    colours = page.eval_on_selector_all(".plot .curve", "n => n.map(e => e.getAttribute('stroke'))")
    assert len(set(colours)) == 11


# --- reading conditions


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(browser: Any, sites: dict[str, Path], scheme: str) -> None:
    shown = Page(browser, color_scheme=scheme)
    page = shown.question(sites["mixed"], "plain")

    def ground() -> list[int]:
        return [
            int(v)
            for v in re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))
        ]

    assert (sum(ground()) > 600) == (scheme == "light")
    before = curves(page), page.locator(".plot .curve").first.get_attribute("stroke")
    page.keyboard.press("d")
    expect(page.locator("#theme")).to_have_text(re.compile("dark" if scheme == "light" else "light"))
    assert (sum(ground()) > 600) == (scheme == "dark")
    expect(page.locator(".plot .curve")).to_have_count(5)
    assert (curves(page), page.locator(".plot .curve").first.get_attribute("stroke")) != before
    assert shown.problems == []
    shown.context.close()


@pytest.mark.parametrize("control", ["#text", "#plot", "summary >> nth=0", "input[type=range] >> nth=0"])
def test_another_theme_keeps_focus_and_scroll(shown: Page, sites: dict[str, Path], control: str) -> None:
    page = shown.question(sites["mixed"], "plain")
    page.locator(control).focus()
    scrolled = page.evaluate("(window.scrollTo(0, 60), window.scrollY)")
    assert scrolled > 0
    drawn = page.locator(control).element_handle()
    page.emulate_media(color_scheme="dark")
    drawn.wait_for_element_state("hidden")  # it made room for its like in the other colours
    expect(page.locator(control)).to_be_focused()
    assert page.evaluate("window.scrollY") == scrolled


def test_phone_width(browser: Any, sites: dict[str, Path]) -> None:
    shown = Page(browser, device_scale_factor=2, has_touch=True)
    shown.page.set_viewport_size({"width": 360, "height": 740})
    for question_id in ("plain", "rtl", HOSTILE, "long", "ten", "asked"):
        page = shown.question(sites["mixed"], question_id)
        assert page.evaluate("document.documentElement.scrollWidth") == 360, question_id
    for view in ("", "#view=cards"):
        page = shown.open(sites["mixed"], view)
        assert page.evaluate("document.documentElement.scrollWidth") == 360
    # Every column is there, to be scrolled to beside the question, and a tap on any opens it.
    page = shown.open(sites["mixed"])
    row = page.locator(".all tbody tr", has=page.locator("a:text-is('plain')"))
    expect(row.locator("td")).to_have_count(9)
    for cell in row.locator("td").all():
        cell.scroll_into_view_if_needed()
        expect(cell).to_be_in_viewport()
        expect(row.locator("a")).to_be_in_viewport(ratio=1)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.inner_text("#about").startswith("run · grid")
    row.locator(".c-spent").tap()
    expect(page.locator(".crumbs > bdi")).to_have_text("plain")
    expect(page.get_by_role("button", name="Save SVG")).to_be_visible()
    page = shown.question(sites["mixed"], "plain")
    assert not page.locator(".next").is_visible()
    page.click("text=More")
    expect(page.locator(".next")).to_be_visible()
    page.click("text=Less")
    expect(page.locator(".next")).not_to_be_visible()
    page.locator(".tok[data-t='4']").tap()
    expect(page.locator(".inspector h2")).to_contain_text("Token 4")
    assert shown.problems == []
    shown.context.close()


def test_everything_that_can_be_used_has_a_name(shown: Page, sites: dict[str, Path]) -> None:
    for site, address in (("mixed", ""), ("mixed", "#view=cards"), ("mixed", f"#q={question_key('plain')}")):
        page = shown.open(sites[site], address)
        nameless = page.eval_on_selector_all(
            "a[href], button, input, select, [role=slider], [role=group], [role=img]",
            """nodes => nodes.filter(n => n.checkVisibility() && !(n.innerText?.trim() ||
              n.getAttribute('aria-label') || n.labels?.length)).map(n => n.outerHTML.slice(0, 100))""",
        )
        assert nameless == []
    plot = page.locator("#plot")
    assert plot.get_attribute("role") == "slider"
    assert re.match(r"Token 6, w6; ", plot.get_attribute("aria-valuetext"))
