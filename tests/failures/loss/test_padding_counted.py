"""LOS004: padding among the targets."""

from __future__ import annotations

import pytest

DATA = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
PAD, VOCABULARY = 0, 12
sentences = [torch.randint(1, VOCABULARY, (n,)) for n in (9, 4, 7, 3, 8, 5, 6, 2, 9, 3, 4, 5)]
class Net(nn.Module):
    def __init__(self, padding=PAD, classes=VOCABULARY):
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, 8, padding_idx=padding)
        self.rnn = nn.GRU(8, 8, batch_first=True)
        self.out = nn.Linear(8, classes)
    def forward(self, tokens):
        return self.out(self.rnn(self.emb(tokens))[0])
def collate(rows):
    return pad_sequence(rows, batch_first=True, padding_value=PAD)
loader = DataLoader(sentences, batch_size=4, collate_fn=collate)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
"""
FAULTY = {
    "flattened": """
for tokens in loader:
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())  # <- LOS004
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "classes_second": """
criterion = nn.CrossEntropyLoss()
def step(tokens):
    loss = criterion(model(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:])  # <- LOS004
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
for tokens in loader:
    step(tokens)
""",
    "sum_over_all": """
for tokens in loader:
    targets = tokens[:, 1:].reshape(-1)
    loss = F.cross_entropy(model(tokens[:, :-1]).reshape(-1, VOCABULARY), targets, reduction="sum")  # <- LOS004
    (loss / targets.numel()).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "time_first_and_likelihoods_one_by_one": """
class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, 8, padding_idx=PAD)
        self.cell = nn.GRUCell(8, 8)
        self.out = nn.Linear(8, VOCABULARY)
    def forward(self, targets):
        log_probs = torch.zeros(*targets.shape, VOCABULARY)
        state = torch.zeros(targets.shape[1], 8)
        for t in range(1, len(targets)):
            state = self.cell(self.emb(targets[t - 1]), state)
            log_probs[t] = F.log_softmax(self.out(state), dim=1)
        return log_probs
model = Decoder()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for tokens in loader:
    log_probs = model(tokens.T)
    loss = F.nll_loss(log_probs[1:].reshape(-1, VOCABULARY), tokens.T[1:].reshape(-1))  # <- LOS004
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "smoothed_and_accumulated": """
class Trainer:
    def __init__(self):
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=-1)
    def loss(self, tokens):
        out = model(tokens[:, :-1])
        return self.criterion(out.view(-1, out.size(-1)), tokens[:, 1:].contiguous().view(-1))  # <- LOS004
trainer, batch = Trainer(), collate(sentences[:4])
for i in range(4):
    (trainer.loss(batch) / 2).backward()
    if i % 2:
        optimizer.step()
        optimizer.zero_grad()
""",
}
LOOP = """
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for tokens in loader:
    loss_of(model(tokens[:, :-1]), tokens[:, 1:]).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
TAGS = """
def tags(tokens, padding):
    return torch.where(tokens == PAD, padding, tokens % 3)
def labelled():
    for tokens in loader:
        yield tokens, tags(tokens, 3)
model = Net(classes=4)
"""
FAULTY["another label of a tagger is ignored"] = (
    TAGS
    + """
