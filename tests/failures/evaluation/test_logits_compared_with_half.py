"""EVL017: logits that are compared with 0.5."""

import pytest

HEAD = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
    def forward(self, x):
        return self.fc(x)
model = Net()
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters())
def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
"""
FAULTY = {
    "the result of a sigmoid with 0": """
p = torch.sigmoid(model(x)).squeeze(1)
print(((p > 0) == y).float().mean())  # <- EVL017
""",
    "in an evaluation": """
def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            out = model(x)
            hits += ((out > 0.5) == y).sum()  # <- EVL017
evaluate(model, val)
""",
    "through a squeeze": """
with torch.no_grad():
    outputs = model(x).squeeze(1)
    predicted = (outputs.cpu() >= 0.5).long()  # <- EVL017
""",
    "a constant": """
THRESHOLD = 0.5
def predict(loader):
    with torch.no_grad():
        for x, y in loader:
            scores = model(x)
            found.append((scores > THRESHOLD).int())  # <- EVL017
predict(val)
""",
    "another threshold": """
def evaluate(model, loader, threshold=0.3):
    with torch.no_grad():
        for x, y in loader:
            out = model(x)
            found.append((out > threshold).float())  # <- EVL017
evaluate(model, val)
""",
    "rounded": """
predicted = torch.round(model(x))  # <- EVL017
""",
    "a function for metrics": """
def accuracy(logits, labels):
    return ((logits > 0.5).float() == labels).float().mean()  # <- EVL017
""",
    "an object that counts": """
class Meter:
    def __init__(self, threshold=0.5):
        self.threshold = threshold
        self.hits = 0
    def __call__(self, output, target):
        self.hits += ((output > self.threshold) == target).sum().item()  # <- EVL017
meter = Meter(threshold=0.5)
with torch.no_grad():
    for x, y in val:
        meter(model(x), y)
""",
    "a function that gets the outputs": """
def hits(out, y):
    return ((out > 0.5) == y).sum()  # <- EVL017
with torch.no_grad():
    print(sum(hits(model(x), y) for x, y in val))
""",
}
CORRECT = {
    "an object that gets probabilities": """
class Meter:
    def __init__(self, threshold=0.5):
        self.threshold = threshold
        self.hits = 0
    def __call__(self, output, target):
        self.hits += ((output > self.threshold) == target).sum().item()
meter = Meter()
with torch.no_grad():
    for x, y in val:
        meter(torch.sigmoid(model(x)), y)
""",
    "an object with the threshold of logits": """
class Meter:
    def __init__(self, threshold=0.5):
        self.threshold = threshold
        self.hits = 0
    def __call__(self, output, target):
        self.hits += ((output > self.threshold) == target).sum().item()
meter = Meter(0.0)
with torch.no_grad():
    for x, y in val:
        meter(model(x), y)
""",
    "probabilities": """
p = torch.sigmoid(model(x))
print(((p > 0.5) == y).float().mean(), torch.round(p))
""",
    "overwritten by probabilities": """
def accuracy(logits, labels):
    logits = logits.sigmoid()
    return ((logits > 0.5) == labels).float().mean()
""",
    "a threshold of logits": """
print(((model(x) > 1.5) == y).float().mean(), ((model(x) > -0.4) == y).float().mean())
""",
    "a sigmoid that is scaled": """
print((2 * torch.sigmoid(model(x)) - 1 > 0).float().mean(), (torch.tanh(model(x)) > 0).float().mean())
""",
    "a threshold of zero": """
print(((model(x) > 0) == y).float().mean())
""",
    "inputs and labels": """
y = (x[:, :3] > 0.5).float()
mask = torch.rand(3) > 0.5
""",
    "a second model that returns probabilities": """
head = nn.Sequential(nn.Linear(4, 3), nn.Sigmoid())
print(head(x) > 0.5)
""",
    "probabilities from a function": """
def predict(x):
    return torch.sigmoid(model(x))
print(predict(x) > 0.5)
""",
    "a threshold that was tuned": """
threshold = tune(model(x_val), y_val)
print(model(x) > threshold)
""",
    "a loss value": """
loss = criterion(model(x), y)
if loss > 0.5:
    print(loss.round())
""",
}

TAGGER = """
class Tagger(nn.Module):
    def __init__(self, cut):
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.cut = cut
    def forward(self, x, y=None):
        z = self.fc(x)
        if y is None:
            return z > self.cut  # <- EVL017
        return nn.functional.binary_cross_entropy_with_logits(z, y)
"""
FAULTY |= {
    "a threshold in a dictionary": TAGGER + "settings = dict(cut=0.5)\ntagger = Tagger(settings['cut'])\ntagger(x)\n",
    "a threshold in another dictionary": TAGGER + "cfg = {'cut': 0.5}\ntagger = Tagger(cut=cfg['cut'])\ntagger(x)\n",
    "an argument of the command line": """
