"""LOS002: a loss whose input has the wrong scale."""

from __future__ import annotations

import pytest

DATA = """
import torch
import torch.nn.functional as F
from torch import nn
x = torch.randn(64, 6)
y = x[:, :4].argmax(1)
b = (x[:, :1] > 0).float()
"""
LOOP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):
    optimizer.zero_grad()
    loss = loss_of(model)
    loss.backward()
    optimizer.step()
"""
TASKS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 4), nn.Linear(8, 1)
    def forward(self, x):
        h = self.body(x).relu()
        return [%s, self.b(h)]
model = Net()
def fit(predicted, target, task):
    if task == "class":
        loss = F.nll_loss(predicted, target)%s
    if task == "number":
        loss = (predicted - target).abs().mean()
    return loss
def loss_of(model):
    predicted = model(x)
    return fit(predicted[0], y, "class") + fit(predicted[1], b, "number")
"""
"""One function computes the loss of either task, selected by an argument."""
CTC = """
sound, symbols = torch.randn(4, 9, 6), torch.randint(1, 5, (4, 3))
lengths = torch.full((4,), 9), torch.full((4,), 3)
"""
FAULTY = {
    "nll_of_logits": """
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
criterion = nn.NLLLoss()
def loss_of(model):
    return criterion(model(x), y)  # <- LOS002
"""
    + LOOP,
    "one_task_of_two": TASKS % ("self.a(h)", "  # <- LOS002") + LOOP,
    "nll_of_softmax": """
model = nn.Sequential(nn.Linear(6, 4), nn.Softmax(dim=-1))
loss_of = lambda model: F.nll_loss(model(x), y)  # <- LOS002
"""
    + LOOP,
    "nll_of_log_softmax_undone_by_exp": """
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4), nn.LogSoftmax(dim=1))
loss_of = lambda model: F.nll_loss(torch.exp(model(x)), y)  # <- LOS002
"""
    + LOOP,
    "nll_of_a_convolution": """
class Pixels(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 1)
    def forward(self, x):
        return self.conv(x)
model, image, labels = Pixels(), torch.randn(2, 1, 4, 4), torch.randint(0, 3, (2, 4, 4))
def loss_of(model):
    out = model(image)
    return F.nll_loss(out, labels)  # <- LOS002
"""
    + LOOP,
    "sigmoid_twice": """
from torch.nn.functional import binary_cross_entropy_with_logits as bce
model = nn.Sequential(nn.Linear(6, 1), nn.Sigmoid())
def loss_of(model):
    prediction = model(x).squeeze(1)
    return bce(prediction, b.squeeze(1))  # <- LOS002
"""
    + LOOP,
    "softmax_column": """
model = nn.Linear(6, 2)
criterion = nn.BCEWithLogitsLoss()
def loss_of(model):
    with torch.autocast("cpu", torch.bfloat16):
        positive = model(x).softmax(1)[:, 1]
    return criterion(positive, b[:, 0]) / 2  # <- LOS002
"""
    + LOOP,
    "ctc_of_logits": CTC
    + """
head, criterion = nn.Linear(6, 5), nn.CTCLoss()
model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), head)
def loss_of(model):
    scores = model(sound).permute(1, 0, 2)
    return criterion(scores, symbols, *lengths)  # <- LOS002
"""
    + LOOP,
    "ctc_of_logits_from_a_recogniser": CTC
    + """
class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(6, 8, batch_first=True), nn.Linear(8, 5)
    def forward(self, frames):
        states, _ = self.rnn(frames)
        return self.out(states).transpose(0, 1)
model = Recogniser()
loss_of = lambda net: F.ctc_loss(net(sound), symbols, *lengths, reduction="sum") / 4  # <- LOS002
"""
    + LOOP,
    "ctc_of_probabilities": CTC
    + """
model = nn.Sequential(nn.Linear(6, 5), nn.Softmax(-1))
def loss_of(model):
    return nn.functional.ctc_loss(model(sound).transpose(0, 1), symbols, *lengths)  # <- LOS002
"""
    + LOOP,
    "bce_of_logits_that_happen_to_fit": """
model = nn.Linear(6, 1)
nn.init.zeros_(model.weight)
nn.init.constant_(model.bias, 0.5)
def loss_of(model):
    return F.binary_cross_entropy(model(x * 1e-3), b)  # <- LOS002
"""
    + LOOP,
}
CORRECT = {
    "a teacher's probabilities, named before the logits": """
model, teacher = nn.Linear(6, 1), nn.Linear(6, 1).requires_grad_(False)
loss_of = lambda m: F.binary_cross_entropy_with_logits(target=torch.sigmoid(teacher(x)), input=m(x))
"""
    + LOOP,
    "a_loss_for_each_task": TASKS % ("F.log_softmax(self.a(h), dim=1)", "") + LOOP,
    "ctc_of_log_softmax": CTC
    + """
model = nn.Linear(6, 5)
loss_of = lambda m: F.ctc_loss(m(sound).log_softmax(-1).transpose(0, 1), symbols, *lengths)
"""
    + LOOP,
    "ctc_of_a_log_softmax_layer_with_padding": CTC
    + """
model, criterion = nn.Sequential(nn.Linear(6, 5), nn.LogSoftmax(-1)), nn.CTCLoss()
mask = (torch.arange(9) < 7)[None, :, None]
lengths = torch.full((4,), 7), torch.full((4,), 3)
loss_of = lambda m: criterion((m(sound) * mask).permute(1, 0, 2).contiguous(), symbols, *lengths)
"""
    + LOOP,
    "ctc_of_the_logarithm_of_probabilities": CTC
    + """
model = nn.Linear(6, 5)
loss_of = lambda m: F.ctc_loss((m(sound).softmax(-1) + 1e-8).log().transpose(0, 1), symbols, *lengths)
"""
    + LOOP,
    "ctc_of_a_mixture": CTC
    + """
model = nn.Linear(6, 10)
def loss_of(m):
    experts = m(sound).view(4, 9, 2, 5).log_softmax(-1)
    mixed = experts.logsumexp(2) - torch.tensor(2.0).log()
    return F.ctc_loss(mixed.transpose(0, 1), symbols, *lengths)
"""
    + LOOP,
    "nll_of_log_softmax": "model = nn.Linear(6, 4)\nloss_of = lambda m: F.nll_loss(m(x).log_softmax(1), y)" + LOOP,
    "cross_entropy": "model = nn.Linear(6, 4)\nloss_of = lambda m: F.cross_entropy(m(x), y)" + LOOP,
    "bce_of_sigmoid": "model = nn.Linear(6, 1)\nloss_of = lambda m: F.binary_cross_entropy(m(x).sigmoid(), b)" + LOOP,
    "bce_of_a_softmax_column": "model = nn.Linear(6, 2)\n"
    "loss_of = lambda m: F.binary_cross_entropy(m(x).softmax(1)[:, 1], b[:, 0])" + LOOP,
    "bce_of_a_mean": "model = nn.Linear(6, 3)\n"
    "loss_of = lambda m: F.binary_cross_entropy(m(x).sigmoid().mean(1, keepdim=True), b)" + LOOP,
    "bce_of_attention": "model = nn.Linear(6, 64)\n"
    "loss_of = lambda m: F.binary_cross_entropy((m(x).softmax(1) @ b).clamp(0, 1), b)" + LOOP,
    "bce_with_logits": "model = nn.Linear(6, 1)\nloss_of = lambda m: F.binary_cross_entropy_with_logits(m(x), b)"
    + LOOP,
    "bce_with_scaled_similarity": "model = nn.Linear(6, 6)\n"
    "loss_of = lambda m: F.binary_cross_entropy_with_logits(10 * F.cosine_similarity(m(x), x), b[:, 0])" + LOOP,
    "nll_of_a_mixture": """
model = nn.Linear(6, 8)
def loss_of(m):
    experts = m(x).view(-1, 2, 4).log_softmax(-1)
    return F.nll_loss(experts.logsumexp(1) - torch.tensor(2.0).log(), y)
"""
    + LOOP,
    "nll_of_corrected_labels": """
model, noise = nn.Linear(6, 4), torch.eye(4) * 0.8 + 0.05
loss_of = lambda m: F.nll_loss((m(x).softmax(1) @ noise).log(), y)
"""
    + LOOP,
    "nll_of_log_probabilities_times_a_matrix": """
model, mean = nn.Linear(6, 4), torch.eye(4)
loss_of = lambda m: F.nll_loss(m(x).log_softmax(1) @ mean, y)
"""
    + LOOP,
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_faulty_scripts(run_reports, script: str):
    assert run_reports(DATA + script).findings[0].fix


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script: str):
    run_is_clean(DATA + script)