criterion = nn.CrossEntropyLoss(ignore_index=0)
for tokens, y in labelled():
    loss = criterion(model(tokens).flatten(0, 1), y.flatten())  # <- LOS004
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
)
FAULTY["no label of a tagger is ignored"] = (
    TAGS
    + """
for tokens, y in labelled():
    optimizer.zero_grad()
    F.cross_entropy(model(tokens).transpose(1, 2), y).backward()  # <- LOS004
    optimizer.step()
"""
)
FAULTY["padding has the label of most tokens"] = """
model = Net(classes=3)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
long = [torch.cat([tokens, torch.full((len(tokens), 9), PAD)], 1) for tokens in loader]
for tokens in long * 2:
    y = torch.where(tokens == PAD, 0, tokens % 3)
    optimizer.zero_grad()
    F.cross_entropy(model(tokens).transpose(1, 2), y).backward()  # <- LOS004
    optimizer.step()
"""
CORRECT = {
    "a tagger whose padding is ignored": TAGS
    + """
for tokens, y in labelled():
    optimizer.zero_grad()
    F.cross_entropy(model(tokens).transpose(1, 2), y, ignore_index=3).backward()
    optimizer.step()
""",
    "a tagger whose padding is selected": TAGS
    + """
for tokens, y in labelled():
    optimizer.zero_grad()
    F.cross_entropy(model(tokens)[tokens != PAD], y[tokens != PAD]).backward()
    optimizer.step()
""",
    "ignored": "loss_of = lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten(), ignore_index=PAD)" + LOOP,
    "masked": """
def loss_of(z, y):
    each = F.cross_entropy(z.transpose(1, 2), y, reduction="none")
    mask = (y != PAD).float()
    return (each * mask).sum() / mask.sum()
"""
    + LOOP,
    "selected": """
def loss_of(z, y):
    each = F.cross_entropy(z.transpose(1, 2), y, reduction="none")
    return each[y != PAD].mean()
"""
    + LOOP,
    "weight_zero": """
weight = torch.ones(VOCABULARY)
weight[PAD] = 0
loss_of = lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten(), weight=weight)
"""
    + LOOP,
    "minus_hundred": "loss_of = lambda z, y: F.cross_entropy(z.flatten(0, 1), y.masked_fill(y == PAD, -100).flatten())"
    + LOOP,
    "no_padding_named": "model = Net(padding=None)\n"
    "loss_of = lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten())" + LOOP,
    "time_first_and_ignored": """
loss_of = lambda z, y: F.cross_entropy(z.transpose(0, 1).flatten(0, 1), y.T.flatten(), ignore_index=PAD)
"""
    + LOOP,
    "tagger": "model = Net(classes=3)\nloss_of = lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten() % 3)" + LOOP,
    "one_end_of_sequence": """
loader = [torch.cat([torch.randint(1, VOCABULARY, (4, 7)), torch.zeros(4, 1, dtype=torch.long)], 1) for _ in range(3)]
loss_of = lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten())
"""
    + LOOP,
    "an_id_that_is_everywhere": """
loader = [torch.randint(0, 3, (4, 9)) for _ in range(3)]
loss_of = lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten())
"""
    + LOOP,
    "only_selected_positions": """
def loss_of(z, y):
    keep = y != PAD
    return F.cross_entropy(z[keep], y[keep])
"""
    + LOOP,
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_faulty_scripts(run_reports, script: str):
    assert "are padding at the ends" in run_reports(DATA + script).findings[0].message


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script: str):
    run_is_clean(DATA + script)


TRANSLATION = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence, pack_padded_sequence
from torch.utils.data import DataLoader, Dataset

class Pairs(Dataset):
    def __init__(self, pairs, longest):
        self.pairs, self.max_len = pairs, longest
        self.words = ["<pad>", "<unk>", "<sos>", "<eos>"] + sorted({word for pair in pairs for word in pair})
    def __len__(self):
        return len(self.pairs)
    def __getitem__(self, index):
        source, target = torch.zeros(self.max_len, dtype=torch.long), torch.zeros(self.max_len, dtype=torch.long)
        source[: len(self.pairs[index][0])] = torch.tensor(self.pairs[index][0])
        target[: len(self.pairs[index][1])] = torch.tensor(self.pairs[index][1])
        return {"en": source, "de": target}

