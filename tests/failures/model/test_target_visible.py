"""MDL014: models that see the target of a position in their input."""

import pytest

HEAD = """
import math
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
text = torch.randint(1, 20, (3000,))

def windows(size=8, length=12):
    starts = torch.randint(0, len(text) - length - 1, (size,)).tolist()
    rows = torch.stack([text[s:s + length + 1] for s in starts])
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

def train(model, loss_of=None, updates=12):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(updates):
        x, y = windows()
        loss = loss_of(model, x, y) if loss_of else F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

class Attention(nn.Module):
    def __init__(self, mask=None, width=16):
        super().__init__()
        self.qkv, self.out, self.mask = nn.Linear(width, 3 * width), nn.Linear(width, width), mask

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / 4
        if self.mask is not None:
            scores = self.mask(scores, torch.ones(x.shape[1], x.shape[1]).tril())
        return x + self.out(F.dropout(scores.softmax(-1), 0.1, self.training) @ v)

class Model(nn.Module):
    def __init__(self, body, width=16):
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(20, width), body, nn.Linear(width, 20)

    def forward(self, x):
        x = self.body(self.embed(x))
        return self.head(x[0] if isinstance(x, tuple) else x)
"""

BROKEN = {
    "attention without a mask": """
class Block(Attention):
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / 4  # <- MDL014
        return x + self.out(scores.softmax(-1) @ v)

train(Model(Block()))
""",
    "a mask of ones and zeros is added": """
class Block(Attention):
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        mask = torch.tril(torch.ones(x.shape[1], x.shape[1]))
        return x + self.out(F.scaled_dot_product_attention(q, k, v, mask))  # <- MDL014

train(Model(Block()))
""",
    "a bidirectional LSTM": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn = nn.Embedding(20, 8), nn.LSTM(8, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 20)

    def forward(self, x):
        out, _ = self.rnn(self.embed(x))  # <- MDL014
        return self.head(out)

train(Net())
""",
    "a convolution with padding on both sides, and the loss in the model": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.conv, self.head = nn.Embedding(20, 8), nn.Conv1d(8, 8, 3, padding=1), nn.Linear(8, 20)

    def forward(self, x, targets):
        x = self.conv(self.embed(x).transpose(1, 2)).transpose(1, 2)  # <- MDL014
        return F.cross_entropy(self.head(x.relu()).reshape(-1, 20), targets.reshape(-1))

train(Net(), lambda model, x, y: model(x, y))
""",
    "time first": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layer = nn.Embedding(20, 16), nn.TransformerEncoderLayer(16, 2, 32)
        self.head = nn.Linear(16, 20)

    def forward(self, x):
        return self.head(self.layer(self.embed(x)))  # <- MDL014

train(Net(), lambda model, x, y: F.cross_entropy(model(x.t().contiguous()).view(-1, 20), y.t().reshape(-1)))
""",
    "a decoder without a mask, with teacher forcing": """
class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.net, self.head = nn.Embedding(20, 16), nn.Transformer(
            16, 2, 1, 1, 32, batch_first=True), nn.Linear(16, 20)

    def forward(self, source, target):
        return self.head(self.net(self.embed(source), self.embed(target)))  # <- MDL014

def loss_of(model, x, y):
    target = y.flip(1)
    logits = model(x, target[:, :-1])
    return F.cross_entropy(logits.transpose(1, 2), target[:, 1:])

train(Seq2Seq(), loss_of)
""",
    "a forecast of a series, one step ahead": """
class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(3, 8, batch_first=True, bidirectional=True), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.rnn(x)[0])  # <- MDL014

series = torch.randn(500, 3).cumsum(0) / 10

def loss_of(model, x, y):
    rows = torch.stack([series[s:s + 11] for s in torch.randint(0, 480, (8,)).tolist()])
    return F.mse_loss(model(rows[:, :-1]), rows[:, 1:])

train(Forecast(), loss_of)
""",
    "labels are not shifted": """
