"""Evidence as a condition, as text and as JSON."""

import json
import math

from trueloop.verification.evidence import Bars, Curve, Evidence, Grid, Verdict

PICTURES = (
    Curve(title="Loss", lines={"loss": [1.0, math.nan, 0.5]}, level=0.1),
    Bars(title="Rates", values={"a": 1.0, "b": math.inf}, unit="1/s"),
    Grid(title="Who", rows="output", columns="input", labels=range(2), values=[[1.0, 0.5], [0.0, 1.0]], wrong=[(0, 1)]),
)


def test_it_is_true_where_the_property_holds():
    kinds = {verdict: Evidence(verdict=verdict, message="") for verdict in Verdict}
    assert [bool(kinds[verdict]) for verdict in Verdict] == [True, False, False, False]
    assert [kinds[verdict].ok for verdict in Verdict] == [True, False, True, False]


def test_its_repr_is_what_an_assertion_shows():
    evidence = Evidence(verdict=Verdict.BROKEN, proof="input-used", message="It is not.", fix="Use it.")
    assert repr(evidence) == "<input-used: broken. It is not. Use it.>"


def test_as_data_it_is_json():
    evidence = Evidence(verdict=Verdict.HOLDS, message="Yes.", numbers={"a": math.nan}, charts=PICTURES)
    record = json.loads(json.dumps(evidence.as_dict(), allow_nan=False))
    assert record["numbers"] == {"a": "nan"}
    assert [picture["kind"] for picture in record["charts"]] == ["curve", "bars", "grid"]
    assert record["charts"][0]["lines"]["loss"] == [1.0, "nan", 0.5]
    assert record["charts"][2]["wrong"] == [[0, 1]]
