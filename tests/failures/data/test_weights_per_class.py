"""DAT014: samplers with one weight per class."""

import pytest

FAULTY = {
    "inverse counts": """
counts = torch.bincount(targets)
weights = 1.0 / counts.float()
sampler = WeightedRandomSampler(weights, len(weights))  # <- DAT014
""",
    "numpy, in a list": """
def make_loader(dataset, labels):
    _, counts = np.unique(labels, return_counts=True)
    class_counts = np.unique(labels, return_counts=True)[1]
    class_weights = [1.0 / c for c in np.bincount(labels)]
    sampler = WeightedRandomSampler(torch.FloatTensor(class_weights), 1000, replacement=True)  # <- DAT014
    return DataLoader(dataset, sampler=sampler)
""",
    "scikit-learn": """
weights = compute_class_weight("balanced", classes=classes, y=y)
sampler = WeightedRandomSampler(weights=torch.tensor(weights), num_samples=len(y))  # <- DAT014
""",
}

CORRECT = {
    "selected by the labels": """
weights = 1.0 / torch.bincount(targets)
sampler = WeightedRandomSampler(weights[targets], len(targets))
""",
    "selected in a list": """
class_weights = 1.0 / np.bincount(labels)
samples = [class_weights[label] for label in labels]
sampler = WeightedRandomSampler(samples, len(samples))
""",
    "a dictionary of counts": """
counts = Counter(labels)
weights = [1 / counts[label] for label in labels]
sampler = WeightedRandomSampler(weights, len(weights))
""",
    "mapped by pandas": """
weights = 1.0 / frame["label"].map(frame["label"].value_counts())
sampler = WeightedRandomSampler(weights.values, len(weights))
""",
    "unknown weights": """
def make(weights):
    return WeightedRandomSampler(weights, len(weights))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(script)
