"""LOS027: labels of a language model that the data and the model shift."""

import pytest

MODEL = """
import torch
from torch import nn
import torch.nn.functional as F

class Model(nn.Module):
    def forward(self, input_ids, labels=None):
        logits = self.head(self.body(input_ids))
        loss = None
        if labels is not None:
            shift_logits = logits[..., :-1, :].contiguous()
            shift_labels = labels[..., 1:].contiguous()
            loss = F.cross_entropy(shift_logits.view(-1, 50), shift_labels.view(-1))
        return loss, logits
"""
PLAIN = MODEL.replace("logits[..., :-1, :]", "logits").replace("labels[..., 1:]", "labels")
HUB = """
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("gpt2")
"""
COLLATE = """
def collate(items):
    ids, labels = [], []
    for item in items:
        ids.append(item["input_ids"])
        labels.append(item["labels"][1:] + [-100])  # <- LOS027
    return torch.tensor(ids), torch.tensor(labels)
"""
PAIRS = """
import torch
from torch import nn
class Tunes(torch.utils.data.Dataset):
    def __getitem__(self, i):
        t = self.tunes[i]
        return t[:-1], t[1:]
"""
LOSS = """
def sequence_loss(logits, labels):
    return nn.functional.cross_entropy(logits[:, :-1].reshape(-1, logits.size(-1)), labels[:, 1:].reshape(-1))
"""
LOOP = """
for x, y in torch.utils.data.DataLoader(Tunes(600), batch_size=30):
    loss = sequence_loss(net(x), y)
    loss.backward()
"""
FAULTY = {
    "a list": MODEL + COLLATE,
    "a dictionary": MODEL
    + """
def encode(text):
    ids = tokenize(text)
    return {"input_ids": ids, "labels": ids[1:] + [-100]}  # <- LOS027
""",
    "a model of the hub": HUB
    + """
for batch in loader:
    ids = batch["input_ids"]
    labels = torch.cat([ids[:, 1:], pad], dim=1)  # <- LOS027
    loss = model(input_ids=ids, labels=labels).loss
""",
    "a loss function and a dataset": PAIRS.replace("t[1:]", "t[1:]  # <- LOS027") + LOSS + LOOP,
    "a loss in the loop and random windows": """
import torch
import torch.nn.functional as F
def get_batch(data, n, t):
    starts = torch.randint(len(data) - t - 1, (n,)).tolist()
    x = torch.stack([data[i : i + t] for i in starts])
    y = torch.stack([data[i + 1 : i + 1 + t] for i in starts])  # <- LOS027
    return x, y
for step in range(100):
    x, y = get_batch(data, 8, 32)
    logits = model(x)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), y[:, 1:].flatten())
    loss.backward()
""",
    "in one loop": """
import torch
criterion = torch.nn.CrossEntropyLoss()
for tokens in loader:
    inputs, targets = tokens[:, :-1], tokens[:, 1:]  # <- LOS027
    scores = model(inputs)
    scores, after = scores[:, :-1, :], targets[:, 1:]
    loss = criterion(scores.reshape(-1, 50), after.reshape(-1))
    loss.backward()
""",
    "a model of the hub, in a function": HUB
    + """
def train_batch(model, optimizer, ids):
    targets = torch.cat([ids[:, 1:], ids[:, :1]], dim=1)  # <- LOS027
    output = model(input_ids=ids, labels=targets, attention_mask=None)
    optimizer.zero_grad()
    output.loss.backward()
    optimizer.step()
""",
    "an optional argument that is given": HUB
    + """
def score(ids, labels=None):
    return model(input_ids=ids, labels=labels).loss

for ids in loader:
    labels = ids[:, 1:]  # <- LOS027
    score(ids, labels).backward()
    score(ids)
""",
    "a loss function of the program around the model": MODEL
    + """
def compute_loss(net, ids, targets):
    return net(ids, targets)[0]

def validate(net, loader):
    for ids in loader:
        moved_labels = F.pad(ids[:, 1:], (0, 1), value=-100)  # <- LOS027
        yield compute_loss(net, ids, moved_labels)

print(list(validate(Model(), tokens)))
""",
}

