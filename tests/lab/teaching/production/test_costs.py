"""The measurements in the package are those of the benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import trueloop.lab.teaching.production as package
from trueloop.lab.teaching.production.costs import CLOCKS, MODELS, costs
from trueloop.lab.teaching.production.selection import NAMES

MEASURED = Path(__file__).parents[4] / "benchmarks" / "results" / "components.json"


def test_the_copy_in_the_package_equals_the_result_of_the_benchmark():
    measured = json.loads(MEASURED.read_text())["texts"]
    assert json.loads((Path(package.__file__).parent / "costs.json").read_text()) == measured


def test_every_component_has_its_row_in_the_order_of_the_loop():
    rows = {row.name: row for row in costs().rows}
    components = [name.split()[0] for name in rows]
    assert list(dict.fromkeys(components)) == [*NAMES, "everything,", "distributed"]
    assert {"precision bf16", "precision fp16"} < set(rows)
    assert rows["clipping"].lines == 1
    assert rows["everything, in bf16"].lines > sum(rows[name].lines for name in ("evaluation", "checkpoint", "logging"))
    assert rows["precision fp16"].title == "Autocast, fp16"


def test_the_ratios_are_those_of_the_file():
    measured = json.loads(MEASURED.read_text())["texts"]["found"]
    for row in costs().rows:
        assert list(row.ratios) == [(model, clock) for model in MODELS for clock in CLOCKS]
        for (model, clock), ratio in row.ratios.items():
            assert ratio.low <= ratio.median <= ratio.high
            assert ratio.median == measured[model][row.name][f"{clock}_ratio"]["median"]


def test_memory_and_disk_are_those_of_the_file():
    measured = json.loads(MEASURED.read_text())["texts"]["found"]
    rows = {row.name: row for row in costs().rows}
    for model in MODELS:
        minimal = measured[model]["minimal loop"]
        for name, row in rows.items():
            assert row.memory_bytes[model] == measured[model][name]["memory_bytes"] - minimal["memory_bytes"]
            assert row.disk_bytes[model] == measured[model][name]["disk_bytes"]
        assert rows["seeding"].memory_bytes[model] == 0
        assert rows["early_stopping"].memory_bytes[model] > 0, "a copy of the weights"
        assert rows["distributed"].memory_bytes[model] > 0, "the buckets of the gradients"
        assert {name for name, row in rows.items() if row.disk_bytes[model]} == {
            "checkpoint", "logging", "everything, in bf16"
        }  # fmt: skip


def test_the_origin_of_the_measurements_is_stated():
    machine = json.loads(MEASURED.read_text())["texts"]["machine"]
    assert machine["cpu"] in costs().measured_on
    assert machine["versions"]["torch"] in costs().measured_on
    assert machine["date"] in costs().measured_on
