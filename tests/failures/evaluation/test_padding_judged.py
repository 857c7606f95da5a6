"""EVL019: accuracies that count padding."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

PAD = 0
def pad_batch(samples):
    words, tags = zip(*samples)
    return pad_sequence(words, batch_first=True), pad_sequence(tags, batch_first=True)
loader = DataLoader(data, batch_size=4, collate_fn=pad_batch)
criterion = nn.CrossEntropyLoss(ignore_index=PAD)
"""

FAULTY = {
    "a total of all labels": """
def evaluate(model, loader):
    correct = total = 0
    for words, tags in loader:
        predicted = model(words).argmax(-1)
        correct += (predicted == tags).sum().item()  # <- EVL019
        total += tags.numel()
    return correct / total
""",
    "a mean": """
for words, tags in loader:
    logits = model(words)
    accuracies.append((logits.argmax(2) == tags).float().mean().item())  # <- EVL019
""",
    "flattened, with a mask that only the model gets": """
for words, tags, mask in loader:
    target = tags.view(-1)
    scores = model(words, mask).view(-1, 5)
    _, predicted = scores.max(1), None
    hit = scores.argmax(1).eq(target)  # <- EVL019
    correct += hit.sum().item()
    total += target.numel()
""",
    "batches made by a function": """
for part in torch.arange(100).split(20):
    words, tags = pad_batch([data[i] for i in part])
    right = model(words).argmax(-1) == tags  # <- EVL019
    hits += right.sum().item()
    slots += right.numel()
""",
    "a dictionary, both sizes": """
for batch in valid_loader:
    tags = batch["tags"]
    right = model(batch["words"]).argmax(-1).eq(tags)  # <- EVL019
    hits += right.sum().item()
    slots += tags.size(0) * tags.size(1)
""",
    "a function": """
def accuracy(logits, tags):
    return (logits.argmax(-1) == tags).sum().item() / tags.numel()  # <- EVL019
for words, tags in loader:
    found.append(accuracy(model(words), tags))
""",
    "a class": """
class Tagger:
    def evaluate(self, valid_loader):
        for words, tags in valid_loader:
            self.total += tags.nelement()
            self.right += (self.model(words).argmax(-1) == tags).sum()  # <- EVL019
""",
}
CORRECT = {
    "a function that gets the real positions": """
def accuracy(logits, tags):
    return (logits.argmax(-1) == tags).sum().item() / tags.numel()
for words, tags in loader:
    found.append(accuracy(model(words)[tags != PAD], tags[tags != PAD]))
""",
    "the share of hits in another number": """
for part in torch.arange(100).split(20):
    words, tags = pad_batch([data[i] for i in part])
    right = (model(words).argmax(-1) == tags)[tags != PAD]
    hits += right.sum().item()
    slots += right.numel()
""",
    "indexed before by a comparison": """
for words, tags in loader:
    scores = model(words)[tags != 0]
    tags = tags[tags != 0]
    correct += (scores.argmax(-1) == tags).sum().item()
    total += tags.numel()
""",
    "a function with a mask": """
def accuracy(logits, tags):
    right = (logits.argmax(-1) == tags) * (tags != PAD)
    return right.sum().item() / (tags != PAD).sum().item()
for words, tags in loader:
    found.append(accuracy(model(words), tags))
""",
    "only the real positions": """
for words, tags in loader:
    keep = tags != PAD
    predicted = model(words).argmax(-1)
    correct += (predicted == tags)[keep].sum().item()
    total += keep.sum().item()
""",
    "combined with a mask": """
for words, tags, mask in loader:
    predicted = model(words).argmax(-1)
    correct += ((predicted == tags) & mask).sum().item()
    total += mask.sum().item()
""",
    "indexed before": """
for words, tags, mask in loader:
    scores = model(words)[mask]
    tags = tags[mask]
    correct += (scores.argmax(-1) == tags).sum().item()
    total += tags.numel()
""",
    "compared with the padding itself": """
for words, tags in loader:
    predicted = model(words).argmax(-1)
    correct += (predicted == tags).masked_select(tags.ne(PAD)).sum().item()
    total += tags.ne(PAD).sum().item()
""",
    "one label for each sequence": """
for words, labels in loader:
    correct += (model(words).argmax(1) == labels).sum().item()
    total += len(labels)
""",
    "the number of sentences that are right throughout": """
for words, tags in loader:
    correct += (model(words).argmax(-1) == tags).all(1).sum().item()
    total += len(tags)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_programs(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script)


def test_losses_without_ignored_labels_are_accepted(lint_is_clean):
    lint_is_clean(HEAD.replace("ignore_index=PAD", "") + FAULTY["a mean"].replace("# <- EVL019", ""))
