"""compose.yaml: its structure by a reader of the specification where one is installed, and what it promises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "compose.yaml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, Any] = COMPOSE["services"]
PINS = dict(re.findall(r"^([\w.-]+)==(.+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE))


def test_it_is_what_the_specification_allows():
    compose = pytest.importorskip("compose_spec").PyCompose
    assert set(compose.from_yaml(yaml.safe_dump(COMPOSE)).service_names()) == set(SERVICES)
    with pytest.raises(ValueError, match="shm_sise"):
        compose.from_yaml(yaml.safe_dump(yaml.safe_load(TEXT.replace("shm_size", "shm_sise"))))


# The same by hand, for where there is none: every key is one of the specification's.
TOP = {"name", "services", "volumes"}
KEYS = {
    "build", "cap_drop", "command", "depends_on", "deploy", "environment", "healthcheck", "image", "ports", "profiles",
    "restart", "security_opt", "shm_size", "stop_grace_period", "volumes",
}  # fmt: skip


def test_every_key_is_one_of_composes():
    assert {key for key in COMPOSE if not key.startswith("x-")} == TOP
    for name, service in SERVICES.items():
        assert set(service) <= KEYS, name
        assert "image" in service
        for mount in service.get("volumes", []):
            assert mount.partition(":")[0] in COMPOSE["volumes"], mount
        for other, condition in service.get("depends_on", {}).items():
            assert condition == {"condition": "service_healthy"}
            assert "healthcheck" in SERVICES[other], "or nobody could wait for it"
        if isinstance(build := service.get("build"), dict):
            assert (ROOT / build["dockerfile"]).is_file()


def test_images_are_pinned_and_mlflow_is_the_version_that_is_written_with():
    for service in SERVICES.values():
        assert not service["image"].endswith(":latest")
        assert ":" in service["image"]
    assert re.search(r":\d+\.\d+", SERVICES["db"]["image"])
    assert SERVICES["mlflow"]["image"].endswith(f":{PINS['mlflow-skinny']}")


def test_runs_have_shared_memory_time_to_save_and_a_volume():
    for name in ("train", "train-gpu"):
        service = SERVICES[name]
        assert re.fullmatch(r"\d+gb", service["shm_size"])
        assert service["stop_grace_period"] == "5m"
        assert service["volumes"] == ["runs:/project/runs"]
        assert service["environment"]["TRUELOOP_STORE"].startswith("postgresql+psycopg://trueloop@db/")
    assert SERVICES["train-gpu"]["environment"]["TRUELOOP_REQUIRE_GPU"] == "1"
    [device] = SERVICES["train-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert SERVICES["train-gpu"]["profiles"] == ["gpu"], "or `up` would ask for a GPU"


def test_the_store_is_one_that_trueloop_and_mlflow_read_alike():
    from trueloop.runs.tracking import parse_target

    store = SERVICES["train"]["environment"]["TRUELOOP_STORE"]
    assert parse_target(store, Path("runs")) is not None
    assert f"--backend-store-uri={store}" in SERVICES["mlflow"]["command"]
    assert "@db/" in store
    assert store.endswith(f"/{SERVICES['db']['environment']['POSTGRES_DB']}")


def test_no_password_is_written_down_and_no_port_is_open_to_the_network():
    set_ = [word for each in SERVICES.values() for word in each.get("environment", {}).items() if "PASSWORD" in word[0]]
    assert len(set_) == 4
    assert all(value.startswith("${POSTGRES_PASSWORD:?") for _, value in set_)
    for service in SERVICES.values():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:")
        assert not {"privileged", "network_mode", "pid"} & set(service)
