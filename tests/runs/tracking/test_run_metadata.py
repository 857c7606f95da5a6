"""Test the metadata of a run: params, tags and id."""

import hashlib
import json

from trueloop.core.protocols import RunStarted
from trueloop.runs.tracking.run_metadata import make_run_metadata, parse_run_id


def run(facts, name="digits", folder="digits-1"):
    started = RunStarted(name=name, epochs=1, updates=1, start_update=0, facts=facts)
    line = json.dumps({"event": "run_started", "facts": facts}, default=str).encode() + b"\n"
    return make_run_metadata(started, folder=folder, started_s=1.5, first_line=line)


def test_settings_are_params_and_the_rest_are_tags():
    made = run({
        "config": {"optim": {"lr": 0.001, "betas": [0.9, 0.99]}, "clip": None, "name": "a"}, "options": {"width": 3},
        "git": {"commit": "abc", "dirty": True}, "data": {"train": "sha256:1"}, "parameters": 7,
        "source": {"recipe.py": "secret = 1"}, "class_names": ["a"], "command": ["trueloop"], "run_id": "0" * 32,
    })  # fmt: skip
    assert made.params == {
        "optim.lr": "0.001", "optim.betas": "[0.9, 0.99]", "clip": "null", "name": "a", "options.width": "3",
    }  # fmt: skip
    assert made.tags == {
        "mlflow.source.git.commit": "abc", "trueloop.git.commit": "abc", "trueloop.git.dirty": "true",
        "trueloop.data.train": "sha256:1", "trueloop.parameters": "7",
    }  # fmt: skip
    assert (made.run_id, made.name, made.group, made.started_ms) == ("0" * 32, "digits-1", "digits", 1500)


def test_a_long_mapping_is_one_tag_and_a_long_text_is_truncated():
    packages = {f"package-{k}": "1.0" for k in range(31)}
    tags = run({"packages": packages, "note": "x" * 6000}).tags
    assert json.loads(tags["trueloop.packages"]) == packages
    assert (len(tags["trueloop.note"]), tags["trueloop.note"][-1]) == (5000, "…")


def test_facts_of_unexpected_types_are_accepted():
    made = run({"config": "none", "options": None, "git": None, "data": {}}, name="", folder="")
    assert made.params == {}
    assert made.tags == {"trueloop.git": "null", "trueloop.data": "{}"}
    assert made.group == "run"


def test_the_fingerprint_covers_what_a_store_cannot_change():
    same = run({"config": {"a": 1}, "host": "x"}).fingerprint
    assert run({"config": {"a": 1}, "host": "y"}).fingerprint == same
    assert run({"config": {"a": 2}, "host": "x"}).fingerprint != same
    assert run({"config": {"a": 1}, "host": "x", "more": 1}).fingerprint != same


def test_only_32_hex_digits_name_a_run():
    for given in ("' OR 1=1", "0" * 31, "G" * 32, "A" * 32, None, 3, ["0" * 32], "0" * 32 + "\n"):
        line = json.dumps({"facts": {"run_id": given}}).encode() + b"\n"
        assert parse_run_id(line) == hashlib.sha256(line).hexdigest()[:32]
    assert parse_run_id(b'{"facts": {"run_id": "%s"}}\n' % (b"a1" * 16)) == "a1" * 16
    assert parse_run_id(b"nonsense\n") == hashlib.sha256(b"nonsense\n").hexdigest()[:32]
