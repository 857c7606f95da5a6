"""DAT001: loaders of the wrong part of a split, in the source."""

import pytest

FAULTY = {
    "both from the training data": """
train_data = STL10(root, split="train")
val_data = STL10(root, split="test")
train_loader = DataLoader(train_data, batch_size=8, shuffle=True)
val_loader = DataLoader(train_data, batch_size=8)  # <- DAT001
""",
    "the base for both": """
train_set, val_set = random_split(data, [80, 20])
train_loader = DataLoader(train_set.dataset, batch_size=8, shuffle=True)  # <- DAT001
val_loader = DataLoader(val_set.dataset, batch_size=8)
""",
    "the training data for validation": """
train_loader = DataLoader(db_train, batch_size=8, shuffle=True)
val_loader = DataLoader(db_train, batch_size=8)  # <- DAT001
""",
    "the base of a split": """
train_set, val_set = random_split(data, [80, 20])
train_loader = DataLoader(train_set.dataset, batch_size=8, shuffle=True)  # <- DAT001
val_loader = DataLoader(val_set, batch_size=8)
""",
    "the full dataset": """
def loaders(dataset):
    train_part, val_part = torch.utils.data.random_split(dataset, [0.8, 0.2])
    loader = DataLoader(dataset, batch_size=8, shuffle=True)  # <- DAT001
    val_loader = DataLoader(val_part, batch_size=8)
    return loader, val_loader
""",
}

CORRECT = {
    "training on the unlabelled part": """
unlabeled_data = STL10(root, split="unlabeled")
train_data = STL10(root, split="train")
train_loader = DataLoader(unlabeled_data, batch_size=8, shuffle=True)
val_loader = DataLoader(train_data, batch_size=8, shuffle=False)
""",
    "the same split twice": """
train_set, _ = random_split(data, [80, 20], generator=torch.Generator().manual_seed(0))
_, val_set = random_split(data, [80, 20], generator=torch.Generator().manual_seed(0))
train_loader, val_loader = DataLoader(train_set), DataLoader(val_set)
""",
    "two parts": """
train_set, val_set = random_split(data, [80, 20])
train_loader = DataLoader(train_set, batch_size=8, shuffle=True)
val_loader = DataLoader(val_set, batch_size=8)
""",
    "two samplers": """
train_loader = DataLoader(train_data, batch_size=8, sampler=SubsetRandomSampler(first))
valid_loader = DataLoader(train_data, batch_size=8, sampler=SubsetRandomSampler(rest))
""",
    "training data that is measured on purpose": """
train_eval_loader = DataLoader(train_data, batch_size=8)
""",
    "trained on everything in the end": """
train_set, val_set = random_split(data, [80, 20])
train_loader = DataLoader(train_set, batch_size=8, shuffle=True)
val_loader = DataLoader(val_set, batch_size=8)
fit(train_loader, val_loader)
final_train_loader = DataLoader(data, batch_size=8, shuffle=True)
""",
    "statistics before the split": """
stats_loader = DataLoader(data, batch_size=8)
train_set, val_set = random_split(data, [80, 20])
train_loader, val_loader = DataLoader(train_set), DataLoader(val_set)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(script)