DECODED = {
    "a decoder without labels": """
class Autoencoder(nn.Module):
    def __init__(self, encoder, name):
        super().__init__()
        self.encoder, self.decoder = encoder, AutoModelForCausalLM.from_pretrained(name)

    def forward(self, ids, mask):
        length = ids.shape[1]
        inputs = ids.clone()[:, : length - 1]
        target_ids = ids[:, 1:]
        output = self.decoder(input_ids=inputs, encoder_hidden_states=self.encoder(ids)[:, None], labels=None)
        criterion = nn.CrossEntropyLoss(ignore_index=0)
        return criterion(output[0].flatten(0, 1), target_ids.reshape(-1))
""",
    "an option that is never given": """
def logits_of(ids, labels=None):
    return model(input_ids=ids, labels=labels).logits

for ids in loader:
    moved = ids[:, :-1]
    labels = ids[:, 1:]
    F.cross_entropy(logits_of(moved).transpose(1, 2), labels).backward()
""",
    "a loss by hand next to that of the model": """
for batch in loader:
    output = model(input_ids=batch["ids"], labels=batch["ids"])
    shift_logits = output.logits[..., :-1, :].contiguous()
    shift_labels = batch["ids"][..., 1:].contiguous()
    per_token = F.cross_entropy(shift_logits.view(-1, 50257), shift_labels.view(-1), reduction="none")
    (per_token * batch["weights"][..., :-1].flatten()).mean().backward()
""",
    "a criterion as attribute": """
class Trainer:
    def __init__(self, net):
        self.net, self.criterion = net, nn.CrossEntropyLoss()

    def validate(self, ids):
        return self.net(input_ids=ids, labels=ids).loss

    def train(self, ids):
        label_ids = ids[:, 1:]
        return self.criterion(input=self.net(ids).logits[:, :-1].transpose(1, 2), target=label_ids)

trainer = Trainer(model)
""",
    "labels of None for all": """
no_labels = None
for ids in loader:
    labels = ids[:, 1:]
    per_token = model(input_ids=ids[:, :-1], labels=no_labels).logits.log_softmax(-1)
    (-per_token.gather(-1, labels[..., None]).mean()).backward()
""",
}

CORRECT = {
    **{
        name: "import torch\nfrom torch import nn\nimport torch.nn.functional as F" + HUB + each
        for name, each in DECODED.items()
    },
    "the loss shifts whole sequences": PAIRS.replace("t[:-1], t[1:]", "t, t") + LOSS + LOOP,
    "the dataset shifts": PAIRS + LOSS.replace("[:, :-1]", "").replace("[:, 1:]", "") + LOOP,
    "the loss compares with the inputs": PAIRS + LOSS + LOOP.replace("(net(x), y)", "(net(x), x)"),
    "the inputs are shifted in the loop": """
import torch
import torch.nn.functional as F
def rough(x):
    return (x[:, 1:] - x[:, :-1]).abs().mean()
def evaluate(model, tokens):
    x, y = tokens[:, :-1], tokens[:, 1:]
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())
for tokens in loader:
    logits = model(tokens)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
""",
    "a mask of unlikely tokens is moved": """
import torch
def filtered(scores, share):
    ranked, order = torch.sort(scores, descending=True)
    removed = ranked.softmax(-1).cumsum(-1) > share
    removed[..., 1:] = removed[..., :-1].clone()
    removed[..., 0] = False
    return scores.masked_fill(removed.scatter(-1, order, removed), -torch.inf)
"""
    + LOSS
    + LOOP,
    "an evaluation that compares with the outputs itself": MODEL
    + """
@torch.no_grad()
def judge(model, ids):
    result = model(ids)
    targets = ids[:, 1:]
    return (result.logits[:, :-1].argmax(-1) == targets).float().mean()
""",
    "the data shift": PLAIN + COLLATE.replace("  # <- LOS027", ""),
    "the model shifts": MODEL
    + """
def encode(text):
    ids = tokenize(text)
    return {"input_ids": ids, "labels": list(ids)}
""",
    "both lose their first token": MODEL
    + """
def encode(text):
    ids = tokenize(text)
    return {"input_ids": ids[1:], "labels": mask(ids)[1:]}
""",
    "two models that shift": MODEL + MODEL.replace("class Model", "class Other"),
    "a model of the hub": HUB + "loss = model(input_ids=ids, labels=ids.clone()).loss\n",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_labels_that_are_shifted_twice(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_labels_that_are_shifted_once(lint_is_clean, script):
    lint_is_clean(script, "LOS027")


RUN = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
v0 = torch.randint(0, 9, (48, 14))
v1 = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 9))
v2 = torch.optim.SGD(v1.parameters(), lr=0.1)
for v3 in v0.split(12):
    {data}
    v6 = v1(v4)
    v7 = {loss}
    v2.zero_grad()
    v7.backward()
    v2.step()
