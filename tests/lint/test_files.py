import os

import pytest

from trueloop.lint.files import MAX_FILE_BYTES, Unreadable, decode, discover, read_bytes


def discovered(root, *paths, exclude=()):
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


def test_python_files_and_notebooks_outside_environments_are_found(tree):
    assert discovered(tree) == ["a.py", "c.ipynb", "d.pyw", "src/e.py", "src/gen/f.py"]


def test_a_named_file_is_linted_whatever_its_suffix(tree):
    assert discovered(tree, tree / "b.txt", tree / "venv") == ["b.txt", "venv/g.py"]


def test_no_file_is_yielded_twice(tree):
    assert discovered(tree, tree / "src", tree / "src" / "e.py", tree) == discovered(tree)


def test_the_innermost_gitignore_takes_precedence(tree):
    (tree / ".gitignore").write_text("gen/\n*.pyw\n")
    assert discovered(tree) == ["a.py", "c.ipynb", "src/e.py"]
    (tree / "src" / ".gitignore").write_text("!gen/\ne.py\n")
    assert discovered(tree) == ["a.py", "c.ipynb", "src/gen/f.py"]


def test_gitignore_files_of_parent_folders_apply_in_a_repository(tree):
    (tree / ".gitignore").write_text("f.py\n")
    assert discovered(tree, tree / "src") == ["src/e.py", "src/gen/f.py"], "in no repository"
    (tree / ".git").mkdir()
    assert discovered(tree, tree / "src") == ["src/e.py"]


def test_an_excluded_folder_is_searched_if_named(tree):
    (tree / ".git").mkdir()
    (tree / ".gitignore").write_text("src/\n")
    assert "src/e.py" not in discovered(tree)
    assert discovered(tree, tree / "src") == ["src/e.py", "src/gen/f.py"]
    assert discovered(tree, tree / "src" / "gen") == ["src/gen/f.py"]


def test_exclude_patterns_apply(tree):
    assert discovered(tree, exclude=["src/gen", "*.ipynb"]) == ["a.py", "d.pyw", "src/e.py"]


def test_a_cycle_of_links_terminates_and_is_reported(tree):
    files = discovered(tree)
    (tree / "src" / "loop").symlink_to(tree, target_is_directory=True)
    (tree / "twice").symlink_to(tree / "src", target_is_directory=True)
    (tree / "self").symlink_to("self")
    (tree / "gone.py").symlink_to("nowhere")
    (tree / "round.py").symlink_to("round.py")
    assert discovered(tree) == sorted([*files, "src/loop", "gone.py", "round.py"])
    with pytest.raises(Unreadable, match="a link to an enclosing folder"):
        read_bytes(tree / "src" / "loop")
    for name, words in (("gone.py", "No such file"), ("round.py", "Too many levels of symbolic links")):
        with pytest.raises(Unreadable, match=words):
            read_bytes(tree / name)


def test_a_fifo_does_not_block(tree):
    os.mkfifo(tree / "pipe.py")
    assert "pipe.py" not in discovered(tree)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"x = 1\0", "binary"),
        (b"x = '\xff'\n", "line 1: byte 0xff is not utf-8"),
        (b"# -*- coding: klingon -*-\n", "unknown encoding"),
        (b"# coding: rot13\n", "rot13 is not a text encoding"),
        (b"# coding: undefined\n", "undefined is not a text encoding"),
        (b"# coding: punycode\nx-99999999999\n", "punycode"),
        (b"x" * (MAX_FILE_BYTES + 1), "more than the limit"),
    ],
)
def test_an_undecodable_file_is_reported(content, words):
    with pytest.raises(Unreadable, match=words):
        decode(content)


@pytest.mark.parametrize(
    "content", [b"\xef\xbb\xbfx = 1\r\n", "# coding: latin-1\nx = 'é'\n".encode("latin-1"), b"x = 1\n"]
)
def test_decoding_and_encoding_round_trip(content):
    decoded = decode(content)
    assert decoded.encode(decoded.text) == content


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(Unreadable, match="No such file"):
        read_bytes(tmp_path / "gone.py")


def test_an_unreadable_folder_is_reported_and_others_are_searched(tree):
    deep = tree
    while len(str(deep)) < 4088:  # so deep that the path of "pyvenv.cfg" is too long
        deep /= "d" * min(200, 4094 - len(str(deep)) - 1)
        deep.mkdir()
    assert discovered(tree) == ["a.py", "c.ipynb", "d.pyw", "src/e.py", "src/gen/f.py"]
