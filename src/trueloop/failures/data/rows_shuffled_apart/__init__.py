"""Inputs and labels are shuffled separately, or only one of them, so samples get the labels of other samples.

What you see
    The training loss hardly falls below that of a constant answer, and the accuracy stays at chance, whatever the model
    and the learning rate. A large model memorises the training samples, and learns nothing else.

Why it happens
    Inputs and labels are two arrays that belong together only by the order of their rows. Each
    ``torch.randperm``, ``np.random.shuffle`` and ``train_test_split`` draws a new order, and no shape changes. So does
    each ``DataLoader(..., shuffle=True)``: one for the inputs and one for the labels return rows that do not belong
    together.

Fix
    Draw one order, and use it for both.

        order = torch.randperm(len(x))
        x, y = x[order], y[order]

        x_train, x_test, y_train, y_test = train_test_split(x, y)

    Give one loader a dataset of pairs: ``DataLoader(TensorDataset(x, y), shuffle=True)``.

When this is fine
    - Both calls, or the generators of both loaders, get the same seed, so they draw the same order.
    - Two loaders are used in one step, and each loss takes inputs and targets of the same loader.
    - You compare with labels that are shuffled on purpose, such as in a permutation test.
    - You mix each sample with another one, as mixup does, or pair samples with others as negatives.
    - You measure the importance of a feature by shuffling its values, after the training.

How it is detected
    In a run, the sanitizer finds out by their values from which loaders the input of the model and the target of the
    loss come. It reports the second loader if both shuffle as many samples, their samplers drew different indices, and
    in at least 4 steps no loss got inputs and targets of one loader.

    The linter follows which orders the rows of each variable went through. It reports two arrays that are used together
    although one of them went through another order: as arguments of a dataset, of ``zip``, of a loss that is
    differentiated, or of a function that trains, or as inputs and labels that a function returns. Values that are
    computed from rows in two different orders are not judged. It reports a loop or comprehension over inputs and labels
    that draws an order for each of them. It also reports two shuffling loaders that are iterated by ``zip`` if a loss
    takes the prediction for a batch of one and the labels from the other.

References
    NumPy, numpy.random.Generator.shuffle, https://numpy.org/doc/stable/reference/random/generated/numpy.random.Generator.shuffle.html
    scikit-learn, sklearn.utils.shuffle, "Shuffle arrays or sparse matrices in a consistent way",
    https://scikit-learn.org/stable/modules/generated/sklearn.utils.shuffle.html
"""

from collections.abc import Iterator

from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.failures.data.rows_shuffled_apart.drawn_for_each import find_drawn_for_each
from trueloop.failures.data.rows_shuffled_apart.row_orders import find_orders
from trueloop.failures.data.rows_shuffled_apart.separate_loaders import SeparateLoadersDetector
from trueloop.failures.data.rows_shuffled_apart.zipped_loaders import find_zipped
from trueloop.failures.failure import Failure, Rule, Severity, changed


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each pair of arrays, or of loaders, whose rows are in different orders."""
    yield from find_orders(source)
    yield from find_drawn_for_each(source)
    if "DataLoader" in source.text.source and "zip" in source.text.source:
        yield from find_zipped(source)


RULE = Rule(
    required_words=(
        "shuffle(|shuffle=|permutation(|randperm(|sample(|integers(|train_test_split(|choice(|randint(",
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
inputs = DataLoader(TensorDataset(x), batch_size=16, shuffle=True)
targets = DataLoader(TensorDataset(y), batch_size=16, shuffle=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    for (a,), (b,) in zip(inputs, targets):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="DAT015",
    title="Inputs and labels are shuffled separately",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=BAD,
    good=changed(
        BAD,
        {
            "inputs = DataLoader(TensorDataset(x), batch_size=16, shuffle=True)\n": "",
            "targets = DataLoader(TensorDataset(y)": "pairs = DataLoader(TensorDataset(x, y)",
            "for (a,), (b,) in zip(inputs, targets)": "for a, b in pairs",
        },
    ),
    fix="Draw one order and use it for both: `x, y = x[order], y[order]`, or one loader over pairs.",
    rule=RULE,
    detector=SeparateLoadersDetector,
)
