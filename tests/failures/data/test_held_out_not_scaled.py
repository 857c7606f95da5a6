"""DAT035: held-out inputs that are not scaled as the training inputs are."""

import pytest

HEAD = """
import numpy as np
import torch
import torch.nn.functional as F
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision import datasets, transforms
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 2))
opt = torch.optim.Adam(model.parameters())
def fit(loader):
    for a, b in loader:
        opt.zero_grad()
        F.cross_entropy(model(a), b).backward()
        opt.step()
"""
SPLIT = "x_train, x_test, y_train, y_test = train_test_split(x, y)\n"

FAULTY = {
    "a scaler in a function": """
def main(x, y):
    X_train, X_test, y_train, y_test = train_test_split(x, y)
    scaler = StandardScaler()
    X_train = scaler.fit_transform(X_train)
    train_dl = DataLoader(TensorDataset(torch.FloatTensor(X_train), torch.LongTensor(y_train)))
    test_dl = DataLoader(TensorDataset(torch.FloatTensor(X_test), torch.LongTensor(y_test)))  # <- DAT035
    fit(train_dl)
""",
    "fit, then transform": SPLIT
    + """
mm = MinMaxScaler()
mm.fit(x_train)
train = torch.tensor(mm.transform(x_train)).float()
fit(zip(train, y_train))
model.eval()
print(model(torch.tensor(x_test).float()).argmax(1))  # <- DAT035
""",
    "a function that returns the parts": """
def load(x, y):
    n = 80
    x_train, x_val = x[:n], x[n:]
    mu, sd = x_train.mean(0), x_train.std(0)
    x_train = (x_train - mu) / sd
    return x_train, y[:n], x_val, y[n:]
xa, ya, xb, yb = load(x, y)
fit([(xa, ya)])
print(model(xb))  # <- DAT035
""",
    "scaled in the loop of the training": SPLIT
    + """
mean, std = x_train.mean(dim=0), x_train.std(dim=0)
for i in range(0, 80, 8):
    opt.zero_grad()
    F.cross_entropy(model((x_train[i:i + 8] - mean) / (std + 1e-8)), y_train[i:i + 8]).backward()
    opt.step()
with torch.no_grad():
    out = model(x_test)  # <- DAT035
""",
    "a dataset of the program": SPLIT
    + """
class Points(Dataset):
    def __init__(self, x, y):
        self.x, self.y = torch.from_numpy(x), y
    def __getitem__(self, i):
        return self.x[i], self.y[i]
x_train = StandardScaler().fit_transform(x_train)
train, test = Points(x_train, y_train), Points(x_test, y_test)  # <- DAT035
fit(DataLoader(train))
""",
    "an evaluation function": SPLIT
    + """
def evaluate(net, inputs, labels):
    return (net(torch.as_tensor(inputs)).argmax(1) == labels).sum()
scaler = StandardScaler()
x_train_s = scaler.fit_transform(x_train)
fit(zip(x_train_s, y_train))
print(evaluate(model, x_test, y_test))  # <- DAT035
""",
    "a target": SPLIT
    + """
m, s = y_train.mean(), y_train.std()
y_train = (y_train - m) / s
for _ in range(9):
    opt.zero_grad()
    F.mse_loss(model(x_train), y_train).backward()
    opt.step()
print(F.mse_loss(model(x_test), y_test))  # <- DAT035
""",
    "transforms of images": """
train_tf = transforms.Compose([transforms.RandomCrop(32), transforms.ToTensor(), transforms.Normalize((0.5,), (0.5,))])
test_tf = transforms.Compose([transforms.ToTensor()])
train_set = datasets.CIFAR10("data", train=True, transform=train_tf)
test_set = datasets.CIFAR10("data", train=False, transform=test_tf)  # <- DAT035
""",
    "a dictionary of transforms": """
data_transforms = {
    "train": transforms.Compose([transforms.ToTensor(), transforms.Normalize([0.5], [0.2])]),
    "val": transforms.Compose([transforms.Resize(256), transforms.ToTensor()]),  # <- DAT035
}
""",
}