parser.add_argument("--cut-off", type=float, default=0.5)
args = parser.parse_args()
print(torch.gt(model(x), args.cut_off))  # <- EVL017
""",
    "a field of a class": """
class Config:
    threshold: float = 0.5
config = Config()
print(config.threshold < model(x))  # <- EVL017
""",
}
CORRECT |= {
    "a threshold for logits in a dictionary": TAGGER.replace("  # <- EVL017", "")
    + "settings = dict(cut=0.0)\ntagger = Tagger(settings['cut'])\ntagger(x)\n",
    "a sigmoid before the threshold": TAGGER.replace("z > self.cut  # <- EVL017", "z.sigmoid() > self.cut")
    + "settings = dict(cut=0.5)\ntagger = Tagger(settings['cut'])\ntagger(x)\n",
    "a dictionary with a tuned threshold": TAGGER.replace("  # <- EVL017", "")
    + "found = dict(cut=tune(x))\ntagger = Tagger(found['cut'])\ntagger(x)\n",
    "an argument without a default": """
parser.add_argument("--cut", type=float, required=True)
print(model(x) > parser.parse_args().cut)
""",
}

COLLECTED = """
import numpy as np
preds, labels = [], []
with torch.no_grad():
    for x, y in val:
        out = model(x)
        ADD
JUDGE
"""


def collected(add, judge):
    return COLLECTED.replace("ADD", add).replace("JUDGE", judge)


APPENDED, LISTED = "preds.append(out.cpu())", "preds.extend(out.squeeze(1).cpu().detach().numpy().tolist())"
FAULTY |= {
    "collected and joined": collected(APPENDED, "preds = torch.cat(preds)\nhits = (preds > 0.5).float()  # <- EVL017"),
    "an array of a list": collected(LISTED, "preds = np.array(preds) >= 0.5  # <- EVL017"),
    "each of a list": collected(LISTED, "hits = [1 if p >= 0.5 else 0 for p in preds]  # <- EVL017"),
    "rounded by NumPy": collected("preds += out.tolist()", "hits = np.round(preds)  # <- EVL017"),
    "by a function": "def cut(values):\n    return [int(v > 0.5) for v in values]  # <- EVL017\n"
    + collected(LISTED, "preds = cut(preds)"),
    "returned with the labels": """
def validate(loader):
    outputs, targets = [], []
    for x, y in loader:
        out = model(x)
        outputs.extend(out.cpu().numpy().tolist())
        targets.extend(y.tolist())
    return outputs, targets
outputs, targets = validate(val)
outputs = np.array(outputs) >= 0.5  # <- EVL017
""",
    "one of two outputs": """
def fit(net: nn.Module, loader):
    for x, y in loader:
        binary, multi = net(x)
        optimizer.zero_grad()
        (criterion(binary, y) + other(multi, y)).backward()
        optimizer.step()
    validate(net, loader)
def validate(net: nn.Module, loader):
    for x, y in loader:
        binary, multi = net(x)
        print(((binary > 0.5) == y).float().mean(), (multi > 0.5).sum())  # <- EVL017
