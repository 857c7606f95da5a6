"""The simulator's page in a real browser with real training: the server computes everything that the page shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from trueloop.failures.load import catalogue
from trueloop.lab.teaching.datasets import AddedPoint
from trueloop.lab.teaching.inject import inject_failures
from trueloop.lab.teaching.scenarios import SCENARIOS
from trueloop.lab.teaching.script import teaching_loop
from trueloop.lab.teaching.simulation import Simulation

Opened = Callable[..., Page]
UPDATE = "dl.live dd[data-k=update]"
LONG = "samples=100&epochs=1000"
SMALL = "samples=60&hidden=4-3&epochs=1000"


def wait_for_state(page: Page, state: str = "ready") -> None:
    expect(page.locator(".state")).to_have_text(state)


def wait_for_number(page: Page, name: str, condition: str) -> None:
    """Wait until one of the live numbers of the page meets a condition in JavaScript on ``value``."""
    page.wait_for_function(
        """([name, condition]) => {
            const text = document.querySelector(`dl.live dd[data-k=${name}]`)?.innerText ?? "";
            const value = parseFloat(text.replaceAll(",", "").replace("\\u2212", "-"));
            const compare = { "<": (limit) => value < limit, ">": (limit) => value > limit }[condition[0]];
            return compare(parseFloat(condition.slice(1)));
        }""",
        arg=[name, condition],
    )


def wait_until_still(page: Page) -> int:
    """Wait until the page has shown the same update for half a second; return it."""
    shown = page.wait_for_function(
        """(cell) => {
            const now = performance.now();
            const update = parseInt(document.querySelector(cell).innerText.replaceAll(",", ""));
            if (window.stillAt?.update !== update) window.stillAt = { update, since: now };
            return now - window.stillAt.since > 500 ? String(update) : "";
        }""",
        arg=UPDATE,
    )
    return int(shown.json_value())


def wait_for_updates(page: Page, updates: int) -> None:
    """Wait until the page shows at least this number of updates."""
    page.wait_for_function(
        "([cell, updates]) => parseInt(document.querySelector(cell)?.innerText.replace(',', '')) >= updates",
        arg=[UPDATE, updates],
    )


def script(page: Page) -> str:
    """Return the source code in the code panel."""
    page.get_by_role("tab", name="Code").click()
    return page.evaluate(
        "() => [...document.querySelectorAll('.code-body .line')].map((line) => line.textContent).join('')"
    )


def address(page: Page) -> dict[str, str]:
    return page.evaluate("() => Object.fromEntries(new URLSearchParams(location.hash.split('?')[1] ?? ''))")


def test_the_page_starts_paused_then_trains_pauses_and_steps(open_page: Opened, axe: Callable[[Page], None]):
    page = open_page("simulator", params="dataset=blobs&" + LONG, height=800)
    wait_for_state(page)
    expect(page.locator(UPDATE)).to_have_text(re.compile(r"^0/"))  # the first frame arrives after the state
    for part in (
        ".board",
        ".sim-bar .play",
        "#page .thumbs",
        ".sim-curves",
        "#bug-GRD001",
        "#tab-code",
    ):  # without scrolling
        expect(page.locator(part)).to_be_in_viewport()
    page.get_by_role("button", name="Train").click()
    wait_for_updates(page, 150)
    for name, condition in {"loss": "<0.5", "held": "<0.5", "accuracy": ">90"}.items():
        wait_for_number(page, name, condition)
    page.get_by_role("button", name="Pause").click()
    wait_for_state(page, "paused")
    paused_at = wait_until_still(page)
    page.get_by_role("button", name="Step").click()
    expect(page.locator(UPDATE)).to_contain_text(f"{paused_at + 1:,}/")
    expect(page.locator(".verdict")).to_contain_text("No findings so far")
    axe(page)
    page.get_by_role("button", name="Reset").click()
    expect(page.locator(UPDATE)).to_contain_text("0/")
    page.get_by_role("button", name="New data").click()
    expect(page.locator(".sim-status")).to_have_text("Restarted: seed 1.")
    assert address(page)["seed"] == "1"


def test_an_injected_failure_is_found_with_its_line_and_fixed_again(open_page: Opened, axe: Callable[[Page], None]):
    page = open_page("simulator", params=LONG)
    wait_for_state(page)
    page.get_by_label(re.compile("^GRD001")).check()
    card = page.locator(".finding[data-code=GRD001]")
    expect(card).to_contain_text("Fix:")
    inject = catalogue()["GRD001"].failure.inject
    assert inject is not None
    text = script(page)
    assert text == inject_failures(Simulation(samples=100, epochs=1000), [inject]).loop.text() + "\n"  # each line ends
    line = 1 + text.splitlines().index("        optimizer.step()")
    page.get_by_role("tab", name="Finding").click()
    expect(card.get_by_role("button")).to_have_text(f"line {line}")
    expect(page.locator("#announcements")).to_contain_text(f"GRD001: Gradients are never cleared, line {line}")
    page.get_by_role("tab", name="Code").click()
    expect(page.locator(".code .hit")).to_have_attribute("data-line", str(line))
    expect(page.locator(".code .hit")).to_be_in_viewport()
    expect(page.locator(".code .broken")).to_have_count(1)
    expect(page.locator(".broken-lines del")).to_have_text("optimizer.zero_grad()")
    page.get_by_role("searchbox").fill("cleared before")
    expect(page.locator("#bug-GRD002")).to_be_disabled()
    expect(page.locator("#bug-GRD002-why")).to_contain_text("Cannot act now: ")
    page.get_by_role("searchbox").fill("")
    wait_for_updates(page, 60)
    axe(page)
    page.get_by_role("button", name="Fix all").click()
    expect(page.locator(".finding")).to_have_count(0)
    expect(page.locator(".ghosts li")).to_contain_text("with GRD001")
    page.get_by_role("searchbox").fill("accumulated")
    page.get_by_label(re.compile("^GRD003")).check()
    expect(page.locator(".sim-status")).to_contain_text("batches per update 4")
    expect(page.locator(".finding[data-code=GRD003]")).to_be_visible()
    page.get_by_role("tab", name="Settings").click()
    expect(page.get_by_label("batches per update", exact=True)).to_have_value("4")
    assert "accumulation" not in address(page)  # the switch has set it, not the user
    page.get_by_role("button", name="Fix all").click()
    expect(page.get_by_label("batches per update", exact=True)).to_have_value("1")
    assert "accumulation" not in address(page)
    page.get_by_role("button", name=re.compile("Remove the run: .*with GRD001")).click()
    expect(page.get_by_role("button", name=re.compile("Remove the run: .*with GRD001"))).to_have_count(0)


def test_the_page_opens_training_on_one_screen_and_a_failure_is_named_after_one_click(
    lab: str, browser: Any, check_words: Callable[[Page], None]
):
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(lab)
    wait_for_updates(page, 20)
    wait_for_state(page, "training")
    assert page.evaluate("() => document.documentElement.scrollHeight") <= 900
    expect(page.locator(".bug-curve")).to_have_count(8)
    for part in (".sim-knobs", ".net", ".board", ".sim-curves .u-over", ".bug-curve", "#tab-experiments"):
        expect(page.locator(part).last).to_be_in_viewport(ratio=1)
    check_words(page)
    page.locator("#bug-GRD001").check()
    finding = page.locator(".finding[data-code=GRD001]")
    expect(finding).to_be_in_viewport(ratio=1)
    expect(page.locator(".verdict")).to_have_text("✗ GRD001 Gradients are never cleared")
    page.close()


def test_a_recorded_run_plays_until_the_worker_is_up(lab: str, browser: Any):
    page = browser.new_page()
    page.route_web_socket("**/live/simulator", lambda socket: None)
    page.goto(lab)
    wait_for_updates(page, 100)
    wait_for_state(page, "recorded run")
    expect(page.locator(".sim-status")).to_have_text("A recorded run plays while PyTorch starts.")
    expect(page.locator(".verdict")).to_have_text("Not checked yet.")
    assert page.evaluate("() => document.querySelector('.board-decision').width") == 64
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.locator(".play").evaluate("(button) => button.scrollWidth <= button.clientWidth"), "Pause is cut off"
    page.close()


def test_a_unit_under_the_pointer_is_shown_on_the_plane(open_page: Opened):
    page = open_page("simulator", params=SMALL)
    wait_for_state(page)
    plane, box = page.locator(".board-points"), page.locator(".net").bounding_box()
    assert box
    x = box["x"] + min(30, box["width"] / 10) + (box["width"] - 2 * min(30, box["width"] / 10)) / 3  # the first layer
    for y in 10 * list(range(0, int(box["height"]), 10)):  # again, as the first maps may still be on their way
        page.mouse.move(x, box["y"] + y)
        if "faded" in (plane.get_attribute("class") or ""):
            break
    expect(plane).to_have_class(re.compile("faded"))
    expect(page.locator(".inspector .what")).to_contain_text("Bias of tanh neuron")
    page.mouse.move(0, 0)
    expect(plane).not_to_have_class(re.compile("faded"))


def test_switches_say_what_they_need_and_fix_all_takes_it_back_after_a_reload(open_page: Opened):
    page = open_page("simulator", params=LONG)
    wait_for_state(page)
    search = page.get_by_role("searchbox")
    search.fill("step never called")
    expect(page.locator("#bug-SCH006-why")).to_contain_text("at the end of the run. Sets schedule cosine, epochs 5.")
    search.fill("no such failure")
    expect(page.locator(".bugs")).to_contain_text("No failure matches.")
    search.fill("accumulated")
    page.get_by_label(re.compile("^GRD003")).check()
    expect(page.locator(".finding[data-code=GRD003]")).to_be_visible()
    assert set(address(page)) == {"samples", "epochs", "bugs"}
    page.reload()
    expect(page.locator(".sim-status")).to_contain_text("Also set: batches per update 4")
    expect(page.locator("#bug-GRD003")).to_be_checked()  # an active switch is shown without a search
    page.get_by_role("button", name="Fix all").click()
    page.get_by_role("tab", name="Settings").click()
    expect(page.get_by_label("batches per update", exact=True)).to_have_value("1")


def test_a_batch_on_the_wrong_device_is_explained(open_page: Opened):
    page = open_page("simulator", params="bugs=DEVICE&play=1&" + LONG)
    expect(page.locator(".verdict")).to_have_text("✗ Tensors are on different devices")
    expect(page.locator(".finding.raised")).to_contain_text("`x` on meta".replace("`", ""))
    page.get_by_role("button", name="Fix all").click()
    wait_for_updates(page, 3)


def test_tabs_are_moved_through_with_arrow_keys(open_page: Opened):
    page = open_page("simulator", params=SMALL)
    wait_for_state(page)
    page.get_by_role("tab", name="Finding").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Code")).to_be_focused()
    expect(page.locator(".code-body .line").first).to_be_visible()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("tabpanel", name="Experiments")).to_be_visible()
    expect(page.get_by_role("tabpanel")).to_have_count(1)


def test_steps_requested_while_a_setting_changes_are_made(open_page: Opened):
    page = open_page("simulator", params=SMALL)
    wait_for_state(page)
    page.evaluate("""() => {
        const button = document.querySelector('.sim-bar button[title="One update"]');
        const batch = document.querySelectorAll('.sim-knobs input[type=range]')[1];
        batch.value = 8;
        batch.dispatchEvent(new Event('input'));
        button.click();
        button.click();
    }""")
    expect(page.locator(UPDATE)).to_contain_text("2/")
    expect(page.locator(".sim-status")).to_have_text("Restarted: batch size 8.")
    wait_for_state(page, "paused")


def test_a_setting_changed_before_the_server_has_described_the_settings_is_named(open_page: Opened):
    """The run starts before the answer arrives."""
    page, held = open_page("sheet"), []
    page.route(
        "**/api/simulator", lambda route: held.append(route) if route.request.method == "POST" else route.fallback()
    )
    page.goto(f"{page.url.partition('#')[0]}#/simulator?{SMALL}")
    wait_for_state(page)
    page.unroute("**/api/simulator")
    page.evaluate("""() => {
        const batch = document.querySelectorAll('.sim-knobs input[type=range]')[1];
        batch.value = 8;
        batch.dispatchEvent(new Event('input'));
    }""")
    expect(page.locator(".sim-status")).to_have_text("Restarted: batch size 8.")
    expect(page.locator(".sim-knobs").get_by_label("batch size").first).to_have_value("8")
    assert held


def test_a_failure_that_is_not_found_yet_is_named(open_page: Opened):
    page = open_page("simulator", params="bugs=SCH006&schedule=cosine&samples=60&batch=8&epochs=4")
    wait_for_state(page)
    page.get_by_role("button", name="Step").click()
    verdict = page.locator(".verdict")
    expect(verdict).to_contain_text("Not found yet: SCH006. The sanitizer reports it at the end of the run.")
    page.get_by_role("button", name="Train").click()
    expect(page.locator(".finding[data-code=SCH006]")).to_be_visible()
    expect(verdict).to_contain_text("SCH006")


def test_twin_runs_are_synchronised_and_their_first_difference_is_shown(open_page: Opened):
    page = open_page("simulator", params="bugs=GRD001&twin=1&play=1&" + LONG)
    expect(page.locator(".board")).to_have_count(2)
    expect(page.locator("dl.live dd[data-k=speed]")).to_have_text(re.compile(r"^\d[\d.]*\s*\d[\d.]*$"))
    legend = page.get_by_role("figure", name="Loss").locator(".legend span")
    expect(legend).to_have_text(["broken", "held out", "without"])
    expect(page.locator(".parted")).to_contain_text("They differ from update 2 on: gradient norm")
    page.get_by_role("button", name="Pause").click()
    wait_for_state(page, "paused")
    updates = page.locator(f"{UPDATE} span")
    page.wait_for_function(
        f"() => new Set([...document.querySelectorAll('{UPDATE} span')].map((each) => each.innerText)).size === 1"
    )
    before = updates.first.inner_text()
    page.get_by_role("button", name="Step").click()
    expect(updates.first).not_to_have_text(before)
    assert address(page)["twin"] == "1"
    page.get_by_role("button", name="Twin run").click()
    expect(page.locator(".board")).to_have_count(1)
    wait_for_state(page)


def test_a_diverging_run_is_shown_as_an_event(open_page: Opened):
    page = open_page(
        "simulator", params="optimizer=momentum&learning_rate=1000&activation=relu&hidden=16-16&play=1&" + LONG
    )
    expect(page.locator(".sim-events")).to_contain_text("the loss is NaN or infinite")
    expect(page.locator("#announcements")).to_contain_text(re.compile("GRD00[78]|is NaN or infinite|1 error"))
    expect(page.locator("dl.live dd[data-k=loss]")).to_have_text("NaN")
    expect(page.locator(".board-word")).to_be_visible()


def test_a_weight_and_points_can_be_changed(open_page: Opened):
    page = open_page("simulator", params=SMALL)
    wait_for_state(page)
    page.get_by_role("tab", name="Weights").click()
    cell = page.get_by_role("button", name=re.compile("^Weight from input x to tanh neuron 2 of layer 1"))
    cell.click()
    page.get_by_label("value", exact=True).fill("2.5")
    page.keyboard.press("Enter")
    expect(page.locator(".inspector .what")).to_contain_text("2.5")
    page.get_by_role("tab", name="Code").click()
    expect(page.locator(".code-body")).to_contain_text("update 0: layers.0.weight[1, 0] = 2.5")
    board = page.locator(".board-points").first
    page.get_by_label("Class of the points you add").select_option("1")
    box = board.bounding_box()
    assert box
    board.click(position={"x": box["width"] / 4, "y": box["height"] / 2})
    expect(page.locator(".sim-status")).to_contain_text("A point of class 1 (square)")
    x, y, label = address(page)["points"].split("_")
    assert (float(x) < 0, abs(float(y)) < 0.1, label) == (True, True, "1")
    board.focus()
    for key in ("ArrowRight", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    assert address(page)["points"].count("~") == 1
    page.get_by_role("button", name="Reset").click()
    wait_for_state(page)
    points = [[float(part) for part in point.split("_")] for point in address(page)["points"].split("~")]
    added = [AddedPoint(x, y, int(label)) for x, y, label in points]
    small = Simulation(samples=60, hidden=(4, 3), epochs=1000)
    assert script(page).strip() == teaching_loop(small, added).text().strip()
    board.focus()
    for key in ("ArrowRight", "ArrowUp", "Delete"):  # at the point that was added last
        page.keyboard.press(key)
    assert "~" not in address(page)["points"]


def test_an_address_restores_all_settings(open_page: Opened):
    params = "dataset=moons&learning_rate=0.3&hidden=5&no_grad=false&seed=7&bugs=LOS001&points=0.5_-0.25_1"
    page = open_page("simulator", params=params)
    wait_for_state(page)
    expect(page.get_by_role("radio", name="moons")).to_be_checked()
    expect(page.get_by_label("hidden layers")).to_have_value("5")
    expect(page.get_by_label(re.compile("^LOS001"))).to_be_checked()
    inject = catalogue()["LOS001"].failure.inject
    assert inject is not None
    config = Simulation(dataset="moons", learning_rate=0.3, hidden=(5,), no_grad=False, seed=7)
    assert script(page).strip() == inject_failures(config, [inject], [AddedPoint(0.5, -0.25, 1)]).loop.text().strip()
    assert address(page) == dict(part.split("=") for part in params.split("&"))


def test_settings_that_cannot_be_run_are_refused_with_a_message(open_page: Opened):
    open_page.allowed = "status of 400"  # type: ignore[attr-defined] - the browser may log the refusal
    page = open_page("simulator", params="samples=60&seed=-3&nonsense=1")
    expect(page.locator(".sim-status")).to_contain_text("cannot be run")
    wait_for_state(page)
    assert address(page) == {}
    page.get_by_label("hidden layers").fill("8, 900")
    refusal = page.locator(".knobs .error", has_text="up to four numbers from 1 to 64")
    expect(refusal).to_be_visible()
    page.get_by_label("hidden layers").fill("8, abc")
    page.get_by_label("hidden layers").blur()
    unparsed = page.locator(".knobs .unparsed", has_text="Numbers with commas between them")
    expect(unparsed).to_be_visible()
    page.get_by_label("hidden layers").fill("8, 9")
    page.get_by_label("hidden layers").blur()
    expect(refusal).to_be_hidden()
    expect(unparsed).to_be_hidden()
    expect(page.locator(".sim-status")).to_have_text("Restarted: hidden layers 8, 9.")


@pytest.mark.parametrize("name", SCENARIOS)
def test_an_experiment_runs_and_shows_its_measurements(name: str, open_page: Opened):
    page = open_page("simulator")
    wait_for_state(page)
    page.get_by_role("tab", name="Experiments").click()
    card = page.locator(f".scenario[data-scenario={name}]")
    card.get_by_role("button", name="Run the experiment").click()
    expect(card.locator(".measured")).to_contain_text("Measured:", timeout=60_000)
    expect(card.locator(".measured strong")).to_have_text(re.compile("It holds|It does not hold"))
    expect(card.locator(".u-over")).to_be_visible()
    card.get_by_role("button", name=re.compile("^Open:")).last.click()
    last = SCENARIOS[name].variants[-1]
    page.wait_for_function("() => location.hash.includes('?')")
    params = {key: value for key, value in address(page).items() if key not in ("bugs", "hidden")}
    expected = {key: value for key, value in asdict(last.simulation).items() if key in params}
    assert params == {
        key: f"{value:g}" if isinstance(value, float) else str(value).lower() for key, value in expected.items()
    }
    assert address(page).get("bugs", "") == "-".join(last.bugs)


def test_leaving_the_page_closes_the_connection_to_its_worker(open_page: Opened):
    page = open_page("arithmetic")
    with page.expect_websocket() as opened:
        page.get_by_role("link", name="Simulator").click()
    wait_for_state(page)
    with opened.value.expect_event("close"):
        page.get_by_role("link", name="Arithmetic").click()
    assert opened.value.is_closed()


def test_functions_of_the_modules(open_page: Opened):
    """Long curves keep their extremes and gaps; curves with different updates share an axis; two runs are compared."""
    page = open_page("arithmetic")
    result = page.evaluate("""async () => {
        const { downsample, alignCurves } = await import("./pages/simulator/curves.js");
        const { firstDifference } = await import("./pages/simulator/twin.js");
        const { createPacer } = await import("./pages/simulator/pacer.js");
        const xs = Array.from({ length: 20000 }, (_, i) => i + 1), ys = xs.map((x) => (x === 7001 ? 9 : x % 2));
        ys[12345] = -5;
        ys.fill("nan", 15000);
        const [updates, values] = downsample([xs, ys]);
        const run = (loss, bugs) => ({ setup: { bugs }, series: { update: [1, 2, 3], loss, norm: loss, rate: loss } });
        const sent = [], send = (command, values) => sent.push([command, values?.update]);
        const pausedAt = (window) => ({ window, header: { updates_per_s: 8 }, send });
        const aligned = alignCurves([[[1, 2, 4], [10, 20, 40]], [[2, 3], ["nan", 3]]]);
        const pace = createPacer(() => [pausedAt(5), pausedAt(3)]);
        pace.play();
        pace.pause();
        pace.step();
        return {
            size: updates.length, last: updates.at(-1), gap: values.at(-1),
            highest: updates[values.indexOf(9)], lowest: updates[values.indexOf(-5)],
            aligned: aligned.map((column) => column.map((each) => each ?? null)),
            different: firstDifference().describe(run([1, 2, 3], ["X"]), run([1, 2, 4], [])),
            same: firstDifference().describe(run([1, 2, 3], ["X"]), run([1, 2, 3], [])),
            sent,
        };
    }""")
    assert result["size"] < 1600
    assert (result["highest"], result["lowest"], result["last"], result["gap"]) == (7001, 12346, 20000, "nan")
    assert result["aligned"] == [[1, 2, 3, 4], [10, 20, None, 40], [None, "nan", 3, None]]
    assert result["different"] == "They differ from update 3 on: loss 3 with, 4 without."
    assert result["same"].startswith("Up to update 3 they are bitwise equal")
    sent = result["sent"]
    assert sent[:2] == [["run_until", 7]] * 2  # after play(): four updates ahead of the slower run
    assert sent[2:6] == [["pause", None]] * 2 + [["run_until", 7]] * 2  # after pause()
    assert sent[6:] == [["run_until", 6]] * 2  # after step()


def test_everything_can_be_done_by_keyboard(open_page: Opened):
    page = open_page("simulator", params=LONG)
    wait_for_state(page)
    page.locator("#main").focus()
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("() => document.activeElement.matches('.play')"):
            page.keyboard.press("Enter")
            break
    wait_for_updates(page, 3)
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("() => document.activeElement.id") == "bug-GRD001":
            page.keyboard.press("Space")
            break
    expect(page.locator(".finding[data-code=GRD001]")).to_be_visible()
    expect(page.locator("#bug-GRD001")).to_be_focused()


def test_the_run_restarts_when_the_server_is_back(served: Any, tmp_path: Path, browser: Any):
    with served(tmp_path) as lab:
        port = re.search(r":(\d+)/", lab)
        assert port
        page = browser.new_page()
        page.goto(f"{lab}#/simulator?play=1&seed=5&{LONG}")
        wait_for_updates(page, 40)
    expect(page.locator(".sim-status")).to_contain_text("connection to the lab is lost")
    wait_for_state(page, "not connected")
    expect(page.locator(UPDATE)).to_have_text("\N{EN DASH}")  # the numbers of the lost run are not shown
    page.evaluate("""() => {
        window.shown = [];
        const note = () => {
            const [status, state, loss] = [".sim-status", ".sim-bar .state", "dl.live dd[data-k=loss]"]
                .map((selector) => document.querySelector(selector).textContent);
            if (status.startsWith("Reconnected")) window.shown.push([state, loss]);
            requestAnimationFrame(note);
        };
        note();
    }""")
    with served(tmp_path, port=int(port[1])):
        expect(page.locator(".sim-status")).to_contain_text("Restarted with the same settings", timeout=60_000)
        page.wait_for_function("() => window.shown.length > 3")
        first = page.evaluate("() => window.shown[2]")  # one frame after the message
        assert first == ["writing ...", "\N{EN DASH}"], "the old worker's numbers are not shown as those of the new one"
        wait_for_updates(page, 5)
        assert address(page)["seed"] == "5"
        page.close()


def test_on_a_phone_the_plane_and_the_verdict_stay_in_view(open_page: Opened):
    page = open_page("simulator", params="play=1", width=390, height=844)
    wait_for_updates(page, 1)
    for part in (".sim-bar", ".tab-list"):
        buttons = page.locator(part).get_by_role("button").or_(page.locator(part).get_by_role("tab"))
        tops = [button.bounding_box()["y"] for button in buttons.all() if button.is_visible()]
        assert len(tops) > 3
        assert max(tops) - min(tops) < 10, tops
    page.locator("label:has(#bug-MEM001)").scroll_into_view_if_needed()
    page.mouse.wheel(0, 300)
    page.get_by_label(re.compile("^GRD001")).check()
    expect(page.locator(".plane-verdict")).to_have_text("✗ GRD001 Gradients are never cleared")
    expect(page.locator(".plane-verdict")).to_be_in_viewport(ratio=1)
    page.locator(".sim-knobs").scroll_into_view_if_needed()
    for part in (".sim-bar .play", ".board-place", ".plane-verdict"):
        expect(page.locator(part)).to_be_in_viewport(ratio=1)


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1280, True)])
def test_the_page_is_usable_on_a_phone_and_in_dark_mode(
    width: int, dark: bool, open_page: Opened, axe: Callable[[Page], None]
):
    page = open_page("simulator", params="dataset=digits&bugs=EVL001&play=1", width=width, dark=dark)
    expect(page.locator(".finding[data-code=EVL001]")).to_be_visible(timeout=60_000)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    axe(page)


def test_a_run_without_updates_shows_its_loss_and_does_not_hold_its_twin(open_page: Opened):
    page = open_page("simulator", params="bugs=OPT006&twin=1&play=1&" + LONG)
    updates = page.locator(f"{UPDATE} span")
    page.wait_for_function(f"() => parseInt(document.querySelectorAll('{UPDATE} span')[1]?.innerText) > 30")
    expect(updates.first).to_have_text(re.compile("^0"))
    expect(page.locator("dl.live dd[data-k=loss] span").first).to_have_text(re.compile("^[0-9]"))