CORRECT = {
    "one of several datasets without Normalize": """
import torchvision.transforms as T
from torchvision import datasets
if name == "cifar":
    transform = T.Compose([T.ToTensor(), T.Normalize((0.5,), (0.5,))])
    train_set = datasets.CIFAR10(root, train=True, transform=transform)
    test_set = datasets.CIFAR10(root, train=False, transform=transform)
else:
    transform = T.Compose([T.Resize(32), T.ToTensor()])
    train_set = datasets.STL10(root, split="train", transform=transform)
    test_set = datasets.STL10(root, split="test", transform=transform)
""",
    "scaled before it gets another name": SPLIT
    + """
scaler = StandardScaler().fit(x_train)
x_train = scaler.transform(x_train)
x_test = scaler.transform(x_test).astype("float32")
train_x, test_x = torch.from_numpy(x_train), torch.from_numpy(x_test)
fit([(train_x, y_train)])
print(model(test_x))
""",
    "both are transformed": SPLIT
    + """
scaler = StandardScaler()
x_train = scaler.fit_transform(x_train)
x_test = scaler.transform(x_test)
fit(zip(x_train, y_train))
print(model(torch.tensor(x_test)))
""",
    "in a loop over the parts": SPLIT
    + """
scaler = StandardScaler()
x_train_s = scaler.fit_transform(x_train)
parts = {name: torch.tensor(scaler.transform(part)) for name, part in (("train", x_train), ("test", x_test))}
print(model(parts["test"]))
""",
    "in the evaluation": SPLIT
    + """
mean, std = x_train.mean(0), x_train.std(0)
train = TensorDataset((x_train - mean) / std, y_train)
test = TensorDataset(x_test, y_test)
fit(DataLoader(train))
for a, b in DataLoader(test):
    print(model((a - mean) / std))
""",
    "a function that scales": SPLIT
    + """
scaler = StandardScaler()
x_train = scaler.fit_transform(x_train)
def evaluate(data, labels):
    return model(torch.tensor(scaler.transform(data)))
fit(zip(x_train, y_train))
print(evaluate(x_test, y_test))
""",
    "predictions that are scaled back": SPLIT
    + """
m, s = y_train.mean(), y_train.std()
F.mse_loss(model(x_train), (y_train - m) / s).backward()
print(F.mse_loss(model(x_test) * s + m, y_test))
""",
    "the raw part goes to a tree": SPLIT
    + """
scaled = StandardScaler().fit_transform(x_train)
print(forest.fit(x_train, y_train).score(x_test, y_test))
fit(zip(scaled, y_train))
""",
    "the network gets raw numbers": SPLIT
    + """
scaled = StandardScaler().fit_transform(x_train)
svm.fit(scaled, y_train)
fit(DataLoader(TensorDataset(torch.tensor(x_train), y_train)))
print(model(torch.tensor(x_test)))
""",
    "another name": SPLIT
    + """
scaler = StandardScaler().fit(x_train)
train, test = scaler.transform(x_train), scaler.transform(x_test)
fit(zip(train, y_train))
print(model(torch.tensor(test)))
""",
    "normalised in the loop": """
normalize = transforms.Normalize([0.5], [0.2])
train_tf = transforms.Compose([transforms.ToTensor(), normalize])
test_tf = transforms.Compose([transforms.ToTensor()])
train_set = datasets.CIFAR10("data", train=True, transform=train_tf)
test_set = datasets.CIFAR10("data", train=False, transform=test_tf)
for image, label in test_set:
    print(model(normalize(image)))
""",
    "one list of transforms": """
tail = [transforms.ToTensor(), transforms.Normalize([0.5], [0.2])]
train_set = datasets.CIFAR10("data", train=True, transform=transforms.Compose([transforms.RandomCrop(32), *tail]))
test_set = datasets.CIFAR10("data", train=False, transform=transforms.Compose(tail))
""",
}

