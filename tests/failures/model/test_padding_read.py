"""MDL016: padding that reaches the output."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

torch.manual_seed(0)

def batch(size=16, longest=14):
    lengths = torch.randint(3, longest, (size,))
    tokens = pad_sequence([torch.randint(1, 30, (n,)) for n in lengths.tolist()], batch_first=True)
    return tokens, lengths, (tokens[:, 0] > 14).long()

def train(model, call=lambda model, tokens, lengths: model(tokens, lengths), make=batch, loss_of=F.cross_entropy):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(14):
        tokens, lengths, labels = make()
        optimizer.zero_grad()
        loss_of(call(model, tokens, lengths), labels).backward()
        optimizer.step()

class Net(nn.Module):
    def __init__(self, body, width=8, classes=2):
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(30, 8), body, nn.Linear(width, classes)
"""

BROKEN = {
    "the last state of a GRU": """
class Last(Net):
    def forward(self, tokens, lengths):
        _, state = self.body(self.embed(tokens))  # <- MDL016
        return self.head(state[-1])

train(Last(nn.GRU(8, 8, batch_first=True)))
""",
    "the last step, in both directions, without lengths": """
class Last(Net):
    def forward(self, tokens):
        out, _ = self.body(self.embed(tokens))  # <- MDL016
        return self.head(out[:, -1])

train(Last(nn.LSTM(8, 8, batch_first=True, bidirectional=True), 16), lambda model, tokens, lengths: model(tokens))
""",
    "a mean over padding": """
class Mean(Net):
    def forward(self, tokens, lengths):
        x = self.embed(tokens)
        return self.head(x.mean(1))  # <- MDL016

train(Mean(nn.Identity()))
""",
    "attention without a mask": """
class Encoder(Net):
    def forward(self, tokens):
        x = self.body(self.embed(tokens))  # <- MDL016
        return self.head(x[:, 0])

net = Encoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True))
train(net, lambda model, tokens, lengths: model(tokens))
""",
    "an inverted mask": """
class Encoder(Net):
    def forward(self, tokens, keep):
        x = self.body(self.embed(tokens), src_key_padding_mask=keep)  # <- MDL016
        return self.head(x[:, 0])

net = Encoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True))

def make():
    tokens, lengths, labels = batch()
    return F.pad(tokens, (0, 1)), lengths, labels

train(net, lambda model, tokens, lengths: model(tokens, torch.arange(tokens.shape[1]) < lengths[:, None]), make)
""",
    "features padded with zeros": """
class Last(Net):
    def forward(self, x, lengths):
        out, _ = self.body(x)
        return self.head(out[:, -1])  # <- MDL016

def make():
    lengths = torch.randint(3, 12, (16,))
    rows = [torch.randn(n, 5) for n in lengths.tolist()]
    return pad_sequence(rows, batch_first=True), lengths, torch.stack([row[0, 0] > 0 for row in rows]).long()

train(Last(nn.RNN(5, 8, batch_first=True)), make=make)
""",
    "a fixed length, and the last step": """
class Last(Net):
    def forward(self, tokens):
        out = self.body(self.embed(tokens))[0]
        last = out[:, -1, :]  # <- MDL016
        return self.head(last).squeeze(1)

def make():
    tokens, lengths, labels = batch()
    return F.pad(tokens, (0, 20 - tokens.shape[1])), lengths, labels.float()

train(Last(nn.LSTM(8, 8, batch_first=True), 8, 1), lambda model, tokens, lengths: model(tokens), make,
      F.binary_cross_entropy_with_logits)
""",
    "a softmax of one's own over padding": """
class Pool(Net):
    def forward(self, tokens, lengths):
        x = self.embed(tokens)
        weights = self.body(x).softmax(1)  # <- MDL016
        return self.head((weights * x).sum(1))

train(Pool(nn.Linear(8, 1)))
""",
}

