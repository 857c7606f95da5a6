import shutil

import pytest

from trueloop.core.errors import RunFolderError
from trueloop.runs.queries.overview import read_overview
from trueloop.runs.queries.resolve import find_run


@pytest.fixture
def here(fake_runs, monkeypatch, tmp_path):
    fake_runs.run("digits-1")
    fake_runs.run("digits-10")
    fake_runs.run("text-1")
    monkeypatch.chdir(tmp_path)
    return fake_runs


def test_a_path_a_name_a_prefix_and_an_id_find_a_run(here, tmp_path):
    root = here.root
    assert find_run(str(root / "text-1"), root) == root / "text-1"
    assert find_run("runs/text-1", root) == tmp_path.relative_to(tmp_path) / "runs" / "text-1"
    assert find_run("digits-1", root) == root / "digits-1", "a whole name is never taken for a beginning"
    assert find_run("te", root) == root / "text-1"
    run_id = read_overview(root / "text-1").run_id
    assert find_run(run_id[:9], root) == root / "text-1"


def test_a_folder_in_the_working_directory_is_the_fallback(here, tmp_path):
    shutil.copytree(here.root / "text-1", tmp_path / "mine")
    assert find_run("mine", here.root).resolve() == tmp_path / "mine"


def test_several_matches_are_listed(here):
    with pytest.raises(RunFolderError, match="'dig' matches 2 runs: digits-1, digits-10"):
        find_run("dig", here.root)


def test_an_unknown_run_suggests_the_most_similar(here):
    with pytest.raises(RunFolderError) as caught:
        find_run("digit-1", here.root)
    assert caught.value.fix == "Did you mean 'digits-1'?"
    with pytest.raises(RunFolderError) as caught:
        find_run("zzzzz", here.root)
    assert caught.value.fix.startswith("`trueloop runs list --root ")
    with pytest.raises(RunFolderError, match="There is no run 'x'") as caught:
        find_run("x", here.root / "nowhere")
    assert "There are no runs in" in caught.value.fix


@pytest.mark.parametrize("word", ["../x", "../../etc", "a/../../x", "..", ".", "/etc", "/", "./../x", "../runs"])
def test_a_name_that_leaves_the_root_is_refused(here, word):
    with pytest.raises(RunFolderError, match="leads out of"):
        find_run(word, here.root)


@pytest.mark.parametrize("word", ["", "a\0b", "x" * 5000, "a/b", "\x1b[31m"])
def test_an_invalid_name_is_unknown(here, word):
    with pytest.raises(RunFolderError, match="There is no run"):
        find_run(word, here.root)


def test_a_link_out_of_the_root_is_refused_and_one_within_is_followed(here, tmp_path):
    shutil.copytree(here.root / "text-1", tmp_path / "outside")
    (here.root / "out").symlink_to(tmp_path / "outside")
    (here.root / "in").symlink_to("text-1")
    with pytest.raises(RunFolderError, match="leads out of"):
        find_run("out", here.root)
    assert find_run("in", here.root) == here.root / "in"
    assert find_run(str(tmp_path / "outside"), here.root) == tmp_path / "outside", "its own path is the user's word"
