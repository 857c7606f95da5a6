"""The page on the six operations: the worked example, its calculations, and the graph."""
# ruff: noqa: RUF001 - arithmetic is shown as it is written

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

Opened = Callable[..., Page]


def open_operations(open_page: Opened, params: str = "", **options: object) -> Page:
    page = open_page("operations", params=params, **options)
    expect(page.locator(".line-now")).not_to_be_empty(timeout=30_000)  # the first answer waits for torch
    return page


def cells(page: Page, name: str) -> list[str]:
    return page.locator(f"[data-name='{name}'] >> table.cells >> nth=0").locator("td").all_inner_texts()


def station(page: Page, name: str) -> Locator:
    return page.locator(".stations").get_by_role("button", name=name, exact=True)


def test_the_worked_example_is_stepped_forwards_and_backwards(open_page: Opened, axe: Callable[[Page], None]):
    page = open_operations(open_page)
    on = page.get_by_role("button", name="One step forward")
    for _ in range(2):
        on.click()
    assert cells(page, "loss") == ["2.225"]
    badges = page.locator(".tensors .badge")
    expect(badges).to_have_text(["new"])  # of the loss
    on.click()
    expect(badges).to_have_text(["new", "new", "new"])
    expect(page.locator(".line-now")).to_have_text("loss.backward()")
    expect(station(page, "backward")).to_have_attribute("aria-current", "step")
    assert cells(page, "outputs.grad") == ["−1.1", "1.8"]
    assert cells(page, "model.weight") == ["0.5", "−0.3", "0.2", "0.8"]
    axe(page)
    on.click()
    assert cells(page, "model.weight") == ["0.511", "−0.278", "0.182", "0.764"]
    expect(page.locator(".calculation .numbers")).to_have_text("0.511 = 0.5 − 0.01 × −1.1")
    expect(page.locator(".code .line[class*=of-]")).to_contain_text("optimizer.step()")
    expect(page.locator("#announcements")).to_contain_text("update: The optimizer moves each weight")
    station(page, "zero grad").click()
    expect(badges).to_have_text(["set to None", "set to None"])
    station(page, "update").click()
    page.get_by_role("button", name="One step back").click()
    assert cells(page, "model.weight") == ["0.5", "−0.3", "0.2", "0.8"]
    assert cells(page, "model.weight.grad") == ["−1.1", "−2.2", "1.8", "3.6"]


def test_a_number_shows_its_calculation_by_mouse_and_keyboard(open_page: Opened):
    page = open_operations(open_page, "step=4")
    weight = page.locator("[data-name='model.weight'] >> table.cells >> nth=0")
    weight.locator("button").nth(3).hover()
    expect(page.locator(".calculation .numbers")).to_have_text("0.764 = 0.8 − 0.01 × 3.6")
    expect(page.locator("td.source")).to_have_text(["0.01", "3.6"])
    weight.locator("button").first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".calculation .numbers")).to_have_text("−0.278 = −0.3 − 0.01 × −2.2")
    page.keyboard.press("ArrowDown")
    expect(weight.locator("button").nth(3)).to_be_focused()
    assert [button.get_attribute("tabindex") for button in weight.locator("button").all()] == ["-1", "-1", "-1", "0"]


def test_the_graph_is_built_by_forward_and_released_by_backward(open_page: Opened):
    page = open_operations(open_page, "step=2")
    graph = page.locator(".graph-panel")
    expect(graph.locator(".node")).to_have_count(5)
    expect(graph.locator(".edge")).to_have_count(4)
    expect(graph.locator(".saved:not(.freed)")).to_have_count(3)
    graph.locator(".node", has_text="AddmmBackward0").focus()
    expect(graph.locator(".node-detail")).to_contain_text("■ mat1 = inputs, 8 bytes")
    station(page, "backward").click()
    expect(graph.locator(".saved.freed")).to_have_count(3)
    expect(graph).to_contain_text("released")
    bars = page.get_by_role("group", name="Bytes that the graph keeps, step by step").get_by_role("button")
    expect(bars).to_have_count(16)
    page.get_by_role("button", name=re.compile("second backward")).click()
    expect(page.locator(".torch-words")).to_contain_text("Trying to backward through the graph a second time")