"""
MOVED = "v4, v5 = v3[:, :-1], v3[:, 1:]"
PADDED = "v4, v5 = v3, torch.cat([v3[:, 1:], torch.full((12, 1), -100)], 1)"
FLAT = "F.cross_entropy({}.reshape(-1, 9), {}.reshape(-1))"
FAULTY_RUNS = {
    "in the data and in the loss": (MOVED, FLAT.format("v6[:, :-1]", "v5[:, 1:]")),
    "classes in the middle": (MOVED, "F.cross_entropy(v6[:, :-1].transpose(1, 2), v5[:, 1:])"),
    "padded in the data": (PADDED, FLAT.format("v6[..., :-1, :]", "v5[..., 1:]")),
    "padded in both": (PADDED, FLAT.format("v6", "F.pad(v5, (0, 1), value=-100)[:, 1:]")),
    "a slice of both that begins later": (MOVED, FLAT.format("v6[:, 3:-1]", "v5[:, 4:]")),
}
CORRECT_RUNS = {
    "in the data": (MOVED, FLAT.format("v6", "v5")),
    "in the loss": ("v4 = v5 = v3", FLAT.format("v6[:, :-1]", "v5[:, 1:]")),
    "padded": (PADDED, FLAT.format("v6", "v5")),
    "without a prompt": (MOVED, FLAT.format("v6[:, 1:]", "v5[:, 1:]")),
    "without a prompt, in the loss": ("v4 = v5 = v3", FLAT.format("v6[:, 3:-1]", "v5[:, 4:]")),
    "two tokens": (
        MOVED,
        FLAT.format("v6", "v5") + " + " + FLAT.format("v6[:, :-1]", "v5[:, 1:]"),
    ),
    "equal tokens": ("v3 = v3 * 0; v4, v5 = v3[:, :-1], v3[:, 1:]", FLAT.format("v6[:, :-1]", "v5[:, 1:]")),
    "tags": ("v4 = v3; v5 = v3 % 3", FLAT.format("v6", "v5")),
}


@pytest.mark.parametrize(("data", "loss"), FAULTY_RUNS.values(), ids=FAULTY_RUNS.keys())
def test_run_reports_labels_that_are_shifted_twice(run, data, loss):
    found = run(RUN.format(data=data, loss=loss)).reported_lines
    assert found == {("LOS027", 13)}


@pytest.mark.parametrize(("data", "loss"), CORRECT_RUNS.values(), ids=CORRECT_RUNS.keys())
def test_run_accepts_labels_that_are_shifted_once(run, data, loss):
    assert not [each for each, _ in run(RUN.format(data=data, loss=loss)).reported_lines if each == "LOS027"]