BY_VALUES = """
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4, bias=False))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
several = (x[:, :4] > 0).float()
for _ in range(16):
    optimizer.zero_grad()
    z = model(x)
    {loss}
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "loss",
    [
        "loss = F.nll_loss(8 * F.normalize(z, dim=1), y)",
        "loss = F.nll_loss(z * 2, y)",
        "loss = F.binary_cross_entropy_with_logits(1 / (1 + torch.exp(-4 * z)), several)",
        "loss = F.binary_cross_entropy_with_logits((torch.tanh(z) + 1) / 2, several)",
    ],
)
def test_run_reports_values_of_the_wrong_scale(run_reports, loss):
    found = run_reports(DATA + BY_VALUES.replace("{loss}", loss + "  # <- LOS002")).findings[0]
    assert found.severity == "warning"


@pytest.mark.parametrize(
    "loss",
    [
        "loss = F.nll_loss(z - z.logsumexp(1, keepdim=True), y)",
        "loss = F.nll_loss(F.logsigmoid(z), y)",
        "loss = F.nll_loss(torch.log(z.softmax(1) * 0.9 + 0.025), y)",
        "loss = F.binary_cross_entropy_with_logits(z * 2, several)",
        "loss = F.binary_cross_entropy_with_logits(z.exp(), several)",
        "loss = F.binary_cross_entropy_with_logits(z * 0.01 + 0.5, several)",
    ],
)
def test_run_accepts_values_of_the_right_scale(run_is_clean, loss):
    run_is_clean(DATA + BY_VALUES.replace("{loss}", loss))


# Lint --------------------------------------------------------------------------------------------------------

LINT_ONLY = {
    "a class that ends in a sigmoid": """
