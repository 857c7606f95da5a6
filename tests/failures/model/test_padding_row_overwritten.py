"""MDL042: initialisations that overwrite the row for padding, and correct programs that look like it."""

import pytest

HEAD = "import torch\nfrom torch import nn\nPAD = 0\n"
BAG = """
class Bag(nn.Module):
    def __init__(self, vocabulary=50, dim=16):
        super().__init__()
        self.emb = nn.{kind}(vocabulary, dim, padding_idx=PAD)
        self.fc = nn.Linear(dim, 3)
        {init}

    {method}

    def forward(self, tokens):
        {forward}
        return self.fc(pooled)
"""
METHOD = "def extra_repr(self):\n        return ''"
SUM = "pooled = self.emb(tokens).sum(dim=1)"
LOOP = """
model = Bag()
{after}
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    tokens, labels = torch.randint(0, 50, (8, 12)), torch.randint(3, (8,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(tokens), labels).backward()
    optimizer.step()
"""


def program(init="pass", method=METHOD, forward=SUM, after="", kind="Embedding"):
    return HEAD + BAG.format(kind=kind, init=init, method=method, forward=forward) + LOOP.format(after=after)


INIT_METHOD = """def init_weights(self, module):
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=1.0){mark}{more}"""
SCORE = (
    "state = torch.randn(16)\n        item = self.emb(tokens[:, 0])\n        score = {}\n        "
    "pooled = item * score[:, None]"
)
BROKEN = {
    "a weighted sum": program(
        "nn.init.normal_(self.emb.weight)  # T",
        forward="x = self.emb(tokens)\n        pooled = (x * torch.rand(8, 12).unsqueeze(-1)).sum(1)",
    ),
    "a sum with attention": program(
        "nn.init.normal_(self.emb.weight)  # T",
        forward="x = self.emb(tokens)\n        a = x.sum(2, keepdim=True).softmax(1)\n        "
        "pooled = torch.sum(a * x, dim=1)",
    ),
    "a scaled sum": program(
        "nn.init.normal_(self.emb.weight)  # T", forward="pooled = (self.emb(tokens) * 0.1).sum(1)"
    ),
    "by name": program("nn.init.normal_(self.emb.weight, std=0.02)  # T"),
    "apply": program("self.apply(self.init_weights)", INIT_METHOD.format(mark="  # T", more="")),
    "a function and apply": "from torch import nn\ndef init(m):\n    if isinstance(m, (nn.Linear, nn.Embedding)):\n"
    "        m.weight.data.normal_(0.0, 0.02)  # T\n" + program(after="model.apply(init)"),
    "all parameters": program(after="for p in model.parameters():\n    if p.dim() > 1:\n"
                              "        nn.init.xavier_uniform_(p)  # T"),
    "a progress bar": program(after="for p in tqdm(model.parameters(), desc='init'):\n    if p.dim() > 1:\n"
                              "        nn.init.xavier_uniform_(p)  # T"),
    "all parameters of self": program("self.reset()",
                                      "def reset(self):\n        for name, p in self.named_parameters():\n"
                                      "            nn.init.uniform_(p.data, -0.1, 0.1)  # T"),
    "data": program("self.emb.weight.data.uniform_(-0.1, 0.1)  # T"),
    "a mean through variables": program(
        "self.reset()",
        "def reset(self):\n        weight = self.emb\n        nn.init.uniform_(weight.weight, -1, 1)  # T",
        "vectors = self.emb(tokens)\n        pooled = torch.mean(vectors, 1)",
    ),
    "modules": program("for m in self.modules():\n            if isinstance(m, nn.Embedding):\n"
                       "                nn.init.trunc_normal_(m.weight, std=0.02)  # T"),
    "a comprehension": program(after="print([nn.init.normal_(p) for p in model.parameters()])  # T"),
    "outside": program(after="nn.init.normal_(model.emb.weight)  # T"),
}  # fmt: skip
CORRECT = {
    "no initialisation": program(),
    "set to zero": program("nn.init.normal_(self.emb.weight); self.emb.weight.data[PAD].zero_()"),
    "set to zero in apply": program(
        "self.apply(self.init_weights)",
        INIT_METHOD.format(mark="", more="\n            nn.init.zeros_(module.weight[module.padding_idx])"),
    ),
    "filled by the layer": program("nn.init.normal_(self.emb.weight); self.emb._fill_padding_idx_with_zero()"),
    "a mask": program(
        "nn.init.normal_(self.emb.weight)",
        forward="mask = (tokens != PAD).unsqueeze(2)\n        pooled = (self.emb(tokens) * mask).sum(1)",
    ),
    "pretrained": program("self.emb.weight.data.copy_(torch.randn(50, 16))"),
    "only linear layers": program(
        "self.apply(self.init_weights)",
        "def init_weights(self, m):\n        if isinstance(m, nn.Linear):\n            nn.init.normal_(m.weight)",
    ),
    "another layer": program("nn.init.normal_(self.fc.weight)"),
    "a bag": program("nn.init.normal_(self.emb.weight)", forward="pooled = self.emb(tokens)", kind="EmbeddingBag"),
    "no padding": program("nn.init.normal_(self.emb.weight)").replace(", padding_idx=PAD", ""),
    "zeros": program("nn.init.zeros_(self.emb.weight)"),
    "other parameters": program(after="for name, p in model.named_parameters():\n    if 'fc' in name:\n"
                                "        nn.init.normal_(p)"),
    "a score": program("nn.init.normal_(self.emb.weight)", forward=SCORE.format("(state * item).sum(dim=1)")),
    "a score by mul": program(
        "self.apply(self.init_weights)",
        INIT_METHOD.format(mark="", more=""),
        SCORE.format("torch.mul(state, item).sum(dim=1)"),
    ),
    "a score by a method": program(
        "nn.init.normal_(self.emb.weight)", forward=SCORE.format("torch.sum(state.mul(item), dim=1)")
    ),
    "a fixed length": program("nn.init.normal_(self.emb.weight)", forward="pooled = self.emb(tokens[:, 0])"),
}  # fmt: skip


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
def test_lint_reports_initialisations(lint_reports, script):
    lint_reports(script.replace("# T", "# <- MDL042"))


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_programs(lint_is_clean, script):
    lint_is_clean(script, "MDL042")
