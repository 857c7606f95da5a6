"""CKP005: state dicts whose names have nothing in common with those of the model, in the source."""

import pytest

HEAD = """
import copy
import torch
from torch import nn

def make_body(width=8):
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width))

class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = make_body(), nn.Linear(8, 4)
    def forward(self, x):
        return self.decoder(self.encoder(x))

class Classifier(nn.Module):
    def __init__(self, classes, width=8):
        super().__init__()
        self.width = width
        self.features = make_body(width)
        self.head = nn.Linear(width, classes)
    def forward(self, x):
        return self.head(self.features(x))

def fit(net, loss_of):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for x, y in batches():
        optimizer.zero_grad()
        loss_of(net, x, y).backward()
        optimizer.step()
    return net
"""

FAULTY = {
    "other attributes": """
pre = fit(Denoiser(), lambda net, x, y: (net(x) - x).square().mean())
clf = Classifier(5)
clf.load_state_dict(pre.state_dict(), strict=False)  # <- CKP005
fit(clf, lambda net, x, y: nn.functional.cross_entropy(net(x), y))
""",
    "a wrapper": """
wrapped = nn.parallel.DataParallel(Classifier(5))
fit(wrapped, lambda net, x, y: nn.functional.cross_entropy(net(x), y))
torch.save({"state_dict": wrapped.state_dict(), "epoch": 3}, "last.pt")
ckpt = torch.load("last.pt", weights_only=True)
plain = Classifier(5)
result = plain.load_state_dict(ckpt["state_dict"], False)  # <- CKP005
plain(torch.randn(3, 4))
""",
    "a compiled model": """
def store(net, path):
    torch.save(net.state_dict(), path)

def main():
    net = torch.compile(Classifier(3))
    fit(net, lambda net, x, y: nn.functional.cross_entropy(net(x), y))
    store(net, "net.pt")
    fresh = Classifier(3).eval()
    weights = torch.load("net.pt", map_location="cpu")
    fresh.load_state_dict(weights, strict=False)  # <- CKP005
    return fresh
main()
""",
    "a filter of unchanged names": """
pre = fit(Denoiser(), lambda net, x, y: (net(x) - x).square().mean())
torch.save(pre.state_dict(), "pre.pt")

class Trainer:
    def __init__(self):
        self.model = Classifier(5)
        own = self.model.state_dict()
        loaded = {k: v for k, v in torch.load("pre.pt").items() if k in own and v.shape == own[k].shape}
        self.model.load_state_dict(loaded, strict=False)  # <- CKP005

Trainer()
""",
    "into a part of the model": """
pre = fit(Denoiser(), lambda net, x, y: (net(x) - x).square().mean())
clf = Classifier(5)
clf.features.load_state_dict(pre.state_dict(), strict=False)  # <- CKP005
""",
    "only the norm has the same name": """
class Pretrained(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.norm, self.out = make_body(), nn.LayerNorm(8), nn.Linear(8, 4)
    def forward(self, x):
        return self.out(self.norm(self.trunk(x)))

class Finetuned(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = make_body()
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)
    def forward(self, x):
        return self.head(self.norm(self.backbone(x)))

source = fit(Pretrained(), lambda net, x, y: (net(x) - x).square().mean())
target = Finetuned()
target.load_state_dict(copy.deepcopy(source.state_dict()), strict=False)  # <- CKP005
""",
}

CORRECT = {
    "the same backbone": """
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.tags = make_body(), nn.Linear(8, 9)
    def forward(self, x):
        return self.tags(self.encoder(x))
tagger = Tagger()
tagger.load_state_dict(Denoiser().state_dict(), strict=False)
""",
    "renamed in a dict": """
state = {"features." + k[len("encoder."):]: v for k, v in Denoiser().state_dict().items() if k.startswith("encoder.")}
clf = Classifier(5)
clf.load_state_dict(state, strict=False)
""",
    "renamed by a function": """
def rename(state):
    for key in list(state):
        state[key.replace("encoder.", "features.")] = state.pop(key)
    return state
clf = Classifier(5)
clf.load_state_dict(rename(Denoiser().state_dict()), strict=False)
""",
    "renamed in place": """
state = Denoiser().state_dict()
for key in list(state.keys()):
    state[key.replace("encoder.", "features.")] = state.pop(key)
clf = Classifier(5)
clf.load_state_dict(state, strict=False)
""",
    "prefix removed by PyTorch": """
wrapped = nn.DataParallel(Classifier(5))
state = wrapped.state_dict()
nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")
clf = Classifier(5)
clf.load_state_dict(state, strict=False)
""",
    "the model in the wrapper": """
wrapped = nn.DataParallel(Classifier(5))
torch.save({"model": wrapped.module.state_dict()}, "a.pt")
clf = Classifier(5)
clf.load_state_dict(torch.load("a.pt")["model"], strict=False)
""",
    "both are wrapped": """
wrapped = nn.DataParallel(Classifier(5))
clf = nn.DataParallel(Classifier(7))
clf.load_state_dict(wrapped.state_dict(), strict=False)
""",
    "wrapped only with several devices": """
net = Classifier(5)
if torch.cuda.device_count() > 1:
    net = nn.DataParallel(net)
clf = Classifier(5)
clf.load_state_dict(net.state_dict(), strict=False)
""",
    "the part itself": """
pre = Denoiser()
clf = Classifier(5)
clf.features.load_state_dict(pre.encoder.state_dict(), strict=False)
""",
    "an encoder among other parts of the same class": """
class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = make_body()
        self.momentum = make_body()
    def forward(self, x):
        return self.encoder(x), self.momentum(x)
siamese = Siamese()
siamese.load_state_dict(Denoiser().state_dict(), strict=False)
""",
    "a model that gets its parts": """
class Wrapper(nn.Module):
    def __init__(self, encoder, name):
        super().__init__()
        setattr(self, name, encoder)
wrapper = Wrapper(make_body(), "encoder")
wrapper.load_state_dict(Denoiser().state_dict(), strict=False)
""",
    "strict": """
wrapped = nn.DataParallel(Classifier(5))
clf = Classifier(5)
clf.load_state_dict(wrapped.state_dict())
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_names_that_differ(lint_reports, script):
    lint_reports(HEAD + script, fixes=False)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_names_that_match_or_are_not_known(lint_is_clean, script):
    lint_is_clean(HEAD + script)
