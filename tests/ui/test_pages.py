"""The pages in Chromium: what a reader sees, without errors and without requests to other hosts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_factory import ACCURACY, append, round_finished, write_federation, write_newer_run, write_run
from ui_pages import page, press, texts, wait_for
from ui_site import Site, serving

from browser import Browser, chromium
from fedspecial.core.events import DataNotice, UpdateRefused

WIDTHS = (1280, 400)
MARKUP = "<img src=x onerror=alert(1)><b>bold</b>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Runs of two methods and two seeds, a stopped run, a damaged run, and a federation."""
    folder = tmp_path_factory.mktemp("known") / "runs"
    for method in ("special", "fedavg"):
        for seed in (25, 225):
            write_run(folder / f"{method}-{seed}", method=method, seed=seed)
    write_run(folder / "stopped", stop_after=5, extra=[UpdateRefused(1, 1, 3, "not finite"), DataNotice("3 skipped")])
    write_run(folder / "warned", extra=[UpdateRefused(2, 1, 3, "not finite")])
    result = json.loads((folder / "warned" / "result.json").read_text()) | {"warnings": ["neon was not learned"]}
    (folder / "warned" / "result.json").write_text(json.dumps(result))
    write_run(folder / "damaged")
    (folder / "damaged" / "result.json").write_text("{")
    write_federation(folder / "hospitals")
    with serving(folder) as site:
        yield site


def type_in(browser: Browser, text: str) -> None:
    """Type into the filter."""
    script = f"(f => {{f.value = {text!r}; f.dispatchEvent(new Event('input'))}})"
    browser.evaluate(f"{script}(document.querySelector('input'))")


def test_the_overview_shows_all_runs_and_their_states(browser: Browser, known: Site) -> None:
    with page(browser, known.server.address):
        wait_for(browser, "document.querySelectorAll('.runs tbody tr').length", 8)
        rows = {line[1].rstrip("!"): line for line in (row.split("|") for row in _rows(browser))}
        assert rows["special-25"][2:7] == ["digits-shift", "special", "25", "finished", "8 / 8"]
        assert rows["special-25"][8:10] == ["85.0", "−10.0"]
        assert rows["stopped"][5:7] == ["stopped", "3 / 8"]
        assert "damaged!" in {line[1] for line in rows.values()}


def _rows(browser: Browser) -> list[str]:
    found: list[str] = browser.evaluate(
        "[...document.querySelectorAll('.runs tbody tr')].map(r => [...r.cells].map(c => c.innerText.trim()).join('|'))"
    )
    return found


def test_runs_can_be_filtered_and_sorted(browser: Browser, known: Site) -> None:
    names = "[...document.querySelectorAll('.runs tbody a')].map(a => a.textContent)"
    with page(browser, known.server.address):
        wait_for(browser, "document.querySelectorAll('.runs tbody tr').length", 8)
        type_in(browser, "FEDAVG 225")
        assert browser.evaluate(names) == ["fedavg-225"]
        type_in(browser, "")
        press(browser, "th.c-run button")
        found = browser.evaluate(names)
        assert found == sorted(found)
        assert browser.evaluate("document.querySelector('th.c-run').getAttribute('aria-sort')") == "ascending"
        press(browser, "th.c-run button")
        assert browser.evaluate(names) == sorted(found, reverse=True)


def test_selected_runs_are_compared(browser: Browser, known: Site) -> None:
    with page(browser, known.server.address):
        wait_for(browser, "document.querySelectorAll('.runs tbody tr').length", 8)
        for run in ("special-25", "fedavg-25"):
            press(browser, f"input[aria-label='select {run}']")
        assert texts(browser, ".tools .button") == ["Compare 2 selected"]
        press(browser, ".tools .button")
        wait_for(browser, "document.querySelector('.title .soft').textContent", "2 runs in 2 groups")


def test_a_run_shows_curves_matrix_certificate_costs_settings_and_files(browser: Browser, known: Site) -> None:
    with page(browser, known.server.address, "run", "special-25"):
        wait_for(browser, "document.querySelectorAll('.chart canvas').length", 4)
        assert texts(browser, ".heat td.learned") == ["90.0", "90.0"]
        assert texts(browser, ".tile b")[:4] == ["85.0", "−10.0", "−10.0", "8 / 8"]
        assert "holds" in texts(browser, "td .good")
        assert any("config.yaml" in text for text in texts(browser, ".command"))
        assert "result.json" in texts(browser, "td a")
        rows = texts(browser, "td")
        assert rows.index("benchmark") < rows.index("method") < rows.index("lam") < rows.index("seed")
        assert texts(browser, ".warnings li") == ["Nothing to report."]
        label = browser.evaluate("document.querySelector('.chart').getAttribute('aria-label')")
        assert label == "Accuracy per domain, last values: paper 80, neon 90"