""",
}
CORRECT |= {
    "a sigmoid before collecting": collected("preds.append(out.sigmoid().cpu())", "hits = torch.cat(preds) > 0.5"),
    "a sigmoid after joining": collected(
        APPENDED, "preds = torch.sigmoid(torch.cat(preds))\nhits = (preds > 0.5).float()"
    ),
    "a sigmoid by hand": collected(APPENDED, "p = 1 / (1 + np.exp(-torch.cat(preds).numpy()))\nhits = p > 0.5"),
    "a list of losses": collected("preds.append(criterion(out, y).item())", "good = [p for p in preds if p < 0.5]"),
    "several thresholds": collected(APPENDED, "for t in (-0.5, 0.0, 0.5):\n    print(torch.cat(preds) > t)"),
    "a list of other values": collected("preds.append(y)", "hits = torch.cat(preds) > 0.5"),
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_comparison(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "EVL017")


CLASSES = HEAD.replace("BCEWithLogitsLoss", "CrossEntropyLoss")
CONFIDENT = {
    "unpacked": "conf, label = model(x).max(dim=1)\nkeep = conf > 0.9  # <- EVL017\n",
    "a function": "best, label = torch.max(model(x), 1)\nkeep = best.ge(0.8)  # <- EVL017\n",
    "the values": "keep = model(x).max(1).values >= 0.95  # <- EVL017\n",
    "the first item, a variable": "out = model(x)\ntop = out.max(1)[0]\nprint(top > 0.5)  # <- EVL017\n",
    "amax": "print(model(x).amax(1) > 0.7)  # <- EVL017\n",
}
UNCERTAIN = {
    "probabilities": "conf, label = model(x).softmax(1).max(dim=1)\nkeep = conf > 0.9\n",
    "probabilities in a variable": "p = torch.softmax(model(x), 1)\nconf, label = p.max(1)\nkeep = conf > 0.9\n",
    "the class": "value, label = model(x).max(dim=1)\nprint(label > 0.5)\n",
    "a margin of logits": "top = model(x).topk(2, 1).values\nprint(top[:, 0] - top[:, 1] > 0.5)\n",
    "an energy": "print(model(x).max(1).values > 8.0)\n",
}


@pytest.mark.parametrize("script", CONFIDENT.values(), ids=CONFIDENT)
def test_lint_reports_a_logit_as_confidence(lint_reports, script):
    lint_reports(CLASSES + script)


@pytest.mark.parametrize("script", UNCERTAIN.values(), ids=UNCERTAIN)
def test_lint_accepts_confidences(lint_is_clean, script):
    lint_is_clean(CLASSES + script, "EVL017")


STATS = "import segmentation_models_pytorch as smp\nout = model(x)\n"


@pytest.mark.parametrize("head", [HEAD, CLASSES])
def test_lint_reports_counts_of_logits(lint_reports, head):
    call = "tp, fp, fn, tn = smp.metrics.get_stats(out, y.long(), mode='multilabel', threshold=0.5)  # <- EVL017\n"
    lint_reports(head + STATS + call)


@pytest.mark.parametrize(
    "call",
    [
        "smp.metrics.get_stats(out.sigmoid(), y.long(), mode='binary', threshold=0.5)",
        "smp.metrics.get_stats((out > 0).long(), y.long(), mode='binary')",
        "smp.metrics.get_stats(out, y.long(), mode='binary', threshold=0)",
    ],
)
def test_lint_accepts_counts_of_probabilities_and_classes(lint_is_clean, call):
    lint_is_clean(HEAD + STATS + f"print({call})\n", "EVL017")


RUN = """
import torch
from torch import nn
torch.manual_seed(0)
v1 = torch.randn(64, 4)
v2 = (v1[:, :3] > 0).float()
v3 = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
v4 = torch.optim.SGD(v3.parameters(), lr=0.1)
v5 = {loss}
for v6 in range(12):
    for v7 in torch.randperm(64).split(16):
        v4.zero_grad()
        v5(v3(v1[v7]), v2[v7]).backward()
        v4.step()
    v3.eval()
    with torch.no_grad():
        {judge}
    v3.train()
"""
LOGITS = "nn.BCEWithLogitsLoss()"
SQUASHING = """type("Net", (nn.Sequential,), {"forward": lambda s, x: (y := nn.Sequential.forward(s, x),
    y if s.training else y.sigmoid())[1]})("""
FAULTY_RUNS = {
    "compared": (LOGITS, "v8 = (v3(v1) > 0.5).float()  # <- EVL017"),
    "the other way round": (LOGITS, "v9 = v3(v1); v8 = (0.5 <= v9.view(-1)) == v2.view(-1)  # <- EVL017"),
    "a method, after a copy to the same device": (LOGITS, "v8 = v3(v1).detach().cpu().ge(0.5)  # <- EVL017"),
    "rounded, of a functional loss": (
        "nn.functional.binary_cross_entropy_with_logits",
        "v8 = torch.round(v3(v1)).eq(v2).all(1)  # <- EVL017",
    ),
}
CORRECT_RUNS = {
    "probabilities": (LOGITS, "v8 = v3(v1).sigmoid() > 0.5"),
    "in place": (LOGITS, "v8 = v3(v1).sigmoid_() > 0.5"),
    "logits and 0": (LOGITS, "v8 = v3(v1) > 0.0"),
    "a search for the threshold": (LOGITS, "v8 = v3(v1); v9 = [(v8 > v10).eq(v2).sum() for v10 in (0.0, 0.5, 1.0)]"),
    "another loss": ("nn.MSELoss()", "v8 = v3(v1) > 0.5"),
    "one column": (LOGITS, "v8 = v3(v1)[:, 0] > 0.5"),
    "the targets": (LOGITS, "v8 = v3(v1).sigmoid(); v9 = (v2 > 0.5) == (v8 > 0.5)"),
    "printed": (LOGITS, "v8 = v3(v1).round(decimals=2)"),
    "inputs": (LOGITS, "v8 = v3(v1); v9 = v1 > 0.5"),
}


@pytest.mark.parametrize(("loss", "judge"), FAULTY_RUNS.values(), ids=FAULTY_RUNS.keys())
def test_run_reports_logits_compared_with_half(run_reports, loss, judge):
    run_reports(RUN.format(loss=loss, judge=judge))


@pytest.mark.parametrize(("loss", "judge"), CORRECT_RUNS.values(), ids=CORRECT_RUNS.keys())
def test_run_accepts_other_comparisons(run_is_clean, loss, judge):
    run_is_clean(RUN.format(loss=loss, judge=judge))


def test_run_accepts_a_model_that_returns_probabilities_in_eval_mode(run_is_clean):
    script = RUN.format(loss=LOGITS, judge="v8 = v3(v1) > 0.5").replace("nn.Sequential(nn", SQUASHING + "nn")
    run_is_clean(script)
