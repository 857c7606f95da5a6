"""DAT068: a target that is the same tensor as the input, which is changed in place."""

import pytest

HEAD = """
import torch
from torch import nn
"""

FAULTY = {
    "a collator": """
class Collator:
    def __call__(self, rows):
        input_ids = torch.stack(rows)
        labels = input_ids  # <- DAT068
        masked = torch.rand(input_ids.shape) < 0.15
        masked[:, 0] |= ~masked.any(dim=1)
        input_ids[masked] = 1
        return {"input_ids": input_ids, "labels": labels, "masked": masked}
""",
    "both from one batch": """
def train(model, loader, criterion):
    for batch in loader:
        inputs = batch["tokens"]
        targets = batch["tokens"]  # <- DAT068
        inputs.masked_fill_(torch.rand(inputs.shape) < 0.15, 103)
        loss = criterion(model(inputs), targets)
""",
    "items of a batch": """
def mask(batch, mask_id):
    batch["labels"] = batch["input_ids"]  # <- DAT068
    chosen = torch.rand(batch["input_ids"].shape) < 0.15
    batch["input_ids"][chosen] = mask_id
    return batch
""",
    "a noisy image": """
def train(model, loader, mse):
    for images, _ in loader:
        noisy = images  # <- DAT068
        noisy += 0.3 * torch.randn_like(images)
        loss = mse(model(noisy), images)
""",
    "a hole in an image": """
class Inpainting(torch.utils.data.Dataset):
    def __getitem__(self, i):
        image = self.load(i)
        target = image  # <- DAT068
        image[:, 8:16, 8:16] = 0
        return image, target
""",
}

CORRECT = {
    "a copy": """
def mask(input_ids):
    labels = input_ids.clone()
    chosen = torch.rand(input_ids.shape) < 0.15
    labels[~chosen] = -100
    input_ids[chosen] = 1
    return input_ids, labels
""",
    "the input is copied later": """
def mask(input_ids):
    labels = input_ids
    input_ids = input_ids.clone()
    input_ids[torch.rand(input_ids.shape) < 0.15] = 1
    return input_ids, labels
""",
    "a new tensor": """
def mask(tokens):
    targets = tokens
    tokens = tokens.masked_fill(torch.rand(tokens.shape) < 0.15, 1)
    return tokens, targets
""",
    "a causal model": """
def collate(rows):
    input_ids = torch.stack(rows)
    labels = input_ids
    mask = torch.ones_like(input_ids)
    mask[:, -1] = 0
    return {"input_ids": input_ids, "labels": labels, "attention_mask": mask}
""",
    "only the labels are used": """
def labels_of(ids, pad_id):
    labels = ids
    labels[labels == pad_id] = -100
    return labels
""",
    "a dictionary": """
def prepare(sample, masked):
    target = sample
    sample["masked"] = masked
    return sample, target
""",
    "a number": """
def count(total, noise):
    target = total
    total += noise
    return total, target
""".replace("total +=", "total = total +"),
    "two functions of which one copies": """
def hide(tokens, p):
    tokens = tokens.clone()
    tokens[torch.rand(tokens.shape) < p] = 0
    return tokens
def step(model, tokens, criterion):
    labels = tokens
    tokens = hide(tokens, 0.15)
    return criterion(model(tokens), labels)
""",
    "either one or the other": """
def prepare(x, training):
    if training:
        target = x
    else:
        x[:, 0] = 0
        target = x.sum()
    return x, target
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_shared_tensor(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_copies(lint_is_clean, script):
    lint_is_clean(HEAD + script, "DAT068")