def test_a_finished_run_shows_its_further_metrics(browser: Browser, site: Site) -> None:
    run = write_run(site.folder / "a")
    metrics = {
        "macro_f1": [[0.1, 0.2], [0.75, None]],
        "per_class_accuracy": [[[1.0], [0.0]]] * 2,
        "wrong": 5,
        "none": [],
    }
    result = json.loads((run / "result.json").read_text()) | {"metrics": metrics}
    (run / "result.json").write_text(json.dumps(result))
    with page(browser, site.server.address, "run", "a"):
        wait_for(
            browser,
            "[...document.querySelectorAll('h2')].some(e => e.textContent === 'Further metrics' && e.offsetParent)",
        )
        lines = texts(browser, "tr")
        assert "macro F10.750–" in lines
        assert not any("per-class" in line or "wrong" in line for line in lines)


def test_a_run_of_a_later_version_is_shown_on_all_pages(browser: Browser, site: Site) -> None:
    write_newer_run(site.folder / "a")
    write_run(site.folder / "b")
    with page(browser, site.server.address, "run", "a"):
        wait_for(browser, "document.querySelectorAll('.heat td.missing').length", 3)
        assert texts(browser, ".heat td.learned") == ["80.0"]
    with page(browser, site.server.address, "compare", "a", "b"):
        wait_for(browser, "document.querySelectorAll('.chart canvas').length", 2)
    with page(browser, site.server.address):
        wait_for(browser, "document.querySelectorAll('.runs tbody tr').length", 2)


def test_a_page_without_news_stays_as_it_is_when_its_window_is_shown_again(browser: Browser, known: Site) -> None:
    with page(browser, known.server.address):
        wait_for(browser, "document.querySelectorAll('.runs tbody tr').length", 8)
        browser.evaluate("location.hash = '#/compare'")
        wait_for(browser, "document.querySelector('.empty').textContent.startsWith('Nothing is selected')")
        browser.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        time.sleep(1)  # for an answer that must not come
        assert texts(browser, "#connection") == [""]
        assert texts(browser, ".problem:not([hidden])") == []


def test_a_run_that_does_not_exist_is_named(browser: Browser, known: Site) -> None:
    with page(browser, known.server.address):
        browser.evaluate("location.hash = '#/run?run=nothing'")
        wait_for(browser, "document.querySelector('#connection').dataset.state", "gone")
        (text,) = texts(browser, "#connection")
        assert text.startswith("run=nothing: there is no such run in")


def test_differences_per_seed_are_within_a_benchmark(browser: Browser, site: Site) -> None:
    for name, method in (("a", "special"), ("b", "fedavg"), ("c", "special"), ("d", "fedavg")):
        run = write_run(site.folder / name, method=method)
        if name in "cd":
            for file in ("events.jsonl", "config.yaml"):
                (run / file).write_text((run / file).read_text().replace("digits-shift", "heart"))
    with page(browser, site.server.address, "compare", "a", "b", "c", "d"):
        wait_for(browser, "document.querySelectorAll('figure .scroll table th').length > 0")
        found = [text for text in texts(browser, "figcaption") if " − " in text]
        assert found == [
            "digits-shift: fedavg − digits-shift: special, points",
            "heart: fedavg − heart: special, points",
        ]


def test_on_a_narrow_screen_a_table_is_below_its_chart(browser: Browser, known: Site) -> None:
    with page(browser, known.server.address, "run", "special-25", width=400):
        wait_for(browser, "document.querySelectorAll('.chart canvas').length", 4)
        columns = browser.evaluate("getComputedStyle(document.querySelector('.beside')).gridTemplateColumns")
        assert len(columns.split()) == 1


def test_a_group_is_named_by_the_settings_that_its_runs_have(browser: Browser, site: Site) -> None:
    for name, method, edit in (
        ("a", "special", lambda text: text),
        ("b", "special", lambda text: text.replace("lam: 0.25", "lam: 0.5")),
        ("c", "fedavg", lambda text: text.replace("lam: 0.25\n", "")),
    ):
        config = write_run(site.folder / name, method=method) / "config.yaml"
        config.write_text(edit(config.read_text()))
    with page(browser, site.server.address, "compare", "a", "b", "c"):
        wait_for(browser, "document.querySelectorAll('.legend b').length", 3)
        assert texts(browser, ".legend b") == ["special lam=0.25", "special lam=0.5", "fedavg"]


