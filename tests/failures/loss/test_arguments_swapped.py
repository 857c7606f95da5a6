"""LOS008: binary cross-entropies whose prediction and target are swapped."""

import pytest
import torch

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(64, 6)
y = (x.sum(1, keepdim=True) > 0).float()
loader = DataLoader(TensorDataset(x, y), batch_size=16)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
LOOP = """
for step in range(4):
    optimizer.zero_grad()
    loss = {}
    loss.backward()
    optimizer.step()
"""

FAULTY = {
    "a function": LOOP.format("F.binary_cross_entropy_with_logits(y, model(x))  # <- LOS008"),
    "a module, of batches from a loader": """
criterion = nn.BCEWithLogitsLoss()
def train(model, loader, criterion):
    for inputs, labels in loader:
        outputs = model(inputs)
        loss = criterion(labels, outputs)  # <- LOS008
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
train(model, loader, criterion)
""",
    "probabilities, whose gradient is infinite": LOOP.format(
        "nn.BCELoss()(y, torch.sigmoid(model(x)))  # <- LOS008"
    ).replace("range(4)", "range(1)"),
    "a class, a scaled loss, accumulation": """
class Task:
    def __init__(self):
        self.net, self.loss = model, nn.BCEWithLogitsLoss(reduction="sum")
    def step(self, inputs, labels):
        return self.loss(labels.to(inputs.dtype), self.net(inputs))  # <- LOS008
task = Task()
for iteration, (inputs, labels) in enumerate(loader):
    (task.step(inputs, labels) / 32).backward()
    if iteration % 2:
        optimizer.step()
        optimizer.zero_grad()
""",
    "a critic, and labels created in the loop": """
critic, other = nn.Linear(6, 1), torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(4):
    optimizer.zero_grad()
    scores = model(x)
    real = F.binary_cross_entropy_with_logits(torch.ones_like(scores), scores)  # <- LOS008
    real.backward()
    optimizer.step()
""",
}
RUN_ONLY = {
    "soft labels and raw outputs, by keyword": LOOP.format(
        "F.binary_cross_entropy_with_logits(target=30 * model(x), input=0.9 * y + 0.05)  # <- LOS008"
    ),
    "a helper that returns labels": "def labels_of():\n    return torch.bernoulli(torch.full((64, 1), 0.5))\n"
    + LOOP.format("F.binary_cross_entropy_with_logits(labels_of(), torch.tanh(model(x)).square())  # <- LOS008"),
}
TEACHER = """
teacher = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)).requires_grad_(False)
with torch.no_grad():
    known = teacher(x)
"""

