"""Test parsing of store addresses and hiding of their secrets."""

from importlib import util
from pathlib import Path

import pytest

from trueloop.core.errors import InvalidConfig, MissingExtra
from trueloop.runs.tracking import target as module
from trueloop.runs.tracking.target import mask_secrets, parse_target


@pytest.fixture(autouse=True)
def everything_is_installed(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: name)


@pytest.mark.parametrize(
    ("url", "kind", "address", "displayed"),
    [
        ("sqlite", "mlflow", "sqlite:////r/runs/mlflow.db", "sqlite:////r/runs/mlflow.db"),
        ("sqlite:////a/b.db", "mlflow", "sqlite:////a/b.db", "sqlite:////a/b.db"),
        ("sqlite:////" + "a" * 999, "mlflow", "sqlite:////" + "a" * 999, "sqlite:////" + "a" * 999),
        ("postgresql://me@h:1/d", "mlflow", "postgresql+psycopg://me@h:1/d", "postgresql://***@h:1/d"),
        ("postgres://h/d", "mlflow", "postgresql+psycopg://h/d", "postgres://h/d"),
        ("postgresql+psycopg:///d?host=/s", "mlflow", "postgresql+psycopg:///d?host=/s", "postgresql+psycopg:///d?host=/s"),
        ("http://h:5000/", "mlflow", "http://h:5000", "http://h:5000/"),
        ("HTTPS://h/mlflow", "mlflow", "HTTPS://h/mlflow", "HTTPS://h/mlflow"),
        ("tensorboard:/t/b", "tensorboard", "/t/b", "tensorboard:/t/b"),
        ("wandb:/w", "wandb", "/w", "wandb:/w"),
    ],
)  # fmt: skip
def test_an_address_is_parsed_into_one_store(url, kind, address, displayed):
    target = parse_target(url, Path("/r/runs"))
    assert (target.kind, target.address, target.display) == (kind, address, displayed)
    assert parse_target(target.url, Path("/elsewhere")).address == address


def test_a_path_with_url_characters_is_refused():
    with pytest.raises(InvalidConfig, match="another file would be written"):
        parse_target("sqlite", Path("/r/100%20runs"))


def test_a_relative_file_is_made_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert parse_target("sqlite:///x.db", Path("runs")).address == f"sqlite:///{tmp_path}/x.db"
    assert parse_target("sqlite", Path("runs")).address == f"sqlite:///{tmp_path}/runs/mlflow.db"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "is unknown"),
        ("mlflow", "is unknown"),
        ("sqllite", "Did you mean 'sqlite'?"),
        ("postgre://h/d", "Did you mean 'postgresql'?"),
        ("mysql://h/d", "is unknown"),
        ("runs/mlflow.db", "is unknown"),
        ("sqlite://", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", "in memory"),
        ("sqlite:////a/b.db?mode=ro", "'?' in its path: '/a/b.db"),
        ("sqlite:////a%20b/c.db", "'%' in its path: '/a%20b/c.db'"),
        ("sqlite:x.db", "names no file"),
        ("sqlite:////", "is a folder"),
        ("postgresql://h", "names no database"),
        ("postgresql+psycopg2://h/d", "'psycopg2'"),
        ("postgresql:h/d", "lacks the //"),
        ("postgresql://h:port/d", "not a valid URL"),
        ("http://", "names no server"),
        ("tensorboard:", "tensorboard:FOLDER"),
        ("tensorboard", "tensorboard:FOLDER"),
        ("wandb://entity/project", "wandb:FOLDER"),
    ],
)
def test_an_invalid_address_is_explained(url, message):
    with pytest.raises(InvalidConfig) as caught:
        parse_target(url, Path("runs"))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@h/d",
        "postgresql://me:s3c%72et@h/d",
        "postgresql://h/d?password=s3cret",
        "postgresql://h/d?sslpassword=s3cret&connect_timeout=3",
        "http://me:s3cret@h:5000",
        "http://s3cret@h:5000",
        "postgresql://me:s3cret/@h/d",  # malformed: the slash must be written %2F
        "postgresql://me:s3cret@h:x/d",
        "postgresql+psycopg2://me:s3cret@h/d",
        "postgresql://me:s3cret@h",
        "mysql://me:s3cret@h/d",
        "http://me:s3cret@",
    ],
)
def test_a_password_is_never_displayed(url):
    try:
        target = parse_target(url, Path("runs"))
    except InvalidConfig as error:
        assert "s3c" not in str(error)
        assert "s3c" not in repr(error.__cause__)
        return
    for text in (
        target.display,
        repr(target),
        str(target),
        target.hide(f"no route to {url}: s3cret"),
        mask_secrets(url),
    ):
        assert "s3c" not in text, text


def test_the_sync_command_names_the_store_unless_it_has_secrets(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert parse_target("sqlite", Path("runs")).sync_command(Path("runs/a b")) == (
        "trueloop runs sync 'runs/a b' --store sqlite:///runs/mlflow.db"
    )
    assert parse_target("postgresql://me@h/d", Path("runs")).sync_command(Path("r")) == "trueloop runs sync r"


def test_a_file_path_may_contain_an_at_sign():
    assert mask_secrets("sqlite:////srv/me@work/x.db") == "sqlite:////srv/me@work/x.db"


@pytest.mark.parametrize(
    ("url", "module_name", "extra"),
    [("sqlite", "mlflow", "track"), ("postgresql://h/d", "psycopg", "track"), ("http://h", "mlflow", "track"),
     ("tensorboard:t", "tensorboard", "tensorboard"), ("wandb:w", "wandb", "wandb")],
)  # fmt: skip
def test_a_missing_extra_is_named_with_its_command(monkeypatch, url, module_name, extra):
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == module_name else util.find_spec("json"))
    with pytest.raises(MissingExtra, match=rf"pip install 'trueloop\[{extra}\]'"):
        parse_target(url, Path("runs"))
