"""Sites and reports in headless Chromium: sorting, filtering, following a row, in the dark and on a phone."""

import shutil

import pytest

from specbench.publish.site.build import ShownAnswers, build
from specbench.publish.site.run_report import write_report
from specbench.report.shown import Selection, shown_run
from specbench.results.leaderboard import write
from specbench.results.runs import RecordedRun
from tests.support.demo_runs import attacked_run
from tests.support.site_rows import hostile_row, many_rows, some_rows

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
PAGES = ("index.html", "quality_speed.html", "predicted.html")


@pytest.fixture(scope="module")
def browser():
    reason = "playwright is not installed: pip install -e '.[test]'"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of a small site, with a hostile row in it."""
    folder = tmp_path_factory.mktemp("browser")
    write(folder / "board.json", [*some_rows(), hostile_row()])
    build([folder / "board.json"], folder / "site", "Results of a test")
    return (folder / "site").as_uri()


class Watched:
    """A page of a fresh context, and all that it complained of or asked for."""

    def __init__(self, browser, **options):
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.complaints, self.requests = [], []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, address):
        self.page.goto(address)
        if "index.html" in address:
            self.page.wait_for_selector("#board.ready")
        return self.page


@pytest.fixture
def watched(browser, site):
    """What is opened in it may complain of nothing, and ask for nothing but files of the site."""
    made = Watched(browser, viewport={"width": 1280, "height": 800})
    yield made
    assert not made.complaints
    assert made.requests and all(url.startswith((site, "data:")) for url in made.requests)
    made.context.close()


def column(page, key):
    """The texts of a column, without what is in small; of the rows shown, in their order. The hostile row, of another
    machine, is always the last one."""
    return page.evaluate(
        """(key) => {
            const place = [...document.querySelectorAll("#board thead th")].findIndex((th) => th.dataset.key === key);
            const cells = [...document.querySelectorAll("#board tbody tr:not(.machine)")].map((tr) => tr.cells[place]);
            return cells.map((cell) => cell.firstChild.textContent.trim());
        }""",
        key,
    )


def sorting(page, key):
    return page.get_attribute(f"th[data-key={key}]", "aria-sort")


def test_sorting_by_mouse(watched, site):
    page = watched.open(f"{site}/index.html")
    assert "11 of 41 rows" in page.inner_text("#status"), "whole tasks first"
    page.click("th[data-key=speedup] button")
    first = [float(text) for text in column(page, "speedup")]
    assert first[:-1] == sorted(first[:-1], reverse=True) and sorting(page, "speedup") == "descending"
    assert page.url.endswith("#sort=-speedup")
    page.click("th[data-key=speedup] button")
    assert [float(text) for text in column(page, "speedup")] == [*sorted(first[:-1]), first[-1]]
    assert page.inner_text("#status").endswith(", sorted within each machine and engine")
    assert sorting(page, "speedup") == "ascending"
    page.click("th[data-key=method] button")
    methods = column(page, "method")
    assert methods[:-1] == sorted(methods[:-1], key=str.lower) and sorting(page, "speedup") is None
    page.click("th[data-key=alpha] button")
    assert [text for text in column(page, "alpha") if text != "–"] == column(page, "alpha")[:10], "no value comes last"


def test_sorting_and_filtering_by_keyboard(watched, site):
    page = watched.open(f"{site}/index.html")
    page.keyboard.press("Tab")
    assert (
        page.evaluate("document.activeElement.className") == "skip" and page.locator(".skip").bounding_box()["x"] >= 0
    )
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Tab")
    page.keyboard.type("TASK1 greedy")
    assert column(page, "method") == ["sd"] and page.inner_text("#status").startswith("1 of 41 rows")
    page.fill("#q", "")
    reached = []
    while "tau" not in reached and len(reached) < 20:
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.closest('th')?.dataset.key ?? document.activeElement.tagName")
        )
    assert reached.index("method") < reached.index("speedup") < reached.index("tau") and "DIV" in reached
    width = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert width == "3px", "the focus is seen"
    page.keyboard.press("Space")
    lengths = [float(text) for text in column(page, "tau") if text != "–"]
    assert lengths == sorted(lengths, reverse=True) and sorting(page, "tau") == "descending"
    assert page.evaluate("document.activeElement.closest('th').dataset.key") == "tau", "and stays"


def test_a_filtered_view_is_a_link_and_comes_back(watched, site):
    page = watched.open(f"{site}/index.html")
    page.select_option("#f-task", "=task1")
    page.select_option("#f-subset", "=ja")
    page.select_option("#f-method", "=fsd")
    page.click("th[data-key=speed] button")
    seen = column(page, "method")
    assert len(seen) == 3 and page.inner_text("#status") == "3 of 41 rows"
    address = page.url
    page.click("#board tbody a >> nth=0")
    page.wait_for_url("**/rows/*.html")
    assert seen[0] in page.inner_text("h1") and "specbench run --task task1" in page.inner_text("#command")
    page.go_back()
    page.wait_for_selector("#board.ready")
    assert page.url == address and column(page, "method") == seen
    page.goto("about:blank")
    again = watched.open(address)
    assert column(again, "method") == seen and again.input_value("#f-subset") == "=ja"
    again.click("button[type=reset]")
    again.wait_for_selector("#status:has-text('11 of')")  # evaluating a text is forbidden by the page's own policy
    assert "#" not in again.url


@pytest.mark.slow
def test_a_row_leads_to_the_rows_that_compare(watched, site):
    page = watched.open(f"{site}/index.html#subset=%3Den&task=%3Dtask0")
    assert len(column(page, "method")) == 5
    page.click("#board tbody a >> nth=1")
    page.click(".crumbs a")
    page.wait_for_selector("#board.ready")
    assert set(page.locator("#board td.of-task small").all_inner_texts()) == {"en"} and len(column(page, "task")) == 5


@pytest.mark.slow
def test_the_command_is_copied_without_a_network(browser, site):
    watched = Watched(browser, permissions=["clipboard-read", "clipboard-write"])
    page = watched.open(f"{site}/index.html")
    page.click("#board tbody a >> nth=0")
    page.click(".copy")
    page.wait_for_selector(".said:has-text('Copied')")
    assert page.evaluate("navigator.clipboard.readText()") == page.inner_text("#command")
    assert not watched.complaints
    watched.context.close()


def test_texts_of_rows_stay_texts(watched, site):
    page = watched.open(f"{site}/index.html#q=onerror")
    assert len(column(page, "method")) == 1 and page.locator("img").count() == 0
    page.click("#board tbody a >> nth=0")
    page.wait_for_url("**/rows/*.html")
    assert page.locator("img").count() == 0 and "owned" not in page.title().replace("document.title='owned'", "")
    assert "onerror" in page.inner_text("h1")


@pytest.mark.slow
def test_without_scripts_the_table_is_there(browser, site):
    watched = Watched(browser, java_script_enabled=False)
    page = watched.page
    page.goto(f"{site}/index.html")
    assert page.locator("#board tbody tr:not(.machine)").count() == 41
    assert page.locator("#board tbody tr >> nth=42").is_visible() and page.locator("#board tr.machine").count() == 2
    assert not page.locator("#filters").is_visible() and page.locator("th button:enabled").count() == 0
    watched.context.close()


@pytest.mark.slow
def test_a_phone_scrolls_tables_and_not_pages(browser, site):
    watched = Watched(browser, viewport={"width": 375, "height": 700}, device_scale_factor=2, is_mobile=True)
    page = watched.open(f"{site}/index.html")
    watched.open(f"{site}/index.html#task=%3Dtask0")
    place = page.locator("th[data-key=speedup]").bounding_box()
    assert place["x"] < 375 - 60, "the speed-up is in sight"
    addresses = [*PAGES, page.get_attribute("#board tbody a >> nth=1", "href")]
    for address in addresses:
        watched.open(f"{site}/{address}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 375, address
        pictures = page.locator("svg.plot")
        assert all(pictures.nth(place).bounding_box()["width"] <= 375 for place in range(pictures.count())), address
        assert page.evaluate(
            """[...document.querySelectorAll(".scroll")]
                .every((e) => e.tabIndex === 0 && e.getBoundingClientRect().right <= 376)"""
        )
    watched.open(f"{site}/index.html")
    assert not page.locator("#f-task").is_visible(), "filters are folded, so that the first row is in sight"
    first = page.locator("#board tbody tr:not(.machine) >> nth=0").bounding_box()
    assert first["y"] + first["height"] < 640
    hint = page.locator(".hint").first
    assert hint.is_visible() and "sideways" in hint.text_content()
    page.evaluate("document.querySelector('.scroll').scrollLeft = 10000")
    hint.wait_for(state="hidden")
    assert not watched.complaints
    watched.context.close()


@pytest.mark.slow
def test_a_table_that_fits_has_no_hint(watched, site):
    page = watched.open(f"{site}/predicted.html")
    assert page.evaluate("""[...document.querySelectorAll(".scroll")].every(
        (e) => e.previousElementSibling.hidden === e.scrollWidth <= e.clientWidth + 8)""")
    assert page.evaluate("""[...document.querySelectorAll(".hint")].some((e) => e.hidden)""")


@pytest.mark.slow
@pytest.mark.parametrize("address", ["quality_speed.html", "predicted.html"])
def test_on_a_wide_screen_a_picture_stands_left_of_its_numbers(watched, site, address):
    page = watched.open(f"{site}/{address}")
    picture, numbers = (page.locator(f".beside >> nth=0 >> {inner}").bounding_box() for inner in ("svg", "table"))
    left_edge = page.locator("h1").bounding_box()["x"]
    assert picture["x"] == pytest.approx(left_edge, abs=1) and picture["width"] > 1280 / 2
    assert numbers["x"] > picture["x"] + picture["width"] and abs(numbers["y"] - picture["y"]) < 60


CONTRASTS = """() => {
    const channel = (c) => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
    const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
    const parse = (text) => text.match(/[\\d.]+/g).map(Number);
    const behind = (e) => {
        for (; e; e = e.parentElement) {
            const found = parse(getComputedStyle(e).backgroundColor);
            if (found.length < 4 || found[3] > 0) return found;
        }
        return [255, 255, 255];
    };
    const found = [];
    for (const e of document.body.querySelectorAll("*")) {
        const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
        if (!own || !e.checkVisibility()) continue;
        const style = getComputedStyle(e);
        const [a, b] = [light(parse(e.closest("svg") ? style.fill : style.color)), light(behind(e))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) found.push(`${e.tagName}.${e.className.baseVal ?? e.className} ${ratio.toFixed(2)}`);
    }
    return [...new Set(found)];
}"""


@pytest.mark.parametrize(
    ("scheme", "pages"),
    [("dark", PAGES[:1]), *(pytest.param(each, PAGES, marks=pytest.mark.slow) for each in ("light", "dark"))],
)
def test_texts_can_be_read_in_light_and_dark(browser, site, scheme, pages):
    watched = Watched(browser, color_scheme=scheme)
    page = watched.open(f"{site}/index.html")
    colour = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (sum(int(part) for part in colour[4:-1].split(",")) < 200) == (scheme == "dark")
    for address in [*pages, page.get_attribute("#board tbody a >> nth=1", "href")]:
        watched.open(f"{site}/{address}")
        assert page.evaluate(CONTRASTS) == [], address
    page.evaluate("(colour) => { document.querySelector('h1').style.color = colour; }", colour)
    assert page.evaluate(CONTRASTS), "a control that must fail"
    watched.context.close()


@pytest.mark.slow
def test_print_has_every_row_and_no_controls(watched, site):
    page = watched.open(f"{site}/index.html#subset=*")
    page.emulate_media(media="print")
    assert not page.locator("#filters").is_visible() and not page.locator("nav").is_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('.scroll')).overflow") == "visible"
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    assert page.pdf(landscape=True).startswith(b"%PDF")


@pytest.mark.slow  # tests/publish/test_site.py reads the same names in the pages
def test_every_control_has_a_name_in_the_accessibility_tree(watched, site):
    page = watched.open(f"{site}/index.html")
    for address in [*PAGES, page.get_attribute("#board tbody a >> nth=1", "href")]:
        watched.open(f"{site}/{address}")
        session = watched.context.new_cdp_session(page)
        nodes = session.send("Accessibility.getFullAXTree")["nodes"]
        roles = [
            (node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]
        ]
        named = {"link", "button", "combobox", "searchbox", "region", "navigation", "columnheader", "rowheader",
                 "image", "img", "table"}  # fmt: skip
        assert [role for role, name in roles if role in named and not name.strip()] == [], address
        assert {"main", "navigation", "heading"} <= {role for role, _ in roles}, address


SORT = """async (key) => {
    const table = document.getElementById("board");
    let changes = 0;
    const observer = new MutationObserver((records) => {
        changes += records.filter((record) => record.target === table && record.addedNodes.length).length;
    });
    observer.observe(table, { childList: true, subtree: true });
    const start = performance.now();
    document.querySelector(`th[data-key=${key}] button`).click();
    document.body.getBoundingClientRect();
    const laidOut = performance.now() - start;
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    observer.disconnect();
    return { laidOut, painted: performance.now() - start, changes };
}"""


@pytest.mark.slow
def test_five_thousand_rows_are_sorted_in_one_step(browser, tmp_path, capsys, monkeypatch):
    """Timing depends on the machine, so it is printed (pytest -s); what makes it short is asserted. The pages of the
    rows, which the index only links to, are left out."""
    write(tmp_path / "board.json", many_rows(5000))
    monkeypatch.setattr("specbench.publish.site.build.row_pages", lambda rows: [])
    build([tmp_path / "board.json"], tmp_path / "site", "Many")
    watched = Watched(browser, viewport={"width": 1280, "height": 800})
    page = watched.open(f"{(tmp_path / 'site').as_uri()}/index.html#subset=*")
    assert "5000 of 5000 rows" in page.inner_text("#status")
    found = {}
    for key, number in (("speedup", True), ("alpha", True), ("task", False), ("speed", True)):
        found[key] = page.evaluate(SORT, key)
        assert found[key]["changes"] == 1, "one replacement of rows"
        shown = [float(text) if number else text for text in column(page, key)]
        assert len(shown) == 100 and shown == sorted(shown, reverse=number), "only a window of the rows is in the page"
    page.click("[data-more=all]")
    everything = [float(text) for text in column(page, "speed")]
    assert len(everything) == 5000 and everything == sorted(everything, reverse=True)
    assert not watched.complaints
    watched.context.close()
    with capsys.disabled():
        times = ", ".join(
            f"{key} {each['laidOut']:.0f} ms ({each['painted']:.0f} painted)" for key, each in found.items()
        )
        print(f"\n5,000 rows sorted and laid out: {times}")


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """The addresses of a report of a run with hostile answers, and of the site's page of the same answers."""
    folder = tmp_path_factory.mktemp("answered")
    run = attacked_run(folder / "run")
    write_report(folder / "report.html", RecordedRun(run), shown_run(RecordedRun(run), Selection()))
    build([run / "leaderboard.json"], folder / "site", "Answers", ShownAnswers(2))
    (answers,) = (folder / "site" / "answers").iterdir()
    return (folder / "report.html").as_uri(), answers.as_uri()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_answers_and_reports_run_nothing_and_can_be_read(browser, answered, scheme):
    for address in answered:
        watched = Watched(browser, color_scheme=scheme, viewport={"width": 390, "height": 844})
        page = watched.page
        page.goto(address)
        assert page.locator("img").count() == 0 and "owned" not in page.title()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.locator("mark").count() > 0 and page.evaluate(CONTRASTS) == []
        assert all(url.startswith((address.rpartition("/")[0], "file:", "data:")) for url in watched.requests)
        assert not watched.complaints
        watched.context.close()
