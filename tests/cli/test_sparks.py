import math

from trueloop.cli.sparks import BLOCKS, draw_panel, sparkline
from trueloop.runs.panels import Curve, Panel


def curve(label, x, y, kind="line"):
    return Curve(label=label, role="train", kind=kind, x=x, y=y)


def panel(*curves, **more):
    return Panel(name="p", title="Loss", caption="", curves=curves, **more)


def test_all_curves_share_one_scale():
    title, falling, flat = draw_panel(panel(curve("a", [1, 2, 3, 4], [4, 3, 2, 1]), curve("b", [1, 4], [1, 1])), 46)
    assert title == "Loss  (updates 1 to 4)"
    assert falling.startswith("  a  ")
    assert falling.endswith("1.000 to 4.000, last 1.000")
    blocks = "".join(char for char in falling if char in BLOCKS)
    assert blocks[0] == "█"
    assert blocks[-1] == "▁"
    assert sorted(blocks, reverse=True) == list(blocks)
    assert {char for char in flat if char in BLOCKS} == {"▁"}
    assert len(falling) == len(flat)


def test_a_shorter_run_ends_earlier():
    _, short, long = draw_panel(panel(curve("s", [1, 5], [1, 2]), curve("l", [1, 10], [1, 2])), 80)
    assert short.index("1.000 to") == long.index("1.000 to")
    assert short.count("█") + short.count("▁") < long.count("█") + long.count("▁")


def test_constants_log_scales_and_raw_curves_are_drawn():
    (_, line) = draw_panel(panel(curve("c", [1, 2], [3, 3]), curve("raw", [1], [9], kind="raw")), 60)
    assert "▅" in line
    title, line = draw_panel(panel(curve("g", [1, 2, 3], [0.001, 1, 1000]), log=True), 60)
    assert title.endswith(", log scale)")
    assert "▅" in line


def test_names_cannot_control_the_terminal():
    lines = list(draw_panel(panel(curve("\x1b[31m" + "x" * 50, [1], [0.5])), 80))
    assert all(line.isprintable() for line in lines)
    assert "…" in lines[1]
    assert math.isclose(float(lines[1].split()[-1]), 0.5)


def test_sparklines_run_from_the_lowest_to_the_highest_value():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == BLOCKS
    assert sparkline([0.1 + 0.2, 0.3]) == "▁▁"
    assert sparkline([]) == ""
