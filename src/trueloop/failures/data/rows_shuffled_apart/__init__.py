"""Inputs and labels are shuffled separately, or only one of them, so samples get the labels of other samples.

What you see
    The training loss hardly falls below that of a constant answer, and the accuracy stays at chance, whatever the model
    and the learning rate. A large model memorises the training samples, and learns nothing else.

Why it happens
    Inputs and labels are two arrays that belong together only by the order of their rows. Each
    ``torch.randperm``, ``np.random.shuffle`` and ``train_test_split`` draws a new order, and no shape changes.

Fix
    Draw one order, and use it for both.

        order = torch.randperm(len(x))
        x, y = x[order], y[order]

        x_train, x_test, y_train, y_test = train_test_split(x, y)

When this is fine
    - Both calls get the same seed, so they draw the same order.
    - You compare with labels that are shuffled on purpose, such as in a permutation test.
    - You mix each sample with another one, as mixup does, or pair samples with others as negatives.
    - You measure the importance of a feature by shuffling its values, after the training.

How it is detected
    Only the linter finds it, from the source code: it follows which orders the rows of each variable went through. It
    reports two arrays that are used together although one of them went through another order: as arguments of a
    dataset, of ``zip``, of a loss that is differentiated, or of a function that trains, or as inputs and labels that a
    function returns. Values that are computed from rows in two different orders are not judged.

References
    NumPy, numpy.random.Generator.shuffle, https://numpy.org/doc/stable/reference/random/generated/numpy.random.Generator.shuffle.html
    scikit-learn, sklearn.utils.shuffle, "Shuffle arrays or sparse matrices in a consistent way",
    https://scikit-learn.org/stable/modules/generated/sklearn.utils.shuffle.html
"""

from trueloop.failures.data.rows_shuffled_apart.row_orders import find
from trueloop.failures.failure import Failure, Rule, Severity, changed

RULE = Rule(
    required_words=(
        "shuffle(|permutation(|randperm(|sample(|integers(|train_test_split(|choice(|randint(",
        "torch|keras|nn.",
    ),
    find=find,
)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
order = torch.randperm(len(x))
x = x[order]
loader = DataLoader(TensorDataset(x, y), batch_size=16)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="DAT015",
    title="Inputs and labels are shuffled separately",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=BAD,
    good=changed(BAD, {"x = x[order]": "x, y = x[order], y[order]"}),
    fix="Draw one order and use it for both: `x, y = x[order], y[order]`.",
    rule=RULE,
)