model = Model(nn.GRU(16, 16, batch_first=True))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(12):
    x, _ = windows()
    logits = model(x)  # <- MDL014
    optimizer.zero_grad()
    F.cross_entropy(logits.reshape(-1, 20), x.reshape(-1)).backward()
    optimizer.step()
""",
    "one-hot characters": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.RNN(20, 16, batch_first=True, bidirectional=True), nn.Linear(32, 20)

    def forward(self, x):
        return self.head(self.rnn(x)[0])  # <- MDL014

train(Net(), lambda model, x, y: F.cross_entropy(model(F.one_hot(x, 20).float()).view(-1, 20), y.view(-1)))
""",
    "shifted within the loss": """
def loss_of(model, x, y):
    logits = model(x)
    return F.cross_entropy(logits[:, :-1].reshape(-1, 20), x[:, 1:].reshape(-1))

class Block(Attention):
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        wrong = torch.ones(x.shape[1], x.shape[1]).triu() == 0
        scores = (q @ k.transpose(1, 2)).masked_fill(wrong, -1e9)
        return x + self.out(scores.softmax(-1) @ v)  # <- MDL014

train(Model(Block()), loss_of)
""",
}

CORRECT = {
    "a causal GPT with dropout": """
train(Model(Attention(lambda scores, keep: scores.masked_fill(keep == 0, float("-inf")))))
""",
    "an LSTM and a stack of causal convolutions": """
class Causal(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(16, 16, 3), nn.BatchNorm1d(16)

    def forward(self, x):
        return self.norm(self.conv(F.pad(x.transpose(1, 2), (2, 0)))).relu().transpose(1, 2)

train(Model(nn.LSTM(16, 16, batch_first=True)))
train(Model(Causal()))
""",
    "a masked language model": """
encoder = Model(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True))

def loss_of(model, x, y):
    hidden = torch.rand(x.shape) < 0.15
    hidden[:, 0] = True
    return F.cross_entropy(model(x.masked_fill(hidden, 0)).view(-1, 20), x.masked_fill(~hidden, -100).view(-1))

train(encoder, loss_of)
""",
    "a denoising encoder that restores all tokens": """
encoder = Model(nn.LSTM(16, 8, batch_first=True, bidirectional=True))

def loss_of(model, x, y):
    noise = torch.rand(x.shape) < 0.2
    return F.cross_entropy(model(x.masked_fill(noise, 0)).view(-1, 20), x.view(-1))

train(encoder, loss_of)
train(encoder, lambda model, x, y: F.cross_entropy(model(x).view(-1, 20), x.view(-1)))
""",
    "a transformer for translation": """
class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.net, self.head = nn.Embedding(20, 16), nn.Transformer(
            16, 2, 1, 1, 32, batch_first=True), nn.Linear(16, 20)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.head(self.net(self.embed(source), self.embed(target), tgt_mask=mask))

def loss_of(model, x, y):
    target = y.flip(1)
    return F.cross_entropy(model(x, target[:, :-1]).transpose(1, 2), target[:, 1:])

train(Seq2Seq(), loss_of)
""",
    "a text autoencoder whose decoder starts from a code": """
class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.encoder = nn.Embedding(20, 8), nn.GRU(8, 8, batch_first=True)
        self.decoder, self.head = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 20)

    def forward(self, x):
        _, code = self.encoder(self.embed(x))
        start = torch.zeros(len(x), 1, dtype=torch.long)
        return self.head(self.decoder(self.embed(torch.cat([start, x[:, :-1]], 1)), code)[0])

train(Autoencoder(), lambda model, x, y: F.cross_entropy(model(x).view(-1, 20), x.view(-1)))
""",
    "a tagger that sees the sentence": """
model = Model(nn.LSTM(16, 8, batch_first=True, bidirectional=True))
train(model, lambda model, x, y: F.cross_entropy(model(x).view(-1, 20), (x % 3).view(-1)))
""",
    "a convolutional autoencoder of a series": """
net = nn.Sequential(nn.Conv1d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv1d(8, 3, 3, padding=1))

def loss_of(model, x, y):
    rows = torch.randn(8, 3, 12)
    return F.mse_loss(model(rows), rows)

train(net, loss_of)
""",
    "a causal codec, whose targets are its input": """
class Codec(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.GRU(3, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.first(x)[0])

def loss_of(model, x, y):
    rows = torch.randn(8, 12, 3)
    return F.mse_loss(model(rows), rows)

train(Codec(), loss_of)
""",
    "one character at a time": """
class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(20, 8), nn.GRUCell(8, 8), nn.Linear(8, 20)

    def forward(self, x, hidden):
        hidden = self.cell(self.embed(x), hidden)
        return self.head(hidden), hidden

def loss_of(model, x, y):
    hidden, loss = torch.zeros(len(x), 8), 0
    for t in range(x.shape[1]):
        logits, hidden = model(x[:, t], hidden)
        loss = loss + F.cross_entropy(logits, y[:, t])
    return loss / x.shape[1]

train(Cell(), loss_of)
""",
    "two readers, one in each direction": """
class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.there, self.back = nn.Embedding(20, 8), nn.GRU(8, 8, batch_first=True), nn.GRU(
            8, 8, batch_first=True)
        self.head = nn.Linear(8, 20)

    def forward(self, x):
        e = self.embed(x)
        return self.head(self.there(e)[0]), self.head(self.back(e.flip(1))[0].flip(1))

def loss_of(model, x, y):
    there, back = model(x)
    forward = F.cross_entropy(there[:, :-1].reshape(-1, 20), x[:, 1:].reshape(-1))
    return forward + F.cross_entropy(back[:, 1:].reshape(-1, 20), x[:, :-1].reshape(-1))

train(Both(), loss_of)
""",
}


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN.keys())
def test_run_reports_models_that_see_their_targets(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_models_that_do_not(run_is_clean, script):
    run_is_clean(HEAD + script)


DECODER = """
import torch
import torch.nn.functional as F
from torch import nn

class Decoder(nn.Module):
    def __init__(self, vocabulary=12, width=16):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.cell = nn.GRUCell(width, width)
        self.head = nn.Linear(width, vocabulary)

    def step(self, token, hidden):
        hidden = self.cell(self.embedding(token), hidden)
        return self.head(hidden), hidden

    def forward(self, hidden, trg):
        outputs = []
        {loop}
        return torch.stack(outputs, 1)

model = Decoder()
optimizer = torch.optim.Adam(model.parameters())
for update in range(10):
    trg = torch.randint(12, (8, 6))
    out = model(torch.zeros(8, 16), trg)
    loss = F.cross_entropy(out.flatten(0, 1), trg[:, {rest}].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def decoder(*lines: str, rest: str = "1:") -> str:
    return DECODER.format(loop="\n        ".join(lines), rest=rest)


APPEND = "    outputs.append(logits)"
FED = {
    "a variable": decoder(
        "for t in range(1, trg.size(1)):",
        "    token = trg[:, t]  # <- MDL014",
        "    logits, hidden = self.step(token, hidden)",
        APPEND,
    ),
    "directly": decoder(
        "for t in range(1, trg.size(1)):", "    logits, hidden = self.step(trg[:, t], hidden)  # <- MDL014", APPEND
    ),
    "a loss in the loop": """
import torch
from torch import nn

def train(encoder, decoder, criterion, optimizer, src, target):
    embedding = nn.Embedding(9, 8)
    hidden = encoder(src)
    loss = 0
    for step in range(target.size(0)):
        output, hidden = decoder(target[step], hidden)  # <- MDL014
        loss += criterion(output, target[step])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
criterion = nn.CrossEntropyLoss()
""",
}
WHOLE = """
import torch
import torch.nn.functional as F
from torch import nn

class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(12, 16), nn.Embedding(12, 16)
        self.encoder = nn.GRU(16, 16, batch_first=True)
        self.decoder, self.head = nn.GRU(16, 16, batch_first=True), nn.Linear(16, 12)
    def forward(self, src, tgt):
        return self.head(self.decoder(self.target(tgt), self.encoder(self.source(src))[1])[0])

def train(model, loader, optimizer):
    for epoch in range(3):
        for src, tgt in loader:
            {lines}
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


def whole(*lines: str) -> str:
    return WHOLE.replace("{lines}", "\n            ".join(lines))


FED |= {
    "all tokens at once": whole(
        "logits = model(src, tgt[:, 1:])  # <- MDL014",
        "loss = F.cross_entropy(logits.reshape(-1, 12), tgt[:, 1:].reshape(-1))",
    ),
    "all tokens, in variables": whole(
        "labels = tgt[:, 1:]",
        "decoder_input = tgt[:, 1:]",
        "logits = model(src, decoder_input)  # <- MDL014",
        "loss = F.cross_entropy(logits.transpose(1, 2), labels.long())",
    ),
    "all tokens, time first": whole(
        "out = model(src, tgt[1:])  # <- MDL014", "loss = F.cross_entropy(out.view(-1, 12), tgt[1:].reshape(-1))"
    ),
}
NOT_FED = {
    "all tokens but the last": whole(
        "logits = model(src, tgt[:, :-1])", "loss = F.cross_entropy(logits.reshape(-1, 12), tgt[:, 1:].reshape(-1))"
    ),
    "the tokens of an autoencoder": whole(
        "logits = model(tgt[:, 1:])", "loss = F.cross_entropy(logits.reshape(-1, 12), tgt[:, 1:].reshape(-1))"
    ),
    "labels of the words": whole(
        "logits = model(src[:, 1:], tgt.new_ones(3))",
        "loss = F.cross_entropy(logits.reshape(-1, 12), tgt[:, 1:].reshape(-1))",
    ),
    "other tokens under the same name": whole(
        "logits = model(src, tgt[:, 1:-1])", "loss = F.cross_entropy(logits.reshape(-1, 12), tgt[:, 1:].reshape(-1))"
    ),
    "the token before": decoder(
        "for t in range(1, trg.size(1)):", "    logits, hidden = self.step(trg[:, t - 1], hidden)", APPEND
    ),
    "taken over after the step": decoder(
        "token = trg[:, 0]",
        "for t in range(1, trg.size(1)):",
        "    logits, hidden = self.step(token, hidden)",
        APPEND,
        "    token = trg[:, t]",
    ),
    "taken over after the step, with a loss in the loop": """
import torch
from torch import nn

def train(encoder, decoder, criterion, optimizer, src, target):
    embedding = nn.Embedding(9, 8)
    hidden, token, loss = encoder(src), torch.zeros(1).long(), 0
    if torch.rand(1) < 0.5:
        for step in range(target.size(0)):
            output, hidden = decoder(token, hidden)
            loss += criterion(output, target[step])
            token = target[step]
    else:
        for step in range(target.size(0)):
            output, hidden = decoder(token, hidden)
            token = output.argmax(-1).detach()
            loss += criterion(output, target[step])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
criterion = nn.CrossEntropyLoss()
""",
    "from the first token": decoder(
        "for t in range(trg.size(1) - 1):", "    logits, hidden = self.step(trg[:, t], hidden)", APPEND
    ),
    "a first step before the loop": decoder(
        "logits, hidden = self.step(trg[:, 0], hidden)",
        "outputs.append(logits)",
        "for t in range(1, trg.size(1) - 1):",
        "    logits, hidden = self.step(trg[:, t], hidden)",
        APPEND,
    ),
    "a tagger": decoder(
        "for t in range(1, trg.size(1)):",
        "    words = trg.flip(1)",
        "    logits, hidden = self.step(words[:, t], hidden)",
        APPEND,
    ),
}


@pytest.mark.parametrize("script", FED.values(), ids=FED)
def test_lint_reports_targets_that_the_decoder_gets(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", NOT_FED.values(), ids=NOT_FED)
def test_lint_accepts_earlier_tokens(lint_codes, script):
    assert "MDL014" not in lint_codes(script)