def test_values_flow_forward_and_gradients_flow_back_along_the_edges(open_page: Opened):
    page = open_operations(open_page, "step=1")
    flows = page.locator(".graph .flow")
    expect(flows).to_have_count(3)  # of weight, bias, and the transposed weight
    assert set(flows.locator("text").all_text_contents()) == {
        cells(page, "model.weight")[0],
        cells(page, "model.bias")[0],
    }
    assert flows.evaluate_all("(all) => all.every((each) => each.classList.contains('of-data'))")
    page.get_by_role("button", name="One step forward").click()
    assert flows.locator("text").all_text_contents() == [cells(page, "outputs")[0]], "the loss reads the outputs"
    station(page, "backward").click()
    expect(flows).to_have_count(4)
    assert sorted(flows.locator("text").all_text_contents()) == sorted(
        cells(page, f"{name}.grad")[0] for name in ("outputs", "model.weight", "model.bias")
    )
    station(page, "update").click()
    expect(flows).to_have_count(0)


def test_it_plays_on_arrival_and_the_values_move(lab: str, browser: Browser):
    page = browser.new_page(reduced_motion="no-preference", viewport={"width": 1440, "height": 900})
    page.goto(f"{lab}#/operations")
    flow = page.locator(".graph .flow").first
    expect(flow).to_be_attached(timeout=30_000)
    places = page.evaluate("""() => new Promise((done) => {
        const places = new Set(), flow = document.querySelector(".graph .flow");
        const look = () => {
            if (!flow.isConnected) return done(places.size);
            places.add(flow.getAttribute("transform"));
            requestAnimationFrame(look);
        };
        look();
    })""")
    assert places > 3
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    tensors, graph = (page.locator(part).bounding_box() for part in (".tensors", ".graph svg"))
    assert tensors
    assert graph
    assert max(tensors["y"], graph["y"]) < 600, "tensors and graph stand under the buttons"
    page.close()


def test_the_small_network_shows_the_states_of_adam(open_page: Opened):
    page = open_operations(open_page)
    page.get_by_label("example").select_option("irises")
    expect(page.locator("[data-name='first.weight']").first).to_be_visible()
    page.get_by_label("optimizer").select_option("adam")
    expect(page.locator(".code-body")).to_contain_text("torch.optim.Adam")
    station(page, "update").click()
    expect(page.locator("[data-name='second.weight.exp_avg_sq']")).to_be_visible()
    weight = cells(page, "second.weight")
    page.reload()
    expect(page.locator(".line-now")).to_have_text("optimizer.step()")
    assert cells(page, "second.weight") == weight
    expect(page.get_by_label("example")).to_have_value("irises")


@pytest.mark.parametrize("width", [390, 1024, 1440])
def test_the_names_of_the_operations_fit(open_page: Opened, width: int):
    page = open_page("operations", width=width)
    stations = page.locator(".station")
    expect(stations).to_have_count(6)
    cut = "(all) => all.filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.innerText)"
    assert stations.evaluate_all(cut) == []


def test_a_setting_out_of_bounds_is_refused_with_a_message(open_page: Opened):
    page = open_operations(open_page, "example=irises")
    page.get_by_label("seed").fill("1000")
    expect(page.get_by_role("alert").filter(has_text="seed")).to_have_text(
        "seed is 1000. It must be a whole number from 0 to 999."
    )
    open_page.problems[:] = [each for each in open_page.problems if "400" not in each]  # type: ignore[attr-defined]
    page.get_by_label("seed").fill("7")
    expect(page.locator(".form .error")).to_be_hidden()


def test_the_page_is_usable_on_a_phone_and_in_dark_mode(open_page: Opened, axe: Callable[[Page], None]):
    page = open_operations(open_page, "example=irises&optimizer=momentum&step=7", width=360, height=740, dark=True)
    assert page.evaluate("() => document.documentElement.scrollWidth") == 360
    axe(page)