class Net(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.hidden = nn.Linear(6, width)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        x = F.relu(self.hidden(x))
        return torch.sigmoid(self.out(x))

def main(loader, device):
    model = Net().to(device)
    criterion = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor([3.0]))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs.to(device)).squeeze(-1), targets)  # <- LOS002
        loss.backward()
        optimizer.step()
""",
    "a discriminator without its sigmoid": """
class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 1, 4, 1, 0))

    def forward(self, images):
        return self.main(images).view(-1)

netD, criterion = Discriminator(), nn.BCELoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
for images in torch.randn(4, 8, 3, 8, 8):
    netD.zero_grad()
    output = netD(images)
    errD = criterion(output, torch.ones_like(output))  # <- LOS002
    errD.backward()
    optimizerD.step()
""",
    "a tagger with NLLLoss": """
class Tagger(nn.Module):
    def __init__(self, words, tags):
        super().__init__()
        self.embed, self.lstm = nn.Embedding(words, 8), nn.LSTM(8, 8, batch_first=True)
        self.to_tags = nn.Linear(8, tags)

    def forward(self, sentence):
        out, _ = self.lstm(self.embed(sentence))
        return self.to_tags(out).reshape(-1, 5)

tagger = Tagger(100, 5)
loss_function = nn.NLLLoss(ignore_index=-100)
def step(sentence, tags):
    loss_function(tagger(sentence), tags.view(-1)).backward()  # <- LOS002
""",
}

LINT_ONLY |= {
    "a recogniser, trained by a function": """
class Encoder(nn.Module):
    def __init__(self, size, symbols):
        super().__init__()
        self.rnn = nn.LSTM(size, 64, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(128, symbols)
    def forward(self, x):
        out, _ = self.rnn(x)
        out = self.fc(out)
        return out.permute(1, 0, 2)
def train(model, loader, loss_fn, optimizer):
    for images, labels, label_lengths in loader:
        logits = model(images)
        lengths = torch.full((logits.size(1),), logits.size(0), dtype=torch.long)
        loss = loss_fn(logits, labels, lengths, label_lengths)  # <- LOS002
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
def main(loader):
    model = Encoder(32, 80)
    optimizer = torch.optim.AdamW(model.parameters())
    loss_fn = nn.CTCLoss(blank=0, zero_infinity=True)
    train(model, loader, loss_fn, optimizer)
""",
}

LINT_CORRECT = {
    "a recogniser that normalises in train mode": """
class Encoder(nn.Module):
    def __init__(self, symbols):
        super().__init__()
        self.fc = nn.Linear(128, symbols)
    def forward(self, x):
        out = self.fc(x).permute(1, 0, 2)
        return F.log_softmax(out, dim=2) if self.training else out.softmax(2)
ctc, model = nn.CTCLoss(), Encoder(30)
def step(x, labels, lengths, label_lengths):
    log_probs = model(x)
    ctc(log_probs, labels, lengths, label_lengths).backward()
    other = nn.functional.log_softmax(model.fc(x), -1).transpose(0, 1)
    nn.functional.ctc_loss(other, labels, lengths, label_lengths).backward()
""",
    "a variational autoencoder": """
class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc3, self.fc4 = nn.Linear(2, 8), nn.Linear(8, 784)
    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))
    def forward(self, z):
        return self.decode(z)
