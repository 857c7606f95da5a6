"""MDL021: positional encodings along the batch."""

import pytest

ENCODING = """
import torch
from torch import nn

class PositionalEncoding(nn.Module):
    def __init__(self, d, max_len=500):
        super().__init__()
        position = torch.arange(max_len).unsqueeze(1)
        PE
        self.register_buffer("pe", pe)

    def forward(self, x):
        FORWARD

class Net(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.pos = PositionalEncoding(d)
        self.layer = nn.TransformerEncoderLayer(d, 4, 64OPTION)

    def forward(self, x):
        return self.layer(CALL)
"""


def encoding(forward, pe="pe = torch.zeros(max_len, 1, d)", option=", batch_first=True", call="self.pos(x)"):
    text = ENCODING.replace("FORWARD", forward).replace("OPTION", option).replace("CALL", call)
    return text.replace("        PE\n", "".join(f"        {line}\n" for line in pe.split("; ")))


NUMBERED = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, d=32, longest=512):
        super().__init__()
        self.token, self.place = nn.Embedding(6, d), nn.Embedding(longest, d)
        self.encoder = nn.TransformerEncoderLayer(d, 4, 64OPTION)

    def forward(self, c):
        FORWARD
        return self.encoder(h)
"""
SUM = "self.token(c) + self.place(rank)"


def numbered(forward, option=", batch_first=True"):
    return NUMBERED.replace("FORWARD", forward).replace("OPTION", option)


HIT = "  # <- MDL021"
FAULTY = {
    "the time-first tutorial": encoding(f"return x + self.pe[:x.size(0)]{HIT}"),
    "scaled, with dropout": encoding(f"return self.drop(x * 5.6 + self.pe[:x.shape[0], :]){HIT}"),
    "through variables": encoding(f"n, t, d = x.shape\n        x += self.pe[:n].to(x.device){HIT}\n        return x"),
    "Variable": encoding(
        f"return x + Variable(self.pe[:len(x)], requires_grad=False){HIT}",
        pe="pe = torch.zeros(max_len, d); pe = pe.unsqueeze(0).transpose(0, 1)",
    ),
    "batch-first encoding, time-first layers": encoding(
        f"return x + self.pe[:, :x.size(1)]{HIT}", pe="pe = torch.zeros(1, max_len, d)", option=""
    ),
    "in the model itself": """
class Net(nn.Module):
    def __init__(self, d=32, max_len=100):
        super().__init__()
        self.pos_emb = nn.Parameter(torch.randn(max_len, 1, d))
        layer = nn.TransformerEncoderLayer(d, 4, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 2)

    def forward(self, tokens):
        x = self.emb(tokens)
        length = x.size(0)
        return self.enc(x + self.pos_emb[:length])  # <- MDL021
""",
    "embedded numbers": numbered(f"rank = torch.arange(c.size(0)).unsqueeze(1)\n        h = {SUM}{HIT}"),
    "embedded numbers, with sizes in variables": numbered(
        f"n, t = c.shape\n        rank = torch.arange(0, n)[:, None].expand(n, t)\n        h = {SUM}{HIT}"
    ),
    "embedded numbers, added later": numbered(
        f"h = self.token(c)\n        p = self.place(torch.arange(len(c)).view(-1, 1))\n        h = h + p{HIT}"
    ),
    "embedded numbers of time-first layers": numbered(
        f"rank = torch.arange(c.shape[1])\n        rank = rank.unsqueeze(0)\n        h = {SUM}{HIT}", option=""
    ),
}
WRAPPED = """
class TimeFirst(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.attention = nn.MultiheadAttention(d, 4)

    def forward(self, x):
        x = x.transpose(0, 1)
        return self.attention(x, x, x)[0].transpose(0, 1)
"""
CORRECT = {
    "an attention layer in a class that exchanges the dimensions": encoding(
        "return x + self.pe[:, :x.size(1)]", pe="pe = torch.zeros(1, max_len, d)", option=""
    ).replace("nn.TransformerEncoderLayer(d, 4, 64)", "TimeFirst(d)")
    + WRAPPED,
    "embedded positions": numbered(f"rank = torch.arange(c.size(1)).unsqueeze(0)\n        h = {SUM}"),
    "embedded positions, by the shape": numbered(
        f"n, t = c.shape\n        rank = torch.arange(t).repeat(n, 1)\n        h = {SUM}"
    ),
    "embedded positions, time first": numbered(
        f"rank = torch.arange(c.size(0)).unsqueeze(1)\n        h = {SUM}", option=""
    ),
    "embedded positions of a single sequence": numbered(f"rank = torch.arange(c.size(0))\n        h = {SUM}"),
    "embedded positions of another tensor": numbered(
        f"rank = torch.arange(self.steps.size(0)).unsqueeze(1)\n        h = {SUM}"
    ),
    "rows of the batch": numbered(
        "rows = torch.arange(c.size(0)).unsqueeze(1)\n        h = self.token(c) + self.place(self.ranks)[rows, c]"
    ),
    "time-first throughout": encoding("return x + self.pe[:x.size(0)]", option=""),
    "batch-first throughout": encoding("return x + self.pe[:, :x.size(1)]", pe="pe = torch.zeros(1, max_len, d)"),
    "transposed encoding": encoding("return x + self.pe[:x.size(1)].transpose(0, 1)"),
    "transposed around the call": encoding(
        "return x + self.pe[:x.size(0)]", call="self.pos(x.transpose(0, 1)).transpose(0, 1)"
    ),
    "an encoding of two dimensions": encoding("return x + self.pe[:x.size(0)]", pe="pe = torch.zeros(max_len, d)"),
    "the length of another tensor": encoding("return x + self.pe[:self.reference.size(0)]"),
    "a class of the program with the name of a layer": encoding(
        "return x + self.pe[:, :x.size(1)]", pe="pe = torch.zeros(1, max_len, d)", option=""
    ).replace("nn.TransformerEncoderLayer", "TransformerEncoderLayer")
    + """
class TransformerEncoderLayer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x):
        return (self.q(x) @ self.k(x).mT).softmax(-1) @ self.v(x)
""",
    "unknown layout": encoding("return x + self.pe[:x.size(0)]", option=", batch_first=self.batch_first"),
    "an encoding for each image of the batch": encoding("return x + self.noise[:x.size(0)]"),
    "a length that is the time": encoding(
        "t = x.size(1)\n        return x + self.pe[:t].squeeze(1)", pe="pe = torch.zeros(max_len, 1, d)"
    ),
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_programs(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_programs(lint_is_clean, script):
    lint_is_clean(script)
