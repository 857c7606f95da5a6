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
FAULTY |= {
    "store_true and the default True": """
parser.add_argument("--mixed-precision", action="store_true", default=True)  # <- ENV007
args = parser.parse_args()
dtype = torch.bfloat16 if args.mixed_precision else torch.float32
""",
    "another destination, in a function": """
def options(parser):
    parser.add_argument("-s", "--shuffle", default=True, dest="mix", action="store_true", help="mix")  # <- ENV007
    return parser.parse_args()
def main():
    settings = options(parser)
    if settings.mix:
        print("mixed")
""",
    "every text, and the default True": """
parser.add_argument("--augment", type=bool, default=True, help="flip images")  # <- ENV007
args = parser.parse_args()
if args.augment:
    print("flipped")
""",
    "the default False": """
parser.add_argument("--toy", type=bool, default=False)  # <- ENV007
args = parser.parse_args()
rows = 100 if args.toy else 10000
""",
    "in a class": """
class Options:
    def __init__(self):
        self.parser = argparse.ArgumentParser()
        self.parser.add_argument("--pretrained", action="store_true", default=True)  # <- ENV007
        self.opt = self.parser.parse_args()
    def build(self):
        return torch.hub.load("a", "b") if self.opt.pretrained else None
""",
}
CORRECT = {
    "an option that switches it off": """
parser.add_argument("--mixed", action="store_true", default=True)
parser.add_argument("--no-mixed", action="store_false", dest="mixed")
args = parser.parse_args()
print(args.mixed)
""",
    "a default that is set": """
parser.add_argument("--mixed", action="store_true", default=True)
parser.set_defaults(mixed=False)
args = parser.parse_args()
print(args.mixed)
""",
    "the program switches it off": """
parser.add_argument("--mixed", action="store_true", default=True)
args = parser.parse_args()
if not torch.cuda.is_available():
    args.mixed = False
print(args.mixed)
""",
    "store_false and the default True": """
parser.add_argument("--no-mixed", action="store_false", default=True, dest="mixed")
parser.add_argument("--mixed-too", action="store_true", default=False)
args = parser.parse_args()
print(args.mixed, args.mixed_too)
""",
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


def test_a_flag_to_which_nothing_is_passed_is_a_warning(lint_reports):
    (found,) = lint_reports(HEAD + 'parser.add_argument("--freeze", type=bool, default=False)  # <- ENV007')
    assert found.severity == "warning"


TEXTS_AS_FLAGS = {
    "an argument": """
import sys
resume = bool(sys.argv[1])  # <- ENV007
""",
    "an argument through a variable": """
from sys import argv
text = argv[2]
render = bool(text) if len(argv) > 2 else False  # <- ENV007
""",
    "the environment with a default": """
import os
amp = bool(os.environ.get("USE_AMP", "0"))  # <- ENV007
""",
    "getenv": """
from os import getenv
amp = bool(getenv("USE_AMP", "False"))  # <- ENV007
""",
}
TEXTS_THAT_ARE_READ = {
    "a number": "import sys\nresume = bool(int(sys.argv[1]))\n",
    "a comparison": "import sys\nresume = bool(sys.argv[1] == 'True')\n",
    "whether there are arguments": "import sys\nresume = bool(sys.argv[1:]) or bool(len(sys.argv))\n",
    "whether a variable is set": "import os\ndebug = bool(os.environ.get('DEBUG')) or bool(os.environ.get('B', ''))\n",
    "another list": "import sys\nvalues = [1, 0]\nresume = bool(values[1])\n",
}


@pytest.mark.parametrize("script", TEXTS_AS_FLAGS.values(), ids=TEXTS_AS_FLAGS)
def test_lint_reports_texts_as_flags(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", TEXTS_THAT_ARE_READ.values(), ids=TEXTS_THAT_ARE_READ)
def test_lint_ignores_texts_that_are_read(lint_is_clean, script):
    lint_is_clean(script, "ENV007")


ALWAYS = {
    "a text": """
if name == "cifar10" or "cifar100":  # <- ENV007
    classes = 10
""",
    "in brackets, negated": """
flip = 0.5 if not (name != "mnist" and "svhn") else 0.0  # <- ENV007
""",
    "numbers in a method": """
class Net(torch.nn.Module):
    def forward(self, x):
        while self.depth == 18 or 34:  # <- ENV007
            x = self.block(x)
        return x
""",
    "classes": """
def predict(criterion, x):
    if criterion == torch.nn.BCEWithLogitsLoss or torch.nn.BCELoss:  # <- ENV007
        x = torch.sigmoid(x)
    return x
""",
    "membership": """
files = [each for each in names if "train" or "valid" in each]  # <- ENV007
""",
    "kinds of layers": """
def init_weights(m):
    if type(m) == torch.nn.Conv2d or torch.nn.Linear:  # <- ENV007
        torch.nn.init.xavier_uniform_(m.weight)
    if isinstance(m, torch.nn.BatchNorm1d or torch.nn.BatchNorm2d):  # <- ENV007
        torch.nn.init.ones_(m.weight)
    elif isinstance(m, torch.nn.LSTM) or torch.nn.GRU:  # <- ENV007
        print(m)
""",
    "the value of or": """
if name == ("train" or "valid"):  # <- ENV007
    print(name)
""",
}

COMPARED = {
    "each value": """
if name == "cifar10" or name == "cifar100" or name in ("svhn", "mnist"):
    classes = 10
""",
    "a default": """
name = name or "cifar10"
title = name == "svhn" and "numbers" or "pictures"
print(name == "svhn" or "no numbers")
""",
    "a switch for trials": """
if name == "svhn" or True:
    print(name)
while 1 and name == "svhn":
    break
if 1 or depth == 3:
    print(depth)
""",
    "other conditions": """
if name == "svhn" or use_cuda or settings.train:
    print(name)
if name and "svhn" in name:
    print(name)
""",
    "a message": """
assert name == "svhn" and "only numbers"
""",
    "a tuple of classes": """
if isinstance(layer, (torch.nn.Linear, torch.nn.Conv2d)) or type(layer) in (torch.nn.LSTM, torch.nn.GRU):
    print(layer)
""",
    "instances": """
if isinstance(layer, torch.nn.Linear) or isinstance(layer, torch.nn.Conv2d):
    print(layer)
if kind is torch.nn.Linear or kind is torch.nn.Conv2d:
    print(kind)
""",
    "the length of a text": """
if len(name) == 3 or name.startswith("c"):
    print(name)
""",
}


@pytest.mark.parametrize("script", ALWAYS.values(), ids=ALWAYS)
def test_lint_reports_conditions_that_are_always_true(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", COMPARED.values(), ids=COMPARED)
def test_lint_accepts_other_conditions(lint_is_clean, script):
    lint_is_clean(HEAD + script, "ENV007")


WITHOUT_EFFECT = {
    "memory": """
parser.add_argument("--pin-mem", type=bool, default=True)
args = parser.parse_args()
print(args.pin_mem)
""",
    "the kind of GPU": """
parser.add_argument("--use_volta32", action="store_true", default=True)
args = parser.parse_args()
print(args.use_volta32)
""",
    "downloads": """
parser.add_argument("--download", type=bool, default=True)
args = parser.parse_args()
print(args.download)
""",
    "never read": """
parser.add_argument("--skip", type=bool, default=True)
parser.add_argument("--rate", type=float)
args = parser.parse_args()
print(args.rate)
""",
    "set by the program": """
parser.add_argument("--mutual", type=bool, default=False)
args = parser.parse_args()
if found:
    args.mutual = False
else:
    args.mutual = True
print(args.mutual)
""",
}
WITH_EFFECT = {
    "read by another name": """
parser.add_argument("--skip", type=bool, default=True)  # <- ENV007
parser.add_argument("--rate", type=float)
args = parser.parse_args()
print(args.rate, getattr(args, "skip"))
""",
    "all settings are passed on": """
parser.add_argument("--skip", type=bool, default=True)  # <- ENV007
parser.add_argument("--rate", type=float)
args = parser.parse_args()
run(args.rate, **vars(args))
""",
    "switched off in one case": """
parser.add_argument("--mutual", type=bool, default=True)  # <- ENV007
args = parser.parse_args()
if missing:
    args.mutual = False
print(args.mutual)
""",
}


@pytest.mark.parametrize("script", WITHOUT_EFFECT.values(), ids=WITHOUT_EFFECT)
def test_lint_ignores_flags_without_an_effect(lint_codes, script):
    assert "ENV007" not in lint_codes(HEAD + script)


@pytest.mark.parametrize("script", WITH_EFFECT.values(), ids=WITH_EFFECT)
def test_lint_reports_flags_with_an_effect(lint_reports, script):
    lint_reports(HEAD + script)