def test_a_metric_without_limits_is_not_shown_in_per_cent(browser: Browser, tmp_path: Path) -> None:
    r2 = {"name": "r2", "low": None, "high": 1.0}
    for name, metric in (("regression", r2), ("classification", ACCURACY)):
        write_run(tmp_path / "runs" / name, metric=metric)
    with serving(tmp_path / "runs") as site:
        with page(browser, site.server.address):
            wait_for(browser, "document.querySelectorAll('.runs tbody tr').length", 2)
            rows = {line[1]: line for line in (row.split("|") for row in _rows(browser))}
            assert rows["regression"][8:10] == ["0.850", "−0.100"]
            assert rows["classification"][8:10] == ["85.0", "−10.0"]
        with page(browser, site.server.address, "run", "regression"):
            wait_for(browser, "document.querySelectorAll('.chart canvas').length", 4)
            assert texts(browser, ".heat td.learned") == ["0.900", "0.900"]
            assert texts(browser, ".tile b")[:3] == ["0.850", "−0.100", "−0.100"]
            assert texts(browser, ".tile span")[:3] == ["ACC", "BWT", "Worst drop"]
            assert {"R² per domain", "R² matrix"} <= set(texts(browser, "h2"))
        with page(browser, site.server.address, "compare", "regression", "classification"):
            note = "document.querySelector('.title .soft').textContent.endsWith('values cannot be compared')"
            wait_for(browser, note)


def test_warnings_are_plain_words_and_problems_name_the_file(browser: Browser, known: Site) -> None:
    with page(browser, known.server.address, "run", "stopped"):
        wait_for(browser, "document.querySelectorAll('.warnings li').length", 2)
        assert texts(browser, ".warnings li") == ["an update was refused: not finite", "3 skipped"]
    with page(browser, known.server.address, "run", "warned"):
        wait_for(browser, "document.querySelectorAll('.warnings li').length", 2)
        assert texts(browser, ".warnings li") == ["neon was not learned", "an update was refused: not finite"]
    with page(browser, known.server.address, "run", "damaged"):
        wait_for(browser, "document.querySelectorAll('.problem li').length", 1)
        assert texts(browser, ".problem li") == ["result.json it is cut off or not JSON"]
        assert texts(browser, ".heat td.learned") == ["90.0", "90.0"]


def test_a_comparison_groups_seeds_and_shows_what_differs(browser: Browser, known: Site) -> None:
    runs = [f"{method}-{seed}" for method in ("special", "fedavg") for seed in (25, 225)]
    with page(browser, known.server.address, "compare", *runs):
        wait_for(browser, "document.querySelectorAll('.chart canvas').length", 2)
        assert texts(browser, ".title .soft") == ["4 runs in 2 groups"]
        assert texts(browser, ".legend b") == ["special", "fedavg"]
        assert texts(browser, ".matrices figcaption") == ["special", "fedavg"]
        assert browser.evaluate("document.querySelectorAll('.scatter .mean').length") == 2
        table = texts(browser, "td")
        for text in ("method", "mean ± std", "0.0", "85.0 ± 0.0"):
            assert text in table, text


def test_a_federation_shows_its_sites_and_the_audit_chain(browser: Browser, known: Site) -> None:
    with page(browser, known.server.address, "federation"):
        wait_for(browser, "document.querySelectorAll('.tile b')[0].textContent", "3")
        assert texts(browser, "h1") == ["hospitals stopped"]
        assert "verified" in texts(browser, "h2 .state")
        assert "not published" in texts(browser, "h3 .state")
        assert {"taking part", "refused", "no reply within 60 s", "4 rounds"} <= set(texts(browser, "td"))
        assert "not recorded" in texts(browser, ".card p")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("view", "runs"),
    [("", ()), ("run", ("special-25",)), ("compare", ("special-25", "fedavg-25")), ("federation", ("hospitals",))],
)
def test_nothing_is_wider_than_the_page_and_text_is_readable(
    browser: Browser, known: Site, view: str, runs: tuple[str, ...], width: int
) -> None:
    with page(browser, known.server.address, view, *runs, width=width):
        time.sleep(0.3)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        outside = browser.evaluate(
            "[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, .uplot, .hidden') "
            f"&& e.getBoundingClientRect().right > {width} + 1).map(e => e.tagName + '.' + e.className)"
        )
        assert outside == []
        small = browser.evaluate(
            "[...document.querySelectorAll('p, td, th, li, button, a')].filter(e => e.offsetParent && "
            "parseFloat(getComputedStyle(e).fontSize) < 12).map(e => e.tagName + ': ' + e.textContent)"
        )
        assert small == []


