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
    "a metric class with an update and a result": """
class TokenMetric:
    def __init__(self):
        self.hits, self.seen = 0, 0
    def update(self, guess, truth):
        self.hits += (guess == truth).sum().item()  # <- EVL019
        self.seen += truth.numel()
    def compute(self):
        return self.hits / self.seen
metric = TokenMetric()
for words, tags in loader:
    scores = model(words)
    n_real = (tags != PAD).sum().item()
    total_loss += criterion(scores.flatten(0, 1), tags.flatten()).item() * n_real
    metric.update(scores.argmax(-1), tags)
""",
    "one of two classes with an update": """
class Mean:
    def update(self, value, count):
        self.value += value * count
class Hits:
    def update(self, scores, gold):
        best = torch.argmax(scores, dim=-1)
        self.right = self.right + torch.sum(best == gold).item()  # <- EVL019
        self.all = self.all + gold.shape[0] * gold.shape[1]
average, hits = Mean(), Hits()
for words, tags in loader:
    hits.update(model(words), tags)
""",
    "an object that is called, in two steps": """
class Score:
    def __call__(self, scores, gold):
        best = scores.argmax(-1)
        right = (best == gold).sum().item()  # <- EVL019
        return right / gold.numel()
score = Score()
for step, (words, tags) in enumerate(loader):
    found.append(score(model(words), tags))
""",
    "a function that returns both numbers": """
def count(scores, gold):
    flat, gold = scores.argmax(-1).view(-1), gold.view(-1)
    return (flat == gold).sum().item(), gold.numel()  # <- EVL019
for words, tags in loader:
    right, n = count(model(words), tags)
""",
    "a lambda in a comprehension": """
token_accuracy = lambda scores, gold: (scores.argmax(-1) == gold).float().mean().item()  # <- EVL019
result = sum(token_accuracy(model(w), t) for w, t in loader) / len(loader)
""",
    "NumPy": """
def judge(scores, gold):
    best = scores.argmax(-1).cpu().numpy()
    return np.mean(best == gold.cpu().numpy())  # <- EVL019
for words, tags in loader:
    found.append(judge(model(words), tags))
""",
    "scikit-learn": """
for words, tags in loader:
    best = model(words).argmax(-1)
    found.append(accuracy_score(tags.flatten().numpy(), best.flatten().numpy()))  # <- EVL019
""",
    "a step that gets the whole batch": """
def step(model, batch):
    words, tags = batch
    scores = model(words)
    loss = criterion(scores.flatten(0, 1), tags.flatten())
    return loss, hit_rate(scores, tags)
def hit_rate(scores, gold):
    _, best = scores.max(dim=-1)
    return best.eq(gold).float().mean()  # <- EVL019
for batch in loader:
    loss, rate = step(model, batch)
""",
    "shifted tokens": """
for source, target in loader:
    scores = model(source, target[:, :-1])
    wanted = target[:, 1:]
    right = (scores.argmax(-1) == wanted).sum()  # <- EVL019
    rate = right / wanted.numel()
""",
}
CORRECT = {
    "a metric class that leaves out a label": """
class TokenMetric:
    def __init__(self, skipped):
        self.skipped = skipped
    def update(self, guess, truth):
        real = truth != self.skipped
        self.hits += (guess[real] == truth[real]).sum().item()
        self.seen += real.sum().item()
metric = TokenMetric(PAD)
for words, tags in loader:
    metric.update(model(words).argmax(-1), tags)
""",
    "a metric class that gets real positions": """
class TokenMetric:
    def update(self, guess, truth):
        self.hits += (guess == truth).sum().item()
        self.seen += truth.numel()
metric = TokenMetric()
for words, tags in loader:
    guess = model(words).argmax(-1)
    real = tags != PAD
    guess, tags = guess[real], tags[real]
    metric.update(guess, tags)
""",
    "hits at padded positions are impossible, and the real labels are the divisor": """
def score(scores, gold):
    right = (scores.argmax(-1) == gold).sum().item()
    return right / (gold != PAD).sum().item()
for words, tags in loader:
    found.append(score(model(words), tags))
""",
    "sentences without any mistake": """
def exact(scores, gold):
    return ((scores.argmax(-1) == gold) | (gold == PAD)).all(1).float().mean()
for words, tags in loader:
    found.append(exact(model(words), tags))
""",
    "cut to the length of one sentence": """
for words, tags in loader:
    n = int((tags[0] != PAD).sum())
    best = model(words).argmax(-1)[0, :n]
    found.append((best == tags[0, :n]).float().mean())
""",
    "a library's metric with the ignored label": """
metric = torchmetrics.Accuracy("multiclass", num_classes=5, ignore_index=PAD)
for words, tags in loader:
    metric.update(model(words).argmax(-1), tags)
""",
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


FILLED = """
import torch
from torch import nn
from torch.utils.data import DataLoader
IGNORE = -100
def join(samples):
    longest = max(len(words) for words, _ in samples)
    words = torch.tensor([list(w) + [0] * (longest - len(w)) for w, _ in samples])
    tags = torch.tensor([list(t) + [IGNORE] * (longest - len(t)) for _, t in samples])
    return words, tags
loader = DataLoader(data, batch_size=4, collate_fn=join)
criterion = nn.CrossEntropyLoss(ignore_index=IGNORE)
"""


def test_lint_reports_labels_that_lists_fill(lint_reports):
    lint_reports(FILLED + FAULTY["a metric class with an update and a result"].replace("PAD", "IGNORE"))


def test_lint_reports_padding_with_the_label_that_losses_ignore_by_default(lint_reports):
    head = HEAD.replace("pad_sequence(tags, batch_first=True)", "pad_sequence(tags, True, padding_value=-100)")
    lint_reports(head.replace("ignore_index=PAD", "") + FAULTY["NumPy"])


PROGRAM = """
import torch
from torch import nn

torch.manual_seed(0)
words = torch.randint(1, 20, (64, 12))
lengths = torch.randint(3, 12, (64,))
real = torch.arange(12) < lengths[:, None]
words, labels = words * real, torch.where(real, words % 4 + START, PAD)
model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 6))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss(ignore_index=PAD)
for epoch in range(4):
    for rows in torch.randperm(64).split(16):
        optimizer.zero_grad()
        criterion(model(words[rows]).flatten(0, 1), labels[rows].flatten()).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        METRIC
    model.train()
"""
RUN_FAULTY = {
    "a mean": ("guess = model(words).argmax(-1)", "print((guess == labels).float().mean())"),
    "flattened labels and a size": (
        "wanted, guess = labels.view(-1), model(words).argmax(-1).view(-1)",
        "print(guess.eq(wanted).sum().item() / wanted.numel())",
    ),
}
RUN_CORRECT = {
    "the number of real labels": (
        "guess = model(words).argmax(-1)",
        "print((guess == labels).sum().item() / real.sum().item())",
    ),
    "real labels only": ("guess = model(words).argmax(-1)", "print((guess == labels)[real].float().mean())"),
    "indexed before": (
        "guess, wanted = model(words).argmax(-1)[real], labels[real]",
        "print((guess == wanted).float().mean())",
    ),
    "whole sequences": (
        "guess = model(words).argmax(-1)",
        "print(((guess == labels) | ~real).all(1).float().mean())",
    ),
}


def _program(lines: tuple[str, ...], pad: int, mark: str = "") -> str:
    text = PROGRAM.replace("PAD", str(pad)).replace("START", "1" if pad == 0 else "0")
    return text.replace("METRIC", "\n        ".join(lines) + mark)


@pytest.mark.parametrize("pad", [-100, 0])
@pytest.mark.parametrize("lines", RUN_FAULTY.values(), ids=RUN_FAULTY.keys())
def test_run_reports_labels_with_padding(run_reports, lines, pad):
    run_reports(_program(lines, pad, "  # <- EVL019"))


@pytest.mark.parametrize("pad", [-100, 0])
@pytest.mark.parametrize("lines", RUN_CORRECT.values(), ids=RUN_CORRECT.keys())
def test_run_accepts_correct_programs(run_is_clean, lines, pad):
    run_is_clean(_program(lines, pad))


def test_run_accepts_a_class_that_the_loss_ignores_but_is_no_padding(run_is_clean):
    lines = ("guess = model(words).argmax(-1)", "print((guess == labels).float().mean())")
    text = _program(lines, 1).replace("torch.where(real, words % 4 + 0, 1)", "words % 4")
    run_is_clean(text)
