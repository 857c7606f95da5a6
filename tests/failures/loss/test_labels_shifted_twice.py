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
}
CORRECT = {
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