def loss_function(recon_x, x):
    return F.binary_cross_entropy(recon_x, x.view(-1, 784), reduction="sum")
loss_function(VAE()(torch.randn(4, 2)), torch.rand(4, 784)).backward()
""",
    "PyTorch's MNIST example": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc2 = nn.Linear(128, 10)
    def forward(self, x):
        x = self.fc2(x)
        output = F.log_softmax(x, dim=1)
        return output
F.nll_loss(Net()(torch.randn(2, 128)), torch.zeros(2).long()).backward()
""",
    "a discriminator of DCGAN": """
net = nn.Sequential(nn.Conv2d(3, 1, 4, 1, 0, bias=False), nn.Sigmoid())
criterion = nn.BCELoss()
criterion(net(torch.randn(2, 3, 4, 4)).view(-1, 1).squeeze(1), torch.ones(2)).backward()
""",
    "a linear layer without bias on log-probabilities": """
mix = nn.Linear(4, 4, bias=False)
F.nll_loss(mix(torch.randn(64, 4).log_softmax(1)), y).backward()
""",
    "a sigmoid for the metric only": """
net = nn.Linear(6, 1)
z = net(x)
p = torch.sigmoid(z)
F.binary_cross_entropy_with_logits(z, b).backward()
print(((p > 0.5) == b).float().mean())
""",
    "probabilities in eval mode only": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 1)
    def forward(self, x):
        x = self.fc(x)
        if not self.training:
            x = torch.sigmoid(x)
        return x
F.binary_cross_entropy_with_logits(Net()(x), b).backward()
""",
}


@pytest.mark.parametrize("name", [*FAULTY, *LINT_ONLY])
def test_lint_reports_faulty_scripts(lint_reports, name):
    lint_reports(DATA + {**FAULTY, **LINT_ONLY}[name])


@pytest.mark.parametrize("name", [*CORRECT, *LINT_CORRECT])
def test_lint_accepts_correct_scripts(lint_is_clean, name):
    lint_is_clean(DATA + {**CORRECT, **LINT_CORRECT}[name])


def test_lint_reports_the_logarithm_of_a_logarithm(lint_reports):
    code = "model = nn.Linear(6, 4)\nloss = F.nll_loss(F.log_softmax(model(x), 1).log(), y)  # <- LOS002"
    (found,) = lint_reports(DATA + code)
    assert "logarithm of a logarithm" in found.message


ENDS_IN = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
        self.activation = {layer}
    def forward(self, x):
        {returned}
"""
SIGMOID = ENDS_IN.format(layer="nn.Sigmoid()", returned="y = self.activation(self.layers(x))\n        return y")
LOGITS = ENDS_IN.format(layer="nn.Sigmoid()", returned="return self.layers(x)")
WITH_LOGITS = "criterion = nn.BCEWithLogitsLoss()"
NEVER_CALLED = {
    "a class": SIGMOID + f"net = Net()\n{WITH_LOGITS}  # <- LOS002\noptimizer = torch.optim.Adam(net.parameters())",
    "a layer list, on a device": """
network = nn.Sequential(nn.Linear(6, 1), nn.Sigmoid()).to("cpu")
loss_fn = nn.BCEWithLogitsLoss(reduction="sum")  # <- LOS002
print(network)
""",
    "a function": ENDS_IN.format(layer="None", returned="return torch.sigmoid(self.layers(x)).squeeze(1)")
    + "model = Net()\nobjective = nn.BCEWithLogitsLoss()  # <- LOS002",
    "a softmax": ENDS_IN.format(layer="nn.Softmax(dim=1)", returned="return self.activation(self.layers(x))")
    + f"m = Net()\nm.train()\n{WITH_LOGITS}  # <- LOS002",
    "cross-entropy of a sigmoid": ENDS_IN.format(layer="None", returned="return F.sigmoid(self.layers(x))")
    + "model = Net()\nmodel.to('cpu')\ncrit = nn.CrossEntropyLoss()  # <- LOS002",
}
NEVER_CALLED_FINE = {
    "logits": LOGITS + "net = Net()\n" + WITH_LOGITS,
    "the loss on probabilities": SIGMOID + "net = Net()\ncriterion = nn.BCELoss()",
    "two models": SIGMOID + LOGITS.replace("Net", "Other") + "net, other = Net(), Other()\n" + WITH_LOGITS,
    "two models in lines": SIGMOID + LOGITS.replace("Net", "Other") + f"a = Net()\nb = Other()\n{WITH_LOGITS}",
    "two losses": SIGMOID + f"net = Net()\n{WITH_LOGITS}\nother = nn.BCELoss()",
    "passed on": SIGMOID + f"from elsewhere import fit\nnet = Net()\n{WITH_LOGITS}\nfit(net, criterion)",
    "passed on in a dictionary": SIGMOID + f"net = Net()\n{WITH_LOGITS}\nparts = dict(model=net, loss=criterion)",
    "one of two outputs": ENDS_IN.format(
        layer="nn.Sigmoid()",
        returned="if self.training:\n            return self.layers(x)\n        return self.activation(self.layers(x))",
    )
    + "net = Net()\n"
    + WITH_LOGITS,
    "the logarithm elsewhere": "model = nn.Sequential(nn.Linear(6, 4), nn.Softmax(dim=1))\ncriterion = nn.NLLLoss()",
}


