"""LOS020: targets of the CTC loss that contain the blank."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 6)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
frames = torch.full((16,), 12)


def update(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


for step in range(12):
    log_probs = model(torch.randn(12, 16, 8)).log_softmax(2)
"""

FAULTY = {
    "the first symbol is 0": """
    targets = torch.randint(5, (16, 4))
    update(nn.CTCLoss()(log_probs, targets, frames, torch.full((16,), 4)))  # <- LOS020
""",
    "concatenated targets, function": """
    targets = torch.randint(5, (40,))
    lengths = [3] * 8 + [2] * 8
    update(F.ctc_loss(log_probs, targets, [12] * 16, lengths, zero_infinity=True))  # <- LOS020
""",
    "padding within the target lengths": """
    targets = torch.randint(1, 6, (16, 4))
    targets[:, 3] = 0
    update(F.ctc_loss(log_probs, targets, frames, torch.full((16,), 4)))  # <- LOS020
""",
    "the blank is the last class, and so is a symbol": """
    targets = torch.randint(6, (16, 4))
    update(F.ctc_loss(log_probs, targets, frames, torch.full((16,), 4), blank=5))  # <- LOS020
""",
}
CORRECT = {
    "symbols from 1": """
    targets = torch.randint(1, 6, (16, 4))
    update(nn.CTCLoss()(log_probs, targets, frames, torch.full((16,), 4)))
""",
    "the blank is the last class": """
    targets = torch.randint(5, (16, 4))
    update(nn.CTCLoss(blank=5)(log_probs, targets, frames, torch.full((16,), 4)))
""",
    "padding behind the lengths": """
    lengths = torch.randint(1, 5, (16,))
    targets = torch.randint(1, 6, (16, 4)) * (torch.arange(4) < lengths[:, None])
    update(F.ctc_loss(log_probs, targets, frames, lengths))
""",
    "a sample without symbols": """
    lengths = torch.tensor([0] + [4] * 15)
    targets = torch.randint(1, 6, (16, 4))
    targets[0] = 0
    update(F.ctc_loss(log_probs, targets, frames, lengths))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


LINT_HEAD = """
import string
import torch
from torch import nn
import torch.nn.functional as F
{table}
def batch(n=4):
    words = ["abba", "cab", "bad", "dad"]
    targets = [torch.tensor({encode}) for word in words]
    return torch.randn(12, n, 8), torch.cat(targets), torch.tensor([len(t) for t in targets])
model = nn.Linear(8, {classes})
ctc = {loss}
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    x, y, sizes = batch()
    loss = ctc(model(x).log_softmax(2), y, torch.full((4,), 12), sizes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
SUBSCRIPT = "[char_to_id[c] for c in word]"


def program(table, encode=SUBSCRIPT, loss="nn.CTCLoss()", classes="5"):
    return LINT_HEAD.format(table=table, encode=encode, loss=loss, classes=classes)


OWN_LETTERS = """
class Codec:
    def __init__(self, letters="{first}"):
        self.letters = letters
        self.ids = {{c: i for i, c in enumerate({read})}}{mark}
    def encode(self, word):
        return [self.ids[c] for c in word]
codec = Codec()
"""
LINT_FAULTY = {
    "the default of a parameter": program(
        OWN_LETTERS.format(first="abcd", read="letters", mark="  # <- LOS020"), encode="codec.encode(word)"
    ),
    "an attribute with the default": program(
        OWN_LETTERS.format(first="abcd", read="self.letters", mark="  # <- LOS020"), encode="codec.encode(word)"
    ),
    "a literal": program('char_to_id = {c: i for i, c in enumerate("abcd")}  # <- LOS020'),
    "a constant, blank by name": program(
        'ALPHABET = "abcd"\nBLANK = 0\nchar_to_id = {ch: k for k, ch in enumerate(ALPHABET)}  # <- LOS020',
        loss="nn.CTCLoss(blank=BLANK, zero_infinity=True)",
    ),
    "letters of the module string": program(
        "char_to_id = dict((c, i) for i, c in enumerate(string.ascii_lowercase))  # <- LOS020", classes="27"
    ),
    "zip and range": program('symbols = list("abcd")\n'
                               'char_to_id = dict(zip(symbols, range(len(symbols))))  # <- LOS020'),
    "symbols of a text": program(
        'text = "abbacabbaddad"\nvocab = sorted(set(text))\n'
        'char_to_id = {c: i for i, c in enumerate(vocab)}  # <- LOS020'
    ),
    "a loop": program('char_to_id = {}\nfor i, c in enumerate("abcd"):\n    char_to_id[c] = i  # <- LOS020'),
    "positions": program('letters = "abcd"').replace(SUBSCRIPT, "[letters.index(c) for c in word]").replace(
        "for word in words]\n", "for word in words]  # <- LOS020\n"
    ),
    "code points": program("").replace(SUBSCRIPT, "[ord(c) - ord('a') for c in word]").replace(
        "for word in words]\n", "for word in words]  # <- LOS020\n"
    ),
    "a class, the function": program("""
class Codec:
    def __init__(self, letters):
        self.ids = {c: i for i, c in enumerate(letters)}  # <- LOS020
    def encode(self, word):
        return [self.ids[c] for c in word]
codec = Codec("abcd")
def ctc_of(p, t, a, b):
    return F.ctc_loss(p, t, a, b, blank=0)
""", encode="codec.encode(word)", loss="ctc_of"),
}  # fmt: skip
RANDOM = program("").replace("torch.cat(targets)", "torch.randint({numbers}, (sum(map(len, words)),))")
LINT_FAULTY["random numbers"] = (
    RANDOM.format(numbers="0, 5")
    .replace(
        "loss = ctc(model(x).log_softmax(2), y,", "loss = ctc(model(x).log_softmax(2), torch.randint(0, 5, (4, 3)),"
    )
    .replace("12), sizes)", "12), sizes)  # <- LOS020")
)
LINT_CORRECT = {
    "a default with a blank first": program(
        OWN_LETTERS.format(first="-abcd", read="letters", mark=""), encode="codec.encode(word)"
    ),
    "a default that is not used": program(
        OWN_LETTERS.format(first="abcd", read="letters", mark="").replace("Codec()", 'Codec("_abcd")'),
        encode="codec.encode(word)",
    ),
    "random numbers from 1": RANDOM.format(numbers="1, 5"),
    "a start": program('char_to_id = {c: i for i, c in enumerate("abcd", 1)}'),
    "start=1": program('char_to_id = {c: i for i, c in enumerate("abcd", start=1)}'),
    "plus 1": program('char_to_id = {c: i + 1 for i, c in enumerate("abcd")}'),
    "plus 1 where it is used": program(
        'char_to_id = {c: i for i, c in enumerate("abcd")}', encode="[char_to_id[c] + 1 for c in word]"
    ),
    "targets plus 1": program('char_to_id = {c: i for i, c in enumerate("abcd")}').replace(
        "torch.cat(targets)", "torch.cat(targets) + 1"
    ),
    "a blank first": program('char_to_id = {c: i for i, c in enumerate("-abcd")}'),
    "a named blank first": program('char_to_id = {c: i for i, c in enumerate(["<blank>", *"abcd"])}'),
    "a blank word first": program('char_to_id = {c: i for i, c in enumerate(["blank"] + list("abcd"))}'),
    "a capital letter for the blank": program('vocab = "B abcd"\nchar_to_id = {c: i for i, c in enumerate(vocab)}'),
    "epsilon": program('char_to_id = {c: i for i, c in enumerate("\N{GREEK SMALL LETTER EPSILON}abcd")}'),
    "the blank is last": program(
        'letters = "abcd"\nchar_to_id = {c: i for i, c in enumerate(letters)}', loss="nn.CTCLoss(blank=len(letters))"
    ),
    "the blank is 4": program('char_to_id = {c: i for i, c in enumerate("abcd")}', loss="nn.CTCLoss(4)"),
    "inserted": program(
        'letters = sorted(set("abcd"))\nletters.insert(0, "~")\nchar_to_id = {c: i for i, c in enumerate(letters)}'
    ),
    "unknown symbols": program(
        "import json, sys\nchar_to_id = {c: i for i, c in enumerate(json.loads(sys.argv[1]))} if sys.argv[1:] else "
        '{"a": 1, "b": 2, "c": 3, "d": 4}'
    ),
    "plus 1 by position": program('letters = "abcd"', encode="[letters.index(c) + 1 for c in word]"),
    "a decoder": program(
        'char_to_id = {c: i for i, c in enumerate("abcd", 1)}\nnames = {i: c for i, c in enumerate("_abcd")}'
    ),
    "another loss": program('char_to_id = {c: i for i, c in enumerate("abcd")}', loss="lambda p, t, a, b: p.mean()"),
}


@pytest.mark.parametrize("script", LINT_FAULTY.values(), ids=LINT_FAULTY)
def test_lint_reports_symbols_numbered_from_0(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", LINT_CORRECT.values(), ids=LINT_CORRECT)
def test_lint_accepts_other_numbers(lint_is_clean, script):
    lint_is_clean(script, "LOS020")