CORRECT = {
    "the last real step, and packed sequences": """
class Last(Net):
    def forward(self, tokens, lengths):
        out, _ = self.body(self.embed(tokens))
        return self.head(out[torch.arange(len(out)), lengths - 1])

class Packed(Net):
    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True, enforce_sorted=False)
        return self.head(torch.cat(list(self.body(packed)[1]), 1))

class Sorted(Net):
    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True)
        out, sizes = pad_packed_sequence(self.body(packed)[0], batch_first=True)
        return self.head(out.sum(1) / sizes.unsqueeze(1))

def make():
    tokens, lengths, labels = batch()
    order = lengths.argsort(descending=True)
    return tokens[order], lengths[order], labels[order]

train(Last(nn.LSTM(8, 8, batch_first=True)))
train(Packed(nn.GRU(8, 8, batch_first=True, bidirectional=True), 16))
train(Sorted(nn.GRU(8, 8, batch_first=True)), lambda model, tokens, lengths: model(tokens, lengths.tolist()), make)
""",
    "masked mean and masked attention": """
class Mean(Net):
    def forward(self, tokens):
        keep = (tokens != 0).float().unsqueeze(2)
        return self.head((self.embed(tokens) * keep).sum(1) / keep.sum(1))

class Encoder(Net):
    def forward(self, tokens):
        x = self.body(self.embed(tokens), src_key_padding_mask=tokens == 0)
        return self.head(x[:, 0])

class Given(Net):
    def forward(self, tokens, attention_mask):
        bias = (1.0 - attention_mask[:, None, None, :].float()) * -1e4
        x = self.embed(tokens)
        x = F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], attn_mask=bias)[:, 0]
        return self.head(x[:, 0])

of = lambda model, tokens, lengths: model(tokens)
train(Mean(nn.Identity()), of)
train(Encoder(nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True)), of)
train(Given(nn.Identity()), lambda model, tokens, lengths: model(tokens, (tokens != 0).long()))
""",
    "a convolution and the maximum over time": """
class Text(Net):
    def forward(self, tokens):
        x = self.body(self.embed(tokens).transpose(1, 2)).relu()
        return self.head(x.max(2).values)

train(Text(nn.Conv1d(8, 8, 3, padding=1)), lambda model, tokens, lengths: model(tokens))
""",
    "one fixed length that the model needs": """
class Flat(Net):
    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens).flatten(1)).relu())

def make():
    tokens, lengths, labels = batch()
    return F.pad(tokens, (0, 20 - tokens.shape[1])), lengths, labels

train(Flat(nn.Linear(160, 8)), lambda model, tokens, lengths: model(tokens), make)
""",
    "padding on the left": """
class Last(Net):
    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens))[0][:, -1])

def make():
    lengths = torch.randint(3, 14, (16,)).tolist()
    tokens = torch.stack([F.pad(torch.randint(1, 30, (n,)), (14 - n, 0)) for n in lengths])
    return tokens, lengths, (tokens[:, -1] > 14).long()

train(Last(nn.GRU(8, 8, batch_first=True)), lambda model, tokens, lengths: model(tokens), make)
""",
    "a causal language model and a decoder over padding": """
class Language(Net):
    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens))[0]).transpose(1, 2)

optimizer = torch.optim.Adam((model := Language(nn.LSTM(8, 8, batch_first=True), 8, 30)).parameters())
for _ in range(14):
    tokens, _, _ = batch()
    optimizer.zero_grad()
    F.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:], ignore_index=0).backward()
    optimizer.step()
""",
    "images read row by row, and numbers without padding": """
class Rows(Net):
    def forward(self, x):
        return self.head(self.body(x)[0][:, -1])

def make():
    images = torch.zeros(16, 12, 8)
    for image in images:
        top, height = torch.randint(1, 4, (1,)), torch.randint(3, 7, (1,))
        image[top:top + height] = torch.randn(int(height), 8)
    return images, None, (images.sum((1, 2)) > 0).long()

train(Rows(nn.GRU(8, 8, batch_first=True)), lambda model, x, lengths: model(x), make)
train(Rows(nn.GRU(8, 8, batch_first=True)), lambda model, x, lengths: model(x),
      lambda: (torch.randn(16, 9, 8), None, torch.randint(2, (16,))))
""",
    "random tokens, none of which is padding": """
class Last(Net):
    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens))[0][:, -1])

def make():
    tokens = torch.randint(0, 6, (16, 11))
    return tokens, None, (tokens[:, -1] > 2).long()

train(Last(nn.GRU(8, 8, batch_first=True)), lambda model, tokens, lengths: model(tokens), make)
""",
    "buckets of equal length": """
class Last(Net):
    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens))[0][:, -1])

def make():
    tokens = torch.randint(1, 30, (16, int(torch.randint(4, 12, (1,)))))
    return tokens, None, (tokens[:, -1] > 14).long()

train(Last(nn.GRU(8, 8, batch_first=True)), lambda model, tokens, lengths: model(tokens), make)
""",
}