TRAIN = """
import numpy as np
import torch
from torch import nn
torch.manual_seed(0)
scale = torch.linspace(1, 9, 6)
x = torch.randn(300, 6) * scale + 4 * scale
y = (x[:, :1] > 4).long().flatten()
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
mean, std = x[:200].mean(0), x[:200].std(0)
class Scaler:
    def apply(self, value):
        return (value - mean) / std
def train(inputs, labels):
    model.train()
    for _ in range(4):
        for rows in torch.randperm(len(inputs)).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
            optimizer.step()
@torch.no_grad()
def evaluate(inputs):
    model.eval()
    return model(inputs)  # HERE
"""


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports(lint_reports, script: str):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts(lint_is_clean, script: str):
    lint_is_clean(HEAD + script, "DAT035")


def test_run_reports_features(run_reports):
    run_reports(TRAIN.replace("HERE", "<- DAT035") + "train(Scaler().apply(x[:200]), y[:200])\nevaluate(x[200:])\n")


def test_run_reports_a_single_row(run_reports):
    script = TRAIN.replace("HERE", "<- DAT035") + "train(Scaler().apply(x[:200]), y[:200])\n"
    run_reports(script + "evaluate(torch.tensor([[6.0, 14, 22, 29, 31, 45]]))\n")


def test_run_reports_a_model_that_is_gone(run_reports):
    body = TRAIN.partition("model = ")[2].replace("HERE", "<- DAT035")
    body = "model = " + body + "train(Scaler().apply(x[:200]), y[:200])\nevaluate(x[200:])\n"
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    run_reports(TRAIN.partition("model = ")[0] + "def main():\n" + lines + "main()\n")


def test_run_reports_images(run_reports):
    script = TRAIN.replace("HERE", "<- DAT035").replace("nn.Linear(6, 8)", "nn.Flatten(), nn.Linear(48, 8)")
    script = script.replace("x = torch.randn(300, 6) * scale + 4 * scale", "x = torch.rand(300, 3, 4, 4)")
    script = (
        script.replace("x[:, :1] > 4", "x[:, :1, 0, 0] > 0.5").replace(".mean(0)", ".mean()").replace("std(0)", "std()")
    )
    run_reports(script + "train(Scaler().apply(x[:200]), y[:200])\nevaluate(x[200:])\n")


@pytest.mark.parametrize(
    "evaluated",
    [
        "(x[200:] - mean) / std",
        "(x[200:] - mean) / std + 1",
        "2 * (x[200:] - mean) / std",
        "((x[200:] - mean) / std)[:1]",
    ],
)
def test_run_accepts_scaled_inputs(run_is_clean, evaluated: str):
    run_is_clean(TRAIN + f"train(Scaler().apply(x[:200]), y[:200])\nevaluate({evaluated})\n")


SAMPLERS = {
    "in a loop": """
@torch.no_grad()
def sample(n):
    x = torch.randn(n, 6)
    for t in range(20):
        made = model(x)
        x = (1 + torch.arange(6.0)) * x + made.mean()
    return x
sample(64)
""",
    "a step as a function": """
def one_step(points, t):
    with torch.no_grad():
        out = model(points)
    return (1 + torch.arange(6.0)) * points + out.mean() + t
def sample(n):
    x = torch.randn(n, 6)
    for t in range(20):
        x = one_step(x, t)
    return x
sample(64)
""",
    "each forecast is the next input": """
@torch.no_grad()
def roll(x):
    steps = 0
    while steps < 20:
        out = model(x)
        x = torch.cat([x[:, 2:], 100 + out], 1)
        steps += 1
    return x
roll(torch.randn(64, 6))
""",
}


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_run_accepts_inputs_that_are_computed_from_the_outputs(run, sampler):
    result = run(TRAIN + "train(Scaler().apply(x[:200]), y[:200])\n" + sampler)
    assert not {"DAT035", "DAT002", "DAT013"} & {each.code for each in result.findings}


