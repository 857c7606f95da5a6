"""LOS037: masked language models that learn from all tokens."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
"""
FAULTY = {
    "labels that are a copy of the input": """
for idx in torch.randperm(200).split(40):
    x = data[idx].clone()
    m = torch.rand(x.shape) < 0.15
    labels = x.clone()
    x[m] = MASK
    loss = F.cross_entropy(net(x).view(-1, V), labels.view(-1))  # <- LOS037
""",
    "a helper": """
def mask_tokens(tokens, mask_id, p=0.15):
    chosen = torch.bernoulli(torch.full(tokens.shape, p)).bool()
    inputs = tokens.masked_fill(chosen, mask_id)
    return inputs, tokens
criterion = nn.CrossEntropyLoss()
for batch in loader:
    inputs, targets = mask_tokens(batch, 4)
    loss = criterion(model(inputs).transpose(1, 2), targets)  # <- LOS037
""",
    "a class": """
class Pretraining:
    def __init__(self, model, mask_token):
        self.model, self.mask_token = model, mask_token
        self.loss_fn = nn.CrossEntropyLoss(ignore_index=0)
    def corrupted(self, ids):
        return ids
    def step(self, ids):
        where = (torch.rand_like(ids.float()) < 0.15) & (ids != 0)
        masked = torch.where(where, self.mask_token, ids)
        logits = self.model(masked)
        return self.loss_fn(logits.view(-1, logits.size(-1)), ids.view(-1))  # <- LOS037
""".replace("corrupted", "prepared"),
    "a collator with labels": """
class Collator:
    def __call__(self, examples):
        tokens = torch.stack(examples)
        labels = tokens.clone()
        labels[labels == self.pad_id] = -100
        picked = torch.rand(labels.shape) < self.probability
        tokens[picked] = self.mask_token_id
        return {"input_ids": tokens, "labels": labels}  # <- LOS037
def train(model, loader):
    for batch in loader:
        logits = model(batch["input_ids"])
        F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten()).backward()
""",
    "a dataset": """
class Masked(torch.utils.data.Dataset):
    def __getitem__(self, i):
        original = torch.tensor(self.rows[i])
        x = original.clone()
        x[torch.rand(len(x)) < 0.2] = 103
        return x, original  # <- LOS037
criterion = nn.CrossEntropyLoss()
for x, y in loader:
    loss = F.cross_entropy(bert(x).transpose(1, 2), y)
""",
    "labels given to the model": """
for tokens in loader:
    labels = tokens.clone()
    chosen = torch.bernoulli(torch.full(labels.shape, 0.15)).bool()
    tokens[chosen] = tokenizer.mask_token_id
    loss = model(input_ids=tokens, labels=labels).loss  # <- LOS037
""",
    "masked where it is returned": """
def apply_mask(batch, prob):
    noise = torch.rand(batch.shape)
    mask = noise < prob
    return torch.where(mask, torch.full_like(batch, MASK_TOKEN), batch), mask
class Task:
    def step(self, batch):
        x, mask = apply_mask(batch, 0.15)
        logits = self.model(x)
        loss = F.cross_entropy(logits.reshape(-1, 100), batch.reshape(-1))  # <- LOS037
        return loss, (logits.argmax(-1) == batch)[mask].float().mean()
""",
    "lists of numbers": """
class Rows(torch.utils.data.Dataset):
    def __getitem__(self, i):
        ids = list(self.rows[i])
        target = list(ids)
        for j in range(len(ids)):
            if random.random() < 0.15:
                ids[j] = MASK
        return torch.tensor(ids), torch.tensor(target)  # <- LOS037
for x, t in loader:
    loss = F.cross_entropy(model(x).transpose(1, 2), t)
""",
}
CORRECT = {
    "masked where it is returned": """
def apply_mask(batch, prob):
    mask = torch.rand(batch.shape) < prob
    return torch.where(mask, torch.full_like(batch, MASK_TOKEN), batch), mask
x, mask = apply_mask(batch, 0.15)
loss = F.cross_entropy(model(x)[mask], batch[mask])
""",
    "ignored labels": """
labels = x.clone()
m = torch.rand(x.shape) < 0.15
x[m] = MASK
labels[~m] = -100
loss = F.cross_entropy(net(x).view(-1, V), labels.view(-1))
""",
    "ignored labels by where": """
m = torch.rand(tokens.shape) < 0.15
labels = torch.where(m, tokens, -100)
x = tokens.masked_fill(m, MASK)
loss = F.cross_entropy(net(x).view(-1, V), labels.view(-1))
""",
    "indexed by the mask": """
m = torch.rand(tokens.shape) < 0.15
x = tokens.clone()
x[m] = MASK
loss = F.cross_entropy(net(x)[m], tokens[m])
""",
    "the loss of each token times the mask": """
m = torch.rand(tokens.shape) < 0.15
x = tokens.masked_fill(m, MASK)
ce = F.cross_entropy(net(x).transpose(1, 2), tokens, reduction="none")
loss = (ce * m).sum() / m.sum()
""",
    "a denoising autoencoder": """
class DenoisingAutoencoder(nn.Module):
    pass
net = DenoisingAutoencoder()
m = torch.rand(tokens.shape) < 0.15
x = tokens.masked_fill(m, MASK)
loss = F.cross_entropy(net(x).transpose(1, 2), tokens)
""",
    "word dropout": """
m = torch.rand(tokens.shape) < 0.1
x = tokens.masked_fill(m, UNK)
loss = F.cross_entropy(net(x).transpose(1, 2), tokens)
loss = F.cross_entropy(classifier(x), y)
""",
    "the next token": """
m = torch.rand(tokens.shape) < 0.1
x = tokens.masked_fill(m, MASK)
loss = F.cross_entropy(net(x[:, :-1]).transpose(1, 2), tokens[:, 1:])
""",
    "the usual collator": """
def mask_tokens(inputs, tokenizer):
    labels = inputs.clone()
    masked_indices = torch.bernoulli(torch.full(labels.shape, 0.15)).bool()
    labels[~masked_indices] = -100
    replaced = torch.bernoulli(torch.full(labels.shape, 0.8)).bool() & masked_indices
    inputs[replaced] = tokenizer.mask_token_id
    return inputs, labels
inputs, labels = mask_tokens(batch, tokenizer)
loss = F.cross_entropy(model(inputs).view(-1, V), labels.view(-1))
""",
    "a dataset that returns the mask": """
class Masked(torch.utils.data.Dataset):
    def __getitem__(self, i):
        original = torch.tensor(self.rows[i])
        x = original.clone()
        m = torch.rand(len(x)) < 0.2
        x[m] = 103
        return x, original, m
for x, y, m in loader:
    loss = F.cross_entropy(bert(x)[m], y[m])
""",
    "a loss that compares with the mask token": """
class Masked(torch.utils.data.Dataset):
    def __getitem__(self, i):
        original = torch.tensor(self.rows[i])
        x = original.clone()
        x[torch.rand(len(x)) < 0.2] = MASK_ID
        return x, original
for x, y in loader:
    hidden = x == MASK_ID
    loss = F.cross_entropy(bert(x)[hidden], y[hidden])
""",
    "class labels": """
m = torch.rand(x.shape) < 0.15
x[m] = mask_value
loss = F.cross_entropy(net(x), y)
""",
    "labels that start with the ignored one": """
m = torch.rand(x.shape) < 0.15
labels = torch.full_like(x, -100)
labels[m] = x[m]
x[m] = MASK
loss = F.cross_entropy(net(x).view(-1, V), labels.view(-1))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_labels(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_masked_labels(lint_is_clean, script):
    lint_is_clean(HEAD + script, "LOS037")
