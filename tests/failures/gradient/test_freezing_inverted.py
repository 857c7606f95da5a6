"""GRD036: settings that freeze what they should train, and the other way round."""

import pytest

HEAD = """
import torch
from torch import nn
"""
FAULTY = {
    "a branch": """
def layer(weights, trainable=True):
    emb = nn.Embedding(*weights.shape)
    if trainable:
        emb.weight.requires_grad = False  # <- GRD036
    return emb
""",
    "a loop": """
if args.freeze_backbone:
    for p in model.backbone.parameters():
        p.requires_grad = True  # <- GRD036
""",
    "not frozen": """
if not freeze:
    model.requires_grad_(False)  # <- GRD036
""",
    "assigned": """
for p in model.parameters():
    p.requires_grad = self.freeze  # <- GRD036
""",
    "an argument": """
emb = nn.Embedding.from_pretrained(vectors, freeze=trainable)  # <- GRD036
w = nn.Parameter(torch.zeros(8), requires_grad=frozen)  # <- GRD036
""",
    "the other branch": """
if trainable:
    print("trained")
else:
    model.requires_grad_(True)  # <- GRD036
""",
}
CORRECT = {
    "a state": "class Net(nn.Module):\n    def update(self):\n        if self.frozen:\n"
    "            self.requires_grad_(True)\n            self.frozen = False\n",
    "a function that unfreezes": "def unfreeze(model):\n    if model.frozen:\n        model.requires_grad_(True)\n",
    "frozen": "if freeze:\n    model.requires_grad_(False)\nelse:\n    model.requires_grad_(True)\n",
    "not trainable": "if not trainable:\n    emb.weight.requires_grad = False\n",
    "assigned": "emb.weight.requires_grad = trainable\nmodel.requires_grad_(not freeze)\np.requires_grad = not fixed\n",
    "the head is trained": "if freeze:\n    body.requires_grad_(False)\n    head.requires_grad_(True)\n",
    "another part": "if train_head:\n    body.requires_grad_(False)\nif fine_tune:\n    body.requires_grad_(False)\n",
    "a negated name": "if no_freeze:\n    model.requires_grad_(True)\nif non_trainable:\n    w.requires_grad = False\n",
    "an epoch": "if epoch > freeze_epochs:\n    model.requires_grad_(True)\n"
    "if epoch == unfreeze_at:\n    model.requires_grad_()\n",
    "arguments": "emb = nn.Embedding.from_pretrained(v, freeze=not trainable)\nw = f(x, requires_grad=trainable)\n",
    "unfreeze": "def set_trainable(model, unfreeze):\n    if unfreeze:\n        model.requires_grad_(True)\n",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_inverted_settings(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_other_settings(lint_is_clean, script):
    lint_is_clean(HEAD + script, "GRD036")