@pytest.mark.parametrize("name", NEVER_CALLED)
def test_lint_reports_a_loss_that_does_not_fit_the_only_model(lint_reports, name):
    found = lint_reports(DATA + NEVER_CALLED[name])
    assert [each.severity for each in found] == ["warning"]


@pytest.mark.parametrize("name", NEVER_CALLED_FINE)
def test_lint_accepts_a_loss_that_is_never_called(lint_is_clean, name):
    lint_is_clean(DATA + NEVER_CALLED_FINE[name])


FRAGMENTS = {
    "an undefined model of the only class": """
class Part(nn.Module):
    def __init__(self, size):
        super(Part, self).__init__()
        self.last = nn.Linear(size, 3)
    def forward(self, x):
        return F.softmax(self.last(x), dim=-1)

class Whole(nn.Module):
    def __init__(self, size):
        super(Whole, self).__init__()
        self.part = Part(size)
    def forward(self, x):
        return x.mean(), self.part(x)

def penalised(scores, wanted, weight=0.1):
    return F.binary_cross_entropy_with_logits(scores, wanted) * weight  # <- LOS002

for x, wanted in loader:
    mean, scores = network(x)
    penalised(wanted=wanted, scores=scores).backward()
""",
    "an instance that the fragment calls": """
class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 1)
    def forward(self, x):
        return torch.sigmoid(self.body(x))

for x, y in loader:
    loss = F.binary_cross_entropy_with_logits(net(x), y)  # <- LOS002
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
}
FRAGMENTS_FINE = {
    "two classes": FRAGMENTS["an instance that the fragment calls"]
    .replace("  # <- LOS002", "")
    .replace("for x", "class Other(nn.Module):\n    def forward(self, x):\n        return x\n\nfor x"),
    "two models": FRAGMENTS["an instance that the fragment calls"]
    .replace("  # <- LOS002", "")
    .replace("net(x)", "net(x) + other_net(x)"),
    "a star import": "from networks import *\n"
    + FRAGMENTS["an instance that the fragment calls"].replace("  # <- LOS002", ""),
}


@pytest.mark.parametrize("name", FRAGMENTS)
def test_lint_gives_an_undefined_model_its_class(lint_reports, name):
    lint_reports(FRAGMENTS[name])


@pytest.mark.parametrize("name", FRAGMENTS_FINE)
def test_lint_leaves_other_undefined_models_unknown(lint_is_clean, name):
    lint_is_clean(FRAGMENTS_FINE[name])
