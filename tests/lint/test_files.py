import os

import pytest

from trueloop.lint.files import MAX_FILE_BYTES, Unreadable, read_bytes, decode, discover


def found(root, *paths, exclude=()):
    return sorted(path.relative_to(root).as_posix() for path in discover(paths or (root,), exclude=exclude))


@pytest.fixture
def tree(tmp_path):
    for name in (
        "a.py",
        "b.txt",
        "c.ipynb",
        "d.pyw",
        "src/e.py",
        "src/gen/f.py",
        "venv/g.py",
        "own/h.py",
        "own/pyvenv.cfg",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return tmp_path


def test_python_files_and_notebooks_are_found_but_not_those_of_environments(tree):
    assert found(tree) == ["a.py", "c.ipynb", "d.pyw", "src/e.py", "src/gen/f.py"]


def test_what_is_named_is_looked_at_whatever_it_is_called(tree):
    assert found(tree, tree / "b.txt", tree / "venv") == ["b.txt", "venv/g.py"]


def test_no_file_comes_twice(tree):
    assert found(tree, tree / "src", tree / "src" / "e.py", tree) == found(tree)


def test_gitignore_is_respected_the_nearest_one_having_the_last_word(tree):
    (tree / ".gitignore").write_text("gen/\n*.pyw\n")
    assert found(tree) == ["a.py", "c.ipynb", "src/e.py"]
    (tree / "src" / ".gitignore").write_text("!gen/\ne.py\n")
    assert found(tree) == ["a.py", "c.ipynb", "src/gen/f.py"]


def test_gitignore_files_above_count_within_a_repository(tree):
    (tree / ".gitignore").write_text("f.py\n")
    assert found(tree, tree / "src") == ["src/e.py", "src/gen/f.py"], "in no repository"
    (tree / ".git").mkdir()
    assert found(tree, tree / "src") == ["src/e.py"]


def test_a_folder_that_is_left_out_is_looked_at_where_it_is_named(tree):
    (tree / ".git").mkdir()
    (tree / ".gitignore").write_text("src/\n")
    assert "src/e.py" not in found(tree)
    assert found(tree, tree / "src") == ["src/e.py", "src/gen/f.py"]
    assert found(tree, tree / "src" / "gen") == ["src/gen/f.py"]


def test_the_settings_leave_out_more(tree):
    assert found(tree, exclude=["src/gen", "*.ipynb"]) == ["a.py", "d.pyw", "src/e.py"]


def test_a_loop_of_links_ends_and_is_named(tree):
    files = found(tree)
    (tree / "src" / "loop").symlink_to(tree, target_is_directory=True)
    (tree / "twice").symlink_to(tree / "src", target_is_directory=True)
    (tree / "self").symlink_to("self")
    (tree / "gone.py").symlink_to("nowhere")
    (tree / "round.py").symlink_to("round.py")
    assert found(tree) == sorted([*files, "src/loop", "gone.py", "round.py"])
    with pytest.raises(Unreadable, match="a folder within itself"):
        read_bytes(tree / "src" / "loop")
    for name, words in (("gone.py", "No such file"), ("round.py", "Too many levels of symbolic links")):
        with pytest.raises(Unreadable, match=words):
            read_bytes(tree / name)


def test_a_fifo_is_not_waited_for(tree):
    os.mkfifo(tree / "pipe.py")
    assert "pipe.py" not in found(tree)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"x = 1\0", "binary"),
        (b"x = '\xff'\n", "line 1: byte 0xff is not utf-8"),
        (b"# -*- coding: klingon -*-\n", "unknown encoding"),
        (b"# coding: rot13\n", "rot13 is none of texts"),
        (b"# coding: undefined\n", "undefined is none of texts"),
        (b"# coding: punycode\nx-99999999999\n", "punycode"),
        (b"x" * (MAX_FILE_BYTES + 1), "nobody wrote this by hand"),
    ],
)
def test_what_cannot_be_read_is_said(content, words):
    with pytest.raises(Unreadable, match=words):
        decode(content)


@pytest.mark.parametrize(
    "content", [b"\xef\xbb\xbfx = 1\r\n", "# coding: latin-1\nx = 'é'\n".encode("latin-1"), b"x = 1\n"]
)
def test_a_text_is_written_back_as_it_was(content):
    decoded = decode(content)
    assert decoded.encode(decoded.text) == content


def test_a_file_that_is_gone_is_said(tmp_path):
    with pytest.raises(Unreadable, match="No such file"):
        read_bytes(tmp_path / "gone.py")


def test_a_folder_that_nobody_may_look_into_is_named_and_the_others_are_read(tree):
    deep = tree
    while len(str(deep)) < 4088:  # so deep that "pyvenv.cfg" in it is no path any more
        deep /= "d" * min(200, 4094 - len(str(deep)) - 1)
        deep.mkdir()
    assert found(tree) == ["a.py", "c.ipynb", "d.pyw", "src/e.py", "src/gen/f.py"]
