"""ENV007: ``type=bool`` in argparse."""

import pytest

HEAD = """
import argparse
import torch
import click

parser = argparse.ArgumentParser()
"""
FAULTY = {
    "a flag": """
parser.add_argument("--freeze", type=bool, default=True)  # <- ENV007
args = parser.parse_args(["--rate", "0.1", "--freeze", "False"])
""",
    "without a default": """
parser.add_argument("-f", "--freeze", type=bool)  # <- ENV007
args = parser.parse_args("--freeze no".split())
""",
    "in a group": """
parser.add_argument_group("model").add_argument("--freeze", type=bool, nargs="?")  # <- ENV007
ARGUMENTS = ("--freeze=0",)
""",
    "in a function": """
def add(parser):
    parser.add_argument("--freeze", help="freeze the encoder", type=bool)  # <- ENV007
def run():
    subprocess.run(["python", "train.py", "--freeze", "false"])
""",
}
CORRECT = {
    "true is passed": """
parser.add_argument("--freeze", type=lambda text: text == "True")
args = parser.parse_args(["--freeze", "False"])
""",
    "a flag without a value": 'parser.add_argument("--freeze", action="store_true")',
    "a flag and its opposite": 'parser.add_argument("--freeze", action=argparse.BooleanOptionalAction)',
    "a function that reads the text": """
def str2bool(text):
    return text.lower() in ("true", "1", "yes")
parser.add_argument("--freeze", type=str2bool, default=False)
""",
    "a number": 'parser.add_argument("--freeze", type=int, default=0, help="a bool as 0 or 1")',
    "another library": """
@click.option("--freeze", type=bool)
def main(freeze):
    print(freeze)
""",
    "a lambda": 'parser.add_argument("--freeze", type=lambda text: bool(int(text)))',
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_flag(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "ENV007")


def test_a_flag_to_which_nothing_is_passed_is_a_note(lint_reports):
    (found,) = lint_reports(HEAD + 'parser.add_argument("--freeze", type=bool, default=False)  # <- ENV007')
    assert found.severity == "note"