def test_new_rounds_appear_without_reloading_and_the_rest_stays_in_place(browser: Browser, site: Site) -> None:
    run = write_run(site.folder / "a", stop_after=3)
    with page(browser, site.server.address, "run", "a"):
        wait_for(browser, "document.querySelectorAll('.tile b')[3].textContent", "1 / 8")
        browser.evaluate("window.kept = [...document.querySelectorAll('.card, .tile, .uplot canvas, .heat td')]")
        height = browser.evaluate("document.documentElement.scrollHeight")
        append(run, round_finished(1, 1, {"paper": 0.95}))
        wait_for(browser, "document.querySelectorAll('.tile b')[3].textContent", "2 / 8")
        wait_for(browser, "document.querySelector('.chart').getAttribute('aria-label').includes('paper 95')")
        assert browser.evaluate("window.kept.every(e => e.isConnected)")
        assert browser.evaluate("document.documentElement.scrollHeight") == height


def test_a_run_that_begins_later_appears_in_the_overview(browser: Browser, site: Site) -> None:
    with page(browser, site.server.address):
        wait_for(browser, "document.querySelector('.empty').hidden", False)
        write_run(site.folder / "later")
        wait_for(browser, "[...document.querySelectorAll('.runs tbody a')].map(a => a.textContent)", ["later"])


def test_markup_in_names_and_texts_is_shown_as_text(browser: Browser, site: Site) -> None:
    folder = write_run(site.folder / "<b>run<", method=MARKUP, tasks=(MARKUP, "neon"), extra=[DataNotice(MARKUP)])
    write_federation(site.folder / "f", (MARKUP, "south", "<script>alert(2)</script>"))
    (folder / f"{MARKUP.replace('/', '')}.txt").write_text("x")
    with page(browser, site.server.address):
        wait_for(browser, "document.querySelectorAll('.runs tbody tr').length", 2)
        assert MARKUP in texts(browser, "td.c-method")
    for view, runs in (("run", ("<b>run<",)), ("compare", ("<b>run<",)), ("federation", ("f",))):
        with page(browser, site.server.address, view, *runs):
            wait_for(browser, f"document.querySelector('main').textContent.includes({MARKUP!r})")
            assert browser.evaluate("document.querySelectorAll('main img, main b b, main script').length") == 0


def test_the_theme_follows_the_system_and_can_be_switched(browser: Browser, known: Site) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    with page(browser, known.server.address, "run", "special-25"):
        wait_for(browser, "document.querySelectorAll('.chart canvas').length", 4)
        light = browser.evaluate(back)
        press(browser, "#theme")
        dark = browser.evaluate(back)
        assert dark != light
    with page(browser, known.server.address):
        assert browser.evaluate(back) == dark
        press(browser, "#theme")
        assert browser.evaluate(back) == light


def test_the_page_can_be_used_with_the_keyboard(browser: Browser, known: Site) -> None:
    with page(browser, known.server.address, "run", "special-25"):
        wait_for(browser, "document.querySelectorAll('.chart canvas').length", 4)
        reachable = browser.evaluate(
            "[...document.querySelectorAll('a[href], button, input, summary, .chart')].every(e => e.tabIndex >= 0)"
        )
        assert reachable
        browser.evaluate(
            "document.querySelector('.chart').dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowLeft'}))"
        )
        assert "8 (task 2, round 4)" in texts(browser, ".u-legend .u-value")


def test_the_server_can_be_restarted_at_any_time(browser: Browser, tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    with serving(tmp_path) as site:
        browser.open(site.server.address, 1280)
        wait_for(browser, "document.querySelector('#connection').textContent", "live")
    wait_for(browser, "document.querySelector('#connection').dataset.state", "lost")
    browser.log("browser")
    with serving(tmp_path) as site, page(browser, site.server.address):
        wait_for(browser, "document.querySelectorAll('.runs tbody tr').length", 1)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_on_heat_map_cells_has_contrast(browser: Browser, known: Site, theme: str) -> None:
    """The ratio of WCAG, at least 4.5 for every level."""
    script = """(theme => {
      document.documentElement.dataset.theme = theme;
      const light = text => { const v = text.match(/[0-9.]+/g).slice(0, 3).map(x => x / 255)
        .map(x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
        return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
      const found = [...Array(21).keys()].map(k => { const cell = document.createElement('td');
        cell.className = `level-${k}`; document.body.append(cell); const style = getComputedStyle(cell);
        const [a, b] = [light(style.color), light(style.backgroundColor)].sort((x, y) => y - x); cell.remove();
        return (a + 0.05) / (b + 0.05); });
      return Math.min(...found); })"""
    with page(browser, known.server.address):
        assert browser.evaluate(f"{script}({theme!r})") >= 4.5
