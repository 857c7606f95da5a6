import builtins
import math
import re

import pytest
from PIL import Image

from trueloop.core.errors import MissingExtra, RunFolderError
from trueloop.core.protocols import Evaluated, UpdateRow, UpdatesDone
from trueloop.runs.curves import save_curves, svg_figures
from trueloop.runs.journal import read_journal


def colours(path):
    with Image.open(path) as file:
        image = file.convert("RGB")
    return image.size, image.getcolors(maxcolors=2**24)


def test_the_picture_shows_six_plots_in_their_colours(run, synthetic, tmp_path):
    path = tmp_path / "curves.png"
    save_curves(read_journal(run(synthetic.finished_run(skipped=(40,)))), path)
    (width, height), counted = colours(path)
    assert width > 1800
    assert height > 900
    assert len(counted) > 200
    common = {colour for count, colour in counted if count > 200}
    assert {(0x25, 0x63, 0xEB), (0xEA, 0x58, 0x0C), (0x7C, 0x3A, 0xED), (0x0D, 0x94, 0x88)} <= common
    assert max(counted)[1] == (255, 255, 255)
    assert not path.with_name("curves.png.part").exists()


@pytest.mark.parametrize("updates", [0, 1, 2])
def test_short_runs_are_drawn_too(run, synthetic, tmp_path, updates):
    history = read_journal(run([synthetic.started(), UpdatesDone(rows=list(synthetic.rows(1, updates)))]))
    save_curves(history, tmp_path / "curves.png")
    _, counted = colours(tmp_path / "curves.png")
    assert len(counted) > 10
    assert len(svg_figures(history)) == (5 if updates else 0)


def test_nonfinite_values_and_hostile_names_are_drawn(run, synthetic, tmp_path):
    name = "$\\frac{<script>\x1b[31m&\"'$ 測\udcff"
    rows = [UpdateRow(k, 1, math.nan, math.inf, 0.0, 8, 0.0, 0.5, True) for k in range(1, 4)]
    evaluated = Evaluated(update=3, epoch=1, split=name, metrics={name: 0.5}, tables={}, seconds=0.1, best=True)
    history = read_journal(run([synthetic.started(name=name), UpdatesDone(rows=rows), evaluated]))
    save_curves(history, tmp_path / "curves.png")
    assert not any("<script" in svg for svg in svg_figures(history).values())


def test_a_fragment_inherits_the_style_of_the_page(run, synthetic):
    panels = svg_figures(read_journal(run(synthetic.finished_run(skipped=(40,)))))
    assert list(panels) == ["loss", "metric_accuracy", "lr", "grad_norm", "throughput", "waiting"]
    for name, svg in panels.items():
        assert svg.startswith('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ')
        assert svg.endswith("</svg>")
        assert "currentColor" in svg
        assert "#1f2328" not in svg
        assert "font-family" not in svg
        assert "<style" not in svg
        assert "<title>" in svg
        assert re.findall(r"https?://", svg) == ["http://"]  # the namespace
        assert "#ffffff" not in svg
        ids = re.findall(r' id="([^"]+)"', svg)
        assert len(ids) == len(set(ids))
        assert all(each.startswith(name) for each in ids)
        assert set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', svg)) <= {(i, "") for i in ids} | {
            ("", i) for i in ids
        }
    assert "var(--train, #2563eb)" in panels["loss"]
    assert "var(--bad, #dc2626)" in panels["loss"]


def test_a_fragment_is_deterministic(run, synthetic):
    history = read_journal(run(synthetic.finished_run()))
    assert svg_figures(history) == svg_figures(history)


def test_a_long_run_makes_a_small_fragment(run, synthetic):
    events = [synthetic.started(1, 50_000), UpdatesDone(rows=list(synthetic.rows(1, 50_000, total=50_000)))]
    assert max(map(len, svg_figures(read_journal(run(events))).values())) < 150_000


def test_without_matplotlib_the_install_command_is_named(run, synthetic, tmp_path, monkeypatch):
    real = builtins.__import__

    def absent(name, *rest):
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    history = read_journal(run(synthetic.finished_run()))
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingExtra, match=r"pip install 'trueloop\[train\]'"):
        save_curves(history, tmp_path / "curves.png")


def test_an_unwritable_picture_raises_one_clear_error(run, synthetic, tmp_path):
    with pytest.raises(RunFolderError, match=r"The curves cannot be written to .*curves\.png: No such file"):
        save_curves(read_journal(run(synthetic.finished_run())), tmp_path / "absent" / "curves.png")
