import math
from html.parser import HTMLParser

import pytest
from PIL import Image

from trueloop.core.errors import RunFolderError
from trueloop.runs.journal import read_journal
from trueloop.runs.queries.comparison import compare_metrics, find_differences, metric_modes
from trueloop.runs.queries.pages import overlay_panels, run_panels, save_html, save_png


def test_one_panel_per_metric_and_a_curve_per_run(fake_runs):
    histories = {
        "one": read_journal(fake_runs.run("a")),
        "two": read_journal(fake_runs.run("b", losses=(0.9, 0.2), accuracies=(0.1, 0.2))),
    }
    panels = {panel.name: panel for panel in overlay_panels(histories)}
    assert list(panels) == ["train_loss", "metric_val/loss", "metric_val/accuracy", "lr", "grad_norm", "throughput"]
    loss = panels["metric_val/loss"]
    assert [(curve.label, list(curve.x), list(curve.y)) for curve in loss.curves] == [
        ("one", [2, 4, 6], [0.5, 0.3, 0.4]),
        ("two", [2, 4], [0.9, 0.2]),
    ]
    assert loss.caption == "At the end: one 0.400, two 0.200."
    assert panels["throughput"].curves[0].y[0] == 800


def test_a_run_has_the_same_colour_on_every_panel(fake_runs):
    histories = {
        "one": read_journal(fake_runs.run("a")),
        "two": read_journal(fake_runs.run("b", accuracies=(0.1, 0.2, 0.3))),
    }
    labels_and_runs = {(curve.label, curve.run) for panel in overlay_panels(histories) for curve in panel.curves}
    assert labels_and_runs == {("one", 0), ("two", 1)}


def test_curves_without_finite_values_are_not_drawn(fake_runs):
    histories = {name: read_journal(fake_runs.run(name, losses=(math.nan,))) for name in ("a", "b")}
    assert "metric_val/loss" not in {panel.name for panel in overlay_panels(histories)}
    assert overlay_panels({}) == []


class Tags(HTMLParser):
    def __init__(self, markup):
        super().__init__()
        self.seen, self.text = [], ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_two_runs_are_drawn_into_one_picture(fake_runs, tmp_path):
    histories = {name: read_journal(fake_runs.run(name)) for name in ("a", "_b")}
    save_png(histories, tmp_path / "both.png")
    with Image.open(tmp_path / "both.png") as image:
        assert image.format == "PNG"
        assert image.width > 1000
    assert [path.name for path in tmp_path.glob("*.part")] == []


def test_one_run_has_the_plots_of_its_report(fake_runs):
    names = [panel.name for panel in run_panels({"a": read_journal(fake_runs.run("a"))})]
    assert names == ["loss", "lr", "grad_norm", "throughput", "waiting"]


def test_a_page_lists_the_differences(fake_runs, tmp_path):
    one, other = (
        read_journal(fake_runs.run("a")),
        read_journal(fake_runs.run("b", losses=(0.9, 0.2), facts={"options": {"width": 64}})),
    )
    path = tmp_path / "page.html"
    histories = {"a": one, "b": other}
    metrics = compare_metrics([one, other], metric_modes([one, other]))
    save_html(histories, path, differences=find_differences([one, other]), metrics=metrics)
    page = Tags(path.read_text())
    assert [tag for tag, _ in page.seen].count("svg") == len(run_panels(histories)) == 5
    assert "2 runs side by side" in page.text
    assert "0.3000 @ 4" in page.text
    assert "options.width" in page.text
    assert not {"script", "link", "img"} & {tag for tag, _ in page.seen}


def test_hostile_names_stay_text(fake_runs, fake_runs_module, tmp_path):
    hostile, path = fake_runs_module.HOSTILE, tmp_path / "page.html"
    histories = {hostile: read_journal(fake_runs.hostile()), "b": read_journal(fake_runs.run("b"))}
    differ = find_differences(list(histories.values()))
    save_html(histories, path, differences=differ, metrics=compare_metrics(list(histories.values()), {}))
    page = Tags(path.read_text())
    assert not {"script", "img"} & {tag for tag, _ in page.seen}
    assert "<script>alert(1)</script>" in page.text
    assert "\x1b" not in path.read_text()
    save_png(histories, tmp_path / "page.png")


def test_an_unwritable_file_raises_a_clear_error(fake_runs, tmp_path):
    histories = {"a": read_journal(fake_runs.run("a", losses=()))}
    with pytest.raises(RunFolderError, match="cannot be written"):
        save_html(histories, tmp_path / "nowhere" / "page.html")