def test_run_reports_an_evaluation_in_a_loop(run):
    loop = """
i, correct = 0, 0
with torch.no_grad():
    while i < 100:
        out = model(x[200 + i : 225 + i])
        correct += int((out > 0).sum())
        i += 25
"""
    assert "DAT035" in {each.code for each in run(TRAIN + "train(Scaler().apply(x[:200]), y[:200])\n" + loop).findings}


def test_run_accepts_a_series_that_grows(run_is_clean):
    script = TRAIN.replace(
        "x = torch.randn(300, 6) * scale + 4 * scale", "x = torch.arange(300.0)[:, None] ** 2 + torch.rand(6)"
    )
    run_is_clean(script + "train(Scaler().apply(x[:200]), y[:200])\nevaluate(Scaler().apply(x[200:]) * 1.5)\n")


PREDICTOR = """
import json
import torch
from torch import nn

class Predictor:
    def __init__(self, path):
        saved = torch.load(path, weights_only=True)
        {read}
        self.model = nn.Linear(4, 3)
        self.model.load_state_dict(saved["weights"])
        self.model.eval()

    @torch.no_grad()
    def __call__(self, readings):
        x = torch.tensor(readings).unsqueeze(0)
        {use}
        return self.model(x).argmax(1)
"""
FUNCTION = """
import torch
from torch import nn

def predict(path, x):
    saved = torch.load(path, weights_only=True)
    {read}
    model = nn.Linear(4, 3)
    model.load_state_dict(saved["weights"])
    model.eval()
    with torch.inference_mode():
        return model({x})
"""
BOTH = 'self.mean, self.std = saved["mean"], saved["std"]'
UNREAD = {
    "two attributes": PREDICTOR.format(read=BOTH + "  # <- DAT035", use="pass"),
    "one attribute": PREDICTOR.format(read='self.x_mean = saved["stats"]["mean"]  # <- DAT035', use="pass"),
    "a file of their own": PREDICTOR.format(
        read='stats = json.load(open(path + ".json"))\n        self.std = torch.tensor(stats["std"])  # <- DAT035',
        use="pass",
    ),
    "variables": FUNCTION.format(read='mean, std = saved["mean"], saved["std"]  # <- DAT035', x="x"),
}
READ = {
    "applied": PREDICTOR.format(read=BOTH, use="x = (x - self.mean) / self.std"),
    "applied to variables": FUNCTION.format(read='mean, std = saved["mean"], saved["std"]', x="(x - mean) / std"),
    "read by the caller": PREDICTOR.format(read=BOTH, use="pass")
    + "p = Predictor('a.pt')\nprint(p((torch.randn(4) - p.mean) / p.std))\n",
    "a part of the model": PREDICTOR.format(read=BOTH, use="pass").replace(
        "self.model.eval()", "self.norm = Normalize(**vars(self))"
    ),
    "no statistics": PREDICTOR.format(read='self.epoch = saved["epoch"]', use="pass"),
}