NOTES = {
    "a few steps of padding after words of one fixed length": """
class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(26, 24, batch_first=True), nn.Linear(24, 3)

    def forward(self, letters):
        _, state = self.rnn(letters)
        return self.head(state[-1])

def make():
    lengths = torch.randint(8, 13, (40,))
    words = F.one_hot(torch.randint(26, (40, 12)), 26).float() * (torch.arange(12) < lengths[:, None])[..., None]
    return words, lengths, words[:, 0, :9].argmax(1) % 3

train(Last(), lambda model, words, lengths: model(words), make)
""",
    "a tagger in both directions, over padding": """
class Tagger(Net):
    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens))[0]).transpose(1, 2)

def make():
    tokens, lengths, _ = batch()
    return tokens, lengths, (tokens > 14).long().masked_fill(tokens == 0, -100)

net = Tagger(nn.LSTM(8, 8, batch_first=True, bidirectional=True), 16)
train(net, lambda model, tokens, lengths: model(tokens), make)
""",
    "a mean over a fixed length": """
class Mean(Net):
    def forward(self, tokens):
        return self.head(self.embed(tokens).mean(1))

def make():
    tokens, lengths, labels = batch()
    return F.pad(tokens, (0, 14 - tokens.shape[1])), lengths, labels

train(Mean(nn.Identity()), lambda model, tokens, lengths: model(tokens), make)
""",
}


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN.keys())
def test_run_reports_models_that_read_padding(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_models_that_do_not(run_is_clean, script):
    run_is_clean(HEAD + script)


@pytest.mark.parametrize("script", NOTES.values(), ids=NOTES.keys())
def test_run_notes_models_that_padding_affects_by_design(run_is_clean, script):
    run_is_clean(HEAD + script, note="MDL016")


LINT_HEAD = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_packed_sequence, pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

rows = [torch.randint(1, 30, (n % 9 + 3,)) for n in range(200)]
labels = torch.tensor([int(row[-1] > 14) for row in rows])

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(30, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 2)
    def forward(self, tokens, lengths=None):
        {forward}

{pad}

def fit(net, loader):
    optimizer = torch.optim.Adam(net.parameters())
    for tokens, target in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(tokens), target)
        loss.backward()
        optimizer.step()

fit(Net(), loader)
"""
COLLATE = """
def collate(batch):
    return {padded}, torch.stack([label for _, label in batch])

loader = DataLoader(list(zip(rows, labels)), 32, shuffle=True, collate_fn=collate)
"""
ITEMS = """
class Rows(Dataset):
    def __len__(self):
        return len(rows)
    def __getitem__(self, index):
        row = rows[index].tolist()
        {padded}
        return torch.as_tensor(ids), labels[index]