CORRECT = {
    "prediction first": LOOP.format("F.binary_cross_entropy_with_logits(model(x), y)"),
    "by keyword": LOOP.format("F.binary_cross_entropy_with_logits(target=y, input=model(x))"),
    "a symmetric loss": LOOP.format("F.mse_loss(y, model(x)) + F.l1_loss(y, model(x)) + F.huber_loss(y, model(x))"),
    "the reverse cross-entropy of a teacher's logits": TEACHER
    + LOOP.format("F.binary_cross_entropy_with_logits(known, torch.sigmoid(model(x)))"),
    "the reverse cross-entropy of a teacher's probabilities": TEACHER
    + LOOP.format("F.binary_cross_entropy(torch.sigmoid(known), torch.sigmoid(model(x)))"),
    "the reverse cross-entropy of smoothed labels": LOOP.format(
        "F.binary_cross_entropy(y.clamp(0.01, 0.99), torch.sigmoid(model(x)))"
    ),
    "the reverse KL divergence": TEACHER
    + LOOP.format("F.kl_div(F.logsigmoid(known), torch.sigmoid(model(x)), reduction='batchmean')"),
    "a teacher initialised with zeros": TEACHER
    + "known = torch.zeros_like(known)\n"
    + LOOP.format("F.binary_cross_entropy_with_logits(known, torch.sigmoid(model(x)))"),
    "two networks that learn from each other": """
other = nn.Linear(6, 1)
both = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.01)
for _ in range(4):
    both.zero_grad()
    F.binary_cross_entropy_with_logits(model(x), torch.sigmoid(other(x))).backward()
    both.step()
""",
    "a target that is trained, for a fixed decoder": """
labels = nn.Parameter(torch.zeros(64, 1))
soft = torch.optim.SGD([labels], lr=0.1)
for _ in range(4):
    soft.zero_grad()
    F.binary_cross_entropy_with_logits(model(x).detach(), torch.sigmoid(labels)).backward()
    soft.step()
""",
    "a metric of detached values": LOOP.format("F.binary_cross_entropy_with_logits(model(x), y)")
    + "with torch.no_grad():\n    print(F.binary_cross_entropy_with_logits(y, model(x).sigmoid()))\n",
    "per sample, under vmap and grad": """
def loss_of(weights, a, b):
    return F.binary_cross_entropy_with_logits(torch.func.functional_call(model, weights, (a,)), b)
weights = {name: p.detach() for name, p in model.named_parameters()}
torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))(weights, x, y)
"""
    + LOOP.format("F.binary_cross_entropy_with_logits(model(x), y)"),
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_and_lint_report_faulty_scripts(run_reports, lint_reports, script):
    run_reports(HEAD + script)
    lint_reports(HEAD + script, fixes=True)


@pytest.mark.parametrize("script", RUN_ONLY.values(), ids=RUN_ONLY)
def test_run_reports_what_lint_cannot_detect(run_reports, lint_is_clean, script):
    run_reports(HEAD + script)
    lint_is_clean(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_and_lint_accept_correct_scripts(run_is_clean, lint_is_clean, script):
    run_is_clean(HEAD + script)
    lint_is_clean(HEAD + script)


def test_keyword_arguments_are_recognised(run_reports, lint_reports):
    swapped = "F.binary_cross_entropy_with_logits(target=model(x), input=y)  # <- LOS008"
    run_reports(HEAD + LOOP.format(swapped))
    lint_reports(HEAD + LOOP.format(swapped), fixes=False)


def test_values_on_an_accelerator_are_not_read():
    from trueloop.failures.loss.arguments_swapped import Detector
    from trueloop.tracing.events import LossArgumentsSwapped

    detector = Detector()
    assert detector.inconclusive() == ""
    assert (
        detector.on_loss_arguments_swapped(
            LossArgumentsSwapped(
                function="binary_cross_entropy", input_is_binary=None, target_outside_unit_interval=None
            )
        )
        is None
    )
    assert "on a GPU" in detector.inconclusive()


def test_message_gives_the_reason(run_reports):
    [found] = run_reports(HEAD + FAULTY["a function"]).findings
    assert found.message == (
        "`binary_cross_entropy_with_logits` got prediction and target swapped: only its target was computed with "
        "gradients, and its input consists of zeros and ones."
    )


def test_infinite_gradient_is_not_reported_too(run):
    found = run(HEAD + FAULTY["probabilities, whose gradient is infinite"]).findings
    assert [each.code for each in found] == ["LOS008"]
    target = torch.full((2, 1), 0.5, requires_grad=True)
    torch.nn.functional.binary_cross_entropy(torch.tensor([[0.0], [1.0]]), target).backward()
    assert target.grad is not None
    assert target.grad.isinf().all()


OWN = """
import torch
def tilted(estimate, observed, tau):
    gap = observed - estimate
    return torch.where(gap >= 0, tau * gap, (tau - 1.0) * gap).mean()
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.Adam(net.parameters())
for x, y in loader:
    q = net(x)
    optimizer.zero_grad()
    loss = CALL
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("call", ["tilted(y, q, 0.9)", "tilted(y.unsqueeze(1), net(x), tau=0.9)"])
def test_lint_reports_a_loss_of_the_program_with_swapped_arguments(lint_reports, call):
    lint_reports(OWN.replace("CALL", f"{call}  # <- LOS008"))


@pytest.mark.parametrize(
    "script",
    [
        OWN.replace("CALL", "tilted(q, y, 0.9)"),
        OWN.replace("CALL", "tilted(observed=y, estimate=q, tau=0.9)"),
        OWN.replace("CALL", "tilted(net(x), net(x).detach(), 0.9)"),
        OWN.replace("CALL", "tilted(y, q, 0.9)").replace("estimate, observed", "observed, estimate"),
        OWN.replace("CALL", "tilted(y, q, 0.9)").replace(
            "torch.where(gap >= 0, tau * gap, (tau - 1.0) * gap)", "(gap ** 2)"
        ),
    ],
    ids=["in order", "by name", "of two outputs", "observed first", "symmetric"],
)
def test_lint_accepts_a_loss_of_the_program(lint_is_clean, script):
    lint_is_clean(script, "LOS008")


WRITTEN = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\nscores = torch.randn(1, 3)\n"


@pytest.mark.parametrize(
    "code",
    [
        "loss = nn.BCEWithLogitsLoss()(torch.tensor([[0, 0, 1.0]]), nn.Sigmoid()(scores))  # <- LOS008",
        "m = nn.Linear(3, 1)\nF.binary_cross_entropy(torch.FloatTensor([[0, 1]]), m(scores).sigmoid())  # <- LOS008",
        """net = nn.Linear(3, 3)
def objective(a, b):
    return F.binary_cross_entropy(a, b.sigmoid())  # <- LOS008
objective(torch.tensor(((1, 0, 0), (0, 1, 0))).float(), net(scores)).backward()""",
    ],
)
def test_lint_reports_labels_that_are_written_out(lint_reports, code):
    lint_reports(WRITTEN + code)


@pytest.mark.parametrize(
    "code",
    [
        "loss = F.binary_cross_entropy_with_logits(torch.tensor([[1., 2., 0.]]), nn.Linear(3, 3)(scores).sigmoid())",
        "loss = F.binary_cross_entropy_with_logits(torch.tensor([[0., 0., 0.]]), nn.Linear(3, 3)(scores).sigmoid())",
        "loss = F.binary_cross_entropy_with_logits(nn.Linear(3, 3)(scores), torch.tensor([[1., 1., 0.]]))",
        "loss = F.mse_loss(torch.tensor([[1., 1., 0.]]), nn.Linear(3, 3)(scores))",
    ],
)
def test_lint_accepts_numbers_that_are_written_out(lint_is_clean, code):
    lint_is_clean(WRITTEN + code)