@pytest.mark.parametrize("script", UNREAD.values(), ids=UNREAD)
def test_lint_reports_loaded_statistics_that_are_never_read(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", READ.values(), ids=READ)
def test_lint_accepts_loaded_statistics_that_are_read(lint_codes, script):
    assert "DAT035" not in lint_codes(script)


BY_DIMENSIONS = """
def forward(self, x):
    if x.dim() == 3:
        mean = torch.mean(x, (1, 2), keepdim=True)
        std = torch.std(x, (1, 2), keepdim=True)
        x = (x - mean) / std
    {second}:
        mean = torch.mean(x, (1, 2, 3), keepdim=True)
        std = torch.std(x, (1, 2, 3), keepdim=True)
        z = (z - mean) / std
    return x, z
"""


@pytest.mark.parametrize("second", ["if x.dim() == 4", "elif x.dim() == 4", "else"])
def test_lint_accepts_the_scaling_of_another_case(lint_codes, second):
    assert "DAT035" not in lint_codes(HEAD + BY_DIMENSIONS.format(second=second))


@pytest.mark.parametrize("second", ["if x.dim() == 3", "if True"])
def test_lint_reports_a_second_scaling_in_the_same_case(lint_codes, second):
    text = BY_DIMENSIONS if second != "if True" else BY_DIMENSIONS.replace("if x.dim() == 3", "with torch.no_grad()")
    assert "DAT035" in lint_codes(HEAD + text.format(second=second))


PIXELS = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
rng = np.random.default_rng(0)
labels = rng.integers(0, 2, 300)
images = np.clip(rng.integers(0, 120, (300, 1, 12, 30)) + 130 * labels[:, None, None, None], 0, 255).astype(np.uint8)
targets = torch.from_numpy(labels)

def prepare(rows):
    return torch.from_numpy(images[rows]).float() / 255

def train(model, prepare=prepare):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(4):
        for rows in np.array_split(np.random.permutation(200), 5):
            optimizer.zero_grad()
            F.cross_entropy(model(prepare(rows)), targets[rows]).backward()
            optimizer.step()

@torch.no_grad()
def test(model, images):
    model.eval()
    print((model(images).argmax(1) == targets[200:]).float().mean().item())
    model.train()

cnn = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(1120, 2))
mlp = nn.Sequential(nn.Flatten(), nn.Linear(360, 16), nn.ReLU(), nn.Linear(16, 2))
rest = np.arange(200, 300)
"""
OTHER_BYTES = {
    "divided twice": "train(cnn)\ntest(cnn, prepare(rest) / 255.0)\n",
    "divided twice, after a correct evaluation": "train(cnn)\ntest(cnn, prepare(rest))\n"
    "with torch.no_grad():\n    print(cnn(prepare(rest) / 255.0).argmax(1))\n",
    "flat images that are not divided": "train(mlp, lambda rows: prepare(rows).flatten(1))\n"
    "test(mlp, torch.from_numpy(images[rest]).float().flatten(1))\n",
    "divided and then normalised": "train(cnn, lambda rows: (prepare(rows) - 0.4) / 0.25)\n"
    "test(cnn, (prepare(rest) / 255 - 0.4) / 0.25)\n",
    "trained on bytes": "train(cnn, lambda rows: torch.from_numpy(images[rows]).float())\ntest(cnn, prepare(rest))\n",
}
SAME_BYTES = {
    "divided once": "train(cnn)\ntest(cnn, prepare(rest))\n",
    "divided in the model": "train(nn.Sequential(cnn), lambda rows: 255 * prepare(rows))\n"
    "test(cnn, torch.from_numpy(images[rest]).float())\n",
    "dark images": "train(cnn)\ntest(cnn, prepare(rest) / 8)\n",
    "flat images": "train(mlp, lambda rows: prepare(rows).flatten(1))\ntest(mlp, prepare(rest).flatten(1))\n",
    "blank images": "train(cnn)\ntest(cnn, torch.zeros(100, 1, 12, 30))\n",
}


@pytest.mark.parametrize("script", OTHER_BYTES.values(), ids=OTHER_BYTES)
def test_run_reports_pixels_on_another_scale(run, script):
    assert "DAT035" in {each.code for each in run(PIXELS + script).findings}


@pytest.mark.parametrize("script", SAME_BYTES.values(), ids=SAME_BYTES)
def test_run_accepts_pixels_on_the_same_scale(run, script):
    assert not {"DAT035", "DAT002", "DAT013"} & {each.code for each in run(PIXELS + script).findings}