loader = DataLoader(Rows(), 32, shuffle=True)
"""
PAD = COLLATE.replace("{padded}", "pad_sequence([row for row, _ in batch], batch_first=True)")
LAST = "out, _ = self.rnn(self.embed(tokens))\nreturn self.head(out[:, -1])  # <- MDL016"
STATE = "_, (h, c) = self.rnn(self.embed(tokens))\nreturn self.head(h[-1])  # <- MDL016"
LINT_FAULTY = {
    "the last column of all rows by their numbers": (
        ("out, _ = self.rnn(self.embed(tokens))\nrows = torch.arange(len(out))\n"
        "return self.head(out[rows, -1])  # <- MDL016"), PAD,
    ),
    "the last column by the size": (
        "out, _ = self.rnn(self.embed(tokens))\nreturn self.head(out[:, out.size(1) - 1])  # <- MDL016", PAD,
    ),
    "selected": (
        "out, _ = self.rnn(self.embed(tokens))\nreturn self.head(out.select(1, -1))  # <- MDL016", PAD
    ),
    "the last step after pad_sequence": (LAST, PAD),
    "the final state": (STATE, PAD),
    "the only layer's state": (
        "_, (h, c) = self.rnn(self.embed(tokens))\nh = h.squeeze(0)  # <- MDL016\nreturn self.head(h)", PAD
    ),
    "a variable": (
        "out = self.rnn(self.embed(tokens))[0]\nlast = out[:, -1, :]  # <- MDL016\nreturn self.head(F.dropout(last))",
        PAD,
    ),
    "the mean": ("out, _ = self.rnn(self.embed(tokens))\nreturn self.head(out.mean(1))  # <- MDL016", PAD),
    "the mean by a function": (
        "out, _ = self.rnn(self.embed(tokens))\nreturn self.head(torch.mean(out, dim=1))  # <- MDL016", PAD
    ),
    "zeros filled by hand": (
        LAST,
        ITEMS.replace("{padded}", "ids = np.zeros(16, dtype=int)\n        ids[:len(row)] = row"),
    ),
    "zeros filled in a loop": (
        STATE,
        ("def batch_of(rows):\n    longest = max(map(len, rows))\n    out = torch.zeros(len(rows), longest).long()\n"
        "    for i, row in enumerate(rows):\n        out[i, :len(row)] = row\n    return out\n"
        "loader = [(batch_of(rows[i:i + 32]), labels[i:i + 32]) for i in range(0, 200, 32)]\n"),
    ),
    "a list of padding": (LAST, ITEMS.replace("{padded}", "ids = row + [0] * (16 - len(row))")),
    "F.pad": (
        STATE, ITEMS.replace("{padded}", "ids = F.pad(torch.tensor(row), (0, 16 - len(row)))")
    ),
    "the final state, of lengths that an own method ignores": (
        ("return self.head(self.encode(tokens, lengths))\ndef encode(self, x, lengths):\n"
        "    out, (h, c) = self.rnn(self.embed(x))\n    return h[-1]  # <- MDL016"),
        PAD,
    ),
    "the last step after unpacking": (
        ("packed = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True, enforce_sorted=False)\n"
        "out, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=tokens.size(1))\n"
        "return self.head(out[:, -1, :])  # <- MDL016"),
        PAD,
    ),
    "the last step after unpacking and dropout": (
        ("packed = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True, enforce_sorted=False)\n"
        "out = pad_packed_sequence(self.rnn(packed)[0], True)[0]\nout = F.dropout(out, 0.1, self.training)\n"
        "both = out[:, :, :4] + out[:, :, 4:]\nreturn self.head(both[:, -1].repeat(1, 2))  # <- MDL016"),
        PAD,
    ),
    "the last step after unpacking, time first": (
        ("packed = pack_padded_sequence(self.embed(tokens.t()), lengths, enforce_sorted=False)\n"
        "packed, state = self.rnn(packed)\nout, sizes = pad_packed_sequence(packed)\n"
        "last = out[-1]  # <- MDL016\nreturn self.head(last)"),
        PAD,
    ),
    "a missing number of padding tokens": (
        LAST, ITEMS.replace("{padded}", "missing = 16 - len(row)\n        ids = row + [0] * missing")
    ),
}  # fmt: skip
LAST_OK = LAST.partition("  #")[0]
STATE_OK = STATE.partition("  #")[0]
MEAN_OK = "out, _ = self.rnn(self.embed(tokens))\nreturn self.head(out.mean(1))"
LINT_CORRECT = {
    "the last real column of all rows": (
        ("out, _ = self.rnn(self.embed(tokens))\nrows, ends = torch.arange(len(out)), tokens.gt(0).sum(1) - 1\n"
        "return self.head(out[rows, ends])"), PAD,
    ),
    "all columns of the last rows": (
        "out, _ = self.rnn(self.embed(tokens))\nreturn self.head(out.max(1).values[torch.arange(2), -1:])", PAD,
    ),
    "padding on the left": (LAST_OK, ITEMS.replace("{padded}", "ids = [0] * (16 - len(row)) + row")),
    "F.pad on the left": (
        LAST_OK, ITEMS.replace("{padded}", "ids = F.pad(torch.tensor(row), (16 - len(row), 0))")
    ),
    "zeros filled from the end": (
        LAST_OK,
        ITEMS.replace("{padded}", "ids = np.zeros(16, dtype=int)\n        ids[-len(row):] = row"),
    ),
    "turned around twice": (
        LAST_OK, COLLATE.replace("{padded}", "pad_sequence([r.flip(0) for r, _ in batch], batch_first=True).flip(1)")
    ),
    "padding_side": (
        LAST_OK,
        COLLATE.replace("{padded}", "pad_sequence([r for r, _ in batch], batch_first=True, padding_side='left')"),
    ),
    "one length": (LAST_OK, COLLATE.replace("{padded}", "torch.stack([r[:3] for r, _ in batch])")),
    "packed": (
        ("packed = pack_padded_sequence(self.embed(tokens), (tokens != 0).sum(1), batch_first=True)\n"
        "_, (h, c) = self.rnn(packed)\nreturn self.head(h[-1])"),
        PAD,
    ),
    "packed, and the last real step": (
        ("packed = pack_padded_sequence(self.embed(tokens), (tokens != 0).sum(1), batch_first=True)\n"
        "out, sizes = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)\n"
        "return self.head(out[torch.arange(len(out)), sizes - 1])"),
        PAD,
    ),
    "packed, and the longest length": (
        ("packed = pack_padded_sequence(self.embed(tokens.t()), (tokens != 0).sum(1), enforce_sorted=False)\n"
        "out, sizes = pad_packed_sequence(self.rnn(packed)[0])\nlongest = sizes[-1]\n"
        "return self.head(out.max(0).values * longest)"),
        PAD,
    ),
    "packed, and the last feature": (
        ("packed = pack_padded_sequence(self.embed(tokens), (tokens != 0).sum(1), batch_first=True)\n"
        "out, sizes = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)\n"
        "return self.head(out.max(1).values) + out[:, :, -1].amax(1, keepdim=True)"),
        PAD,
    ),
    "packed with one length": (
        ("sizes = torch.full((len(tokens),), tokens.size(1))\n"
        "packed = pack_padded_sequence(self.embed(tokens), sizes, batch_first=True)\n"
        "out, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)\nreturn self.head(out[:, -1])"),
        COLLATE.replace("{padded}", "torch.stack([r[:3] for r, _ in batch])"),
    ),
    "lengths passed to an own method that reads the last step by them": (
        ("return self.head(self.encode(tokens, lengths))\ndef encode(self, x, n):\n"
        "    out, (h, c) = self.rnn(self.embed(x))\n    return out[range(len(out)), n - 1] + 0 * h[-1]"),
        PAD,
    ),
    "lengths": (
        "out, _ = self.rnn(self.embed(tokens))\nreturn self.head(out[range(len(out)), lengths - 1] + out[:, -1] * 0)",
        PAD,
    ),
    "a mask before the mean": (
        ("mask = (tokens > 0).float().unsqueeze(2)\nout, _ = self.rnn(self.embed(tokens))\n"
        "return self.head((out * mask).mean(1))"),
        PAD,
    ),
    "gathered": (
        ("out, _ = self.rnn(self.embed(tokens))\nend = tokens.gt(0).sum(1) - 1\n"
        "return self.head(out.gather(1, end[:, None, None].expand(-1, 1, 8)).squeeze(1))"),
        PAD,
    ),
    "the maximum over time": (
        "out, _ = self.rnn(self.embed(tokens))\nreturn self.head(out.max(1).values)", PAD
    ),
    "a sum of embeddings": ("return self.head(self.embed(tokens).sum(1))", PAD),
    "the mean over one fixed length": (MEAN_OK, ITEMS.replace("{padded}", "ids = row + [0] * (16 - len(row))")),
    "labels are padded": (
        LAST_OK, "targets = pad_sequence(rows, batch_first=True)\nloader = [(torch.ones(4, 5).long(), labels[:4])]\n"
    ),
    "images are padded": (
        LAST_OK, "wide = F.pad(torch.ones(4, 3, 8, 8), (1, 1, 1, 1))\nloader = [(torch.ones(4, 5).int(), labels[:4])]\n"
    ),
}  # fmt: skip


def lint_program(forward: str, pad: str) -> str:
    forward = forward.replace("\n", "\n        ").replace("        def ", "    def ")
    return LINT_HEAD.replace("{forward}", forward).replace("{pad}", pad)


@pytest.mark.parametrize("name", LINT_FAULTY)
def test_lint_reports_states_behind_padding(lint_reports, name):
    lint_reports(lint_program(*LINT_FAULTY[name]))


@pytest.mark.parametrize("name", LINT_CORRECT)
def test_lint_accepts_programs_that_read_no_padding(lint_is_clean, name):
    lint_is_clean(lint_program(*LINT_CORRECT[name]), "MDL016")


VARIES_LATER = """
class Last(Net):
    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens))[0][:, -1])  # <- MDL016

sizes = iter([14, 14, 14, 14, 14, 12, 13, 14, 14, 14, 14, 13, 14, 14])

def make():
    tokens, lengths, labels = batch()
    return F.pad(tokens[:, :12], (0, next(sizes) - tokens[:, :12].shape[1])), lengths, labels

train(Last(nn.GRU(8, 8, batch_first=True)), lambda model, tokens, lengths: model(tokens), make)
"""


def test_run_warns_if_the_length_varies_after_the_first_probe(run_reports):
    run_reports(HEAD + VARIES_LATER)