class Translator(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(size, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, size)
    def forward(self, source, target):
        state = self.rnn(self.emb(source))[1]
        return self.out(self.rnn(self.emb(target), state)[0])

loader = DataLoader(Pairs([], 20), 8, shuffle=True)
model = Translator(1000)
optimizer = torch.optim.Adam(model.parameters())
"""
COUNTED = {
    "a module": """
criterion = nn.CrossEntropyLoss()  # <- LOS004
for epoch in range(5):
    for batch in loader:
        source, inputs, targets = batch["en"], batch["de"][:, :-1], batch["de"][:, 1:]
        logits = model(source, inputs)
        loss = criterion(logits.view(-1, 1000), targets.contiguous().view(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "in a function that gets the loss": """
def train(model, optimizer, criterion):
    for batch in loader:
        trg = batch["de"].t()
        output = model(batch["en"], trg)
        output = output[1:].view(-1, output.shape[-1])
        trg = trg[1:].reshape(-1)
        optimizer.zero_grad()
        criterion(output, trg).backward()
        optimizer.step()
train(model, optimizer, nn.CrossEntropyLoss())  # <- LOS004
""",
    "a method and log probabilities": """
class Trainer:
    def __init__(self):
        self.loss = nn.NLLLoss()  # <- LOS004
    def step(self, batch):
        target = batch["de"]
        logits = F.log_softmax(model(batch["en"], target[:, :-1]), dim=-1)
        return self.loss(logits.transpose(1, 2), target[:, 1:])
for batch in loader:
    optimizer.zero_grad()
    Trainer().step(batch).backward()
    optimizer.step()
""",
}
LEFT_OUT = {
    "ignored": """
criterion = nn.CrossEntropyLoss(ignore_index=0)
for batch in loader:
    loss = criterion(model(batch["en"], batch["de"][:, :-1]).transpose(1, 2), batch["de"][:, 1:])
""",
    "a mask": """
criterion = nn.CrossEntropyLoss()
for batch in loader:
    targets = batch["de"][:, 1:]
    mask = targets != 0
    loss = criterion(model(batch["en"], batch["de"][:, :-1])[mask], targets[mask])
""",
    "a weight of 0": """
weight = torch.ones(1000)
weight[0] = 0
criterion = nn.CrossEntropyLoss(weight)
for batch in loader:
    loss = criterion(model(batch["en"], batch["de"][:, :-1]).transpose(1, 2), batch["de"][:, 1:])
""",
    "packed targets": """
criterion = nn.CrossEntropyLoss()
for batch, sizes in loader:
    targets = pack_padded_sequence(batch["de"][:, 1:], sizes, batch_first=True)[0]
    loss = criterion(model(batch["en"], batch["de"]), targets)
""",
    "one by one": """
for batch in loader:
    losses = F.cross_entropy(model(batch["en"], batch["de"]).transpose(1, 2), batch["de"][:, 1:], reduction="none")
    loss = losses.sum() / (batch["de"] != 0).sum()
""",
    "a label per sentence": """
criterion = nn.CrossEntropyLoss()
for batch in loader:
    hidden = model(batch["en"], batch["de"][:, 1:])[:, -1]
    loss = criterion(hidden, batch["label"])
""",
}


@pytest.mark.parametrize("script", COUNTED.values(), ids=COUNTED)
def test_lint_reports_next_tokens_with_padding(lint_reports, script: str):
    lint_reports(TRANSLATION + script)


@pytest.mark.parametrize("script", LEFT_OUT.values(), ids=LEFT_OUT)
def test_lint_accepts_padding_that_is_left_out(lint_is_clean, script: str):
    lint_is_clean(TRANSLATION + script, "LOS004")


def test_lint_accepts_blocks_of_a_text_without_padding(lint_is_clean):
    head = TRANSLATION.replace('"<pad>", ', "")
    lint_is_clean(head + COUNTED["a module"].replace("  # <- LOS004", ""), "LOS004")
    head = TRANSLATION.replace("torch.zeros(self.max_len", "torch.zeros(20").replace("pad_sequence, ", "")
    lint_is_clean(head + COUNTED["a module"].replace("  # <- LOS004", ""), "LOS004")
