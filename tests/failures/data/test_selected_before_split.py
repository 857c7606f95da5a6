"""DAT020: feature selection or oversampling before the split."""

import pytest

HEAD = """
import torch
from sklearn.feature_selection import RFE, SelectKBest, VarianceThreshold
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, cross_val_score, train_test_split
from sklearn.preprocessing import TargetEncoder
from imblearn.over_sampling import SMOTE

"""

FAULTY = {
    "before a split": """
def load(X, y):
    X_new = SelectKBest(k=20).fit_transform(X, y)  # <- DAT020
    X_train, X_test, y_train, y_test = train_test_split(X_new, y)
    return torch.tensor(X_train), torch.tensor(X_test)
""",
    "fit, then transform": """
def load(X, y):
    selector = RFE(LogisticRegression(), n_features_to_select=8)
    selector.fit(X, y)  # <- DAT020
    X = selector.transform(X)  # <- DAT002
    X = torch.tensor(X)
    return train_test_split(X, y)
""",
    "before cross-validation": """
def score(X, y, model):
    X_sel = SelectKBest(k=20).fit_transform(X, y)  # <- DAT020
    for train, test in KFold(5).split(X_sel):
        model.fit(X_sel[train], y[train])
""",
    "a target encoder": """
def load(X, y):
    encoded = TargetEncoder().fit_transform(X, y)  # <- DAT020
    a, b, c, d = train_test_split(encoded, y)
    return torch.tensor(a), torch.tensor(b)
""",
    "the mean label of each group": """
def load(table):
    table["city_mean"] = table.groupby("city")["target"].transform("mean")  # <- DAT020
    X = table.drop(columns="target")
    a, b, c, d = train_test_split(X, table["target"])
    return torch.tensor(a.values), torch.tensor(b.values)
""",
}

CORRECT = {
    "on the training part": """
def load(X, y):
    X_train, X_test, y_train, y_test = train_test_split(X, y)
    selector = SelectKBest(k=20)
    X_train = selector.fit_transform(X_train, y_train)
    return X_train, selector.transform(X_test)
""",
    "in each fold": """
def score(X, y, model):
    for train, test in KFold(5).split(X):
        selector = SelectKBest(k=20).fit(X[train], y[train])
        model.fit(selector.transform(X[train]), y[train])
""",
    "oversampled after the split": """
def load(X, y):
    a, b, c, d = train_test_split(X, y)
    a, c = SMOTE().fit_resample(a, c)
    return a, b, c, d
""",
    "the mean of a feature": """
def load(table):
    table["age_mean"] = table.groupby("city")["age"].transform("mean")
    a, b = train_test_split(table)
    return a, b
""",
    "the mean label of the training part": """
def load(table):
    train, test = train_test_split(table)
    means = train.groupby("city")["target"].mean()
    train["city_mean"], test["city_mean"] = train["city"].map(means), test["city"].map(means)
    return train, test
""",
    "without labels": """
def load(X, y):
    X = VarianceThreshold(0.1).fit_transform(X)
    return train_test_split(X, y)
""",
    "another split": """
def load(X, y, line):
    X = SelectKBest(k=20).fit_transform(X, y)
    return X, line.split(",")
""",
}


FAULTY |= {
    "two arrays of indices": """
order = np.random.permutation(120)
fit_idx, out_idx = order[:80], order[80:]
selector = SelectKBest(k=20)
selector.fit(expression, relapse)  # <- DAT020
z = torch.tensor(selector.transform(expression))
z = (z - z[fit_idx].mean(0)) / z[fit_idx].std(0)
fit(z[fit_idx], relapse[fit_idx])
print(score(z[out_idx], relapse[out_idx]))
""",
    "a function that ranks": """
def top(X, y, k):
    F, _ = f_classif(X, y)
    return np.argsort(-F)[:k]
keep = top(X, y, 20)  # <- DAT020
chosen = torch.tensor(X[:, keep])
for tr, te in KFold(5).split(X, y):
    print(fit_predict(chosen[tr], y[tr], chosen[te]))
""",
    "correlations by hand": """
def load(x, labels):
    scores = torch.corrcoef(torch.cat([x, labels[:, None]], 1).T)[-1, :-1]  # <- DAT020
    best = scores.abs().topk(20).indices
    x = x[:, best]
    return train_test_split(x, labels)
""",
}
CORRECT |= {
    "ranked in each fold": """
def top(X, y, k):
    return np.argsort(-f_classif(X, y)[0])[:k]
for tr, te in KFold(5).split(X, y):
    keep = top(X[tr], y[tr], 20)
    chosen = X[:, keep]
    print(fit_predict(chosen[tr], y[tr], chosen[te]))
""",
    "ranked in each part": """
for fit, out in parts:
    keep = np.abs(X[a].T @ y[a]).argsort()[-20:]
    chosen = X[:, keep]
    print(fit_predict(chosen[fit], y[fit], chosen[out]))
""",
    "ranked by variance": """
keep = np.argsort(X.var(0))[-20:]
chosen = X[:, keep]
X_train, X_test, y_train, y_test = train_test_split(chosen, y)
""",
    "ranked on the training part": """
scores = np.abs(X_train.T @ y_train)
keep = scores.argsort()[-20:]
chosen = X[:, keep]
print(fit_predict(chosen[train_idx], y[train_idx], chosen[test_idx]))
""",
    "only printed": """
order = np.argsort(-f_classif(X, y)[0])
print(order[:5])
X_train, X_test, y_train, y_test = train_test_split(X, y)
""",
}


FAULTY |= {
    "a map from another function": """
def add_rates(frame):
    rates = frame.groupby("agent")["churn"].mean()
    frame["agent_rate"] = frame["agent"].map(rates)
    return frame
def load(path):
    frame = add_rates(pd.read_csv(path))
    fit, rest = train_test_split(frame, stratify=frame["churn"])
    return torch.tensor(fit.values), torch.tensor(rest.values)
""".replace(
        "frame = add_rates(pd.read_csv(path))", "frame = pd.read_csv(path)\n    frame = add_rates(frame)  # <- DAT020"
    ),
    "fitted on the whole table in each fold": """
def rates(fit_on, rows, column):
    total = np.bincount(fit_on[column], weights=fit_on["sold"], minlength=50)
    count = np.bincount(fit_on[column], minlength=50)
    return (total / count)[rows[column]]
def fold(table, tr_idx, va_idx):
    tr, va = table.iloc[tr_idx], table.iloc[va_idx]
    tr["rate"] = rates(table, tr, "shop")  # <- DAT020
    va["rate"] = rates(tr, va, "shop")
    return tr, va, roc_auc_score(va["sold"], va["rate"])
""",
    "arrays": """
def load(shop, price, labels):
    totals = np.bincount(shop, weights=labels)  # <- DAT020
    rate = totals / np.bincount(shop)
    x = torch.tensor(np.stack([price, rate[shop]], 1))
    return train_test_split(x, labels)
""",
    "a comprehension": """
y = frame["sold"].values
rate = {each: y[shop == each].mean() for each in np.unique(shop)}  # <- DAT020
x = np.array([rate.get(each) for each in shop])
fit(x[train_idx], y[train_idx])
print(score(x[test_idx], y[test_idx]))
""",
    "merged": """
def load(frame):
    means = frame.groupby("shop")[["label"]].mean().reset_index()  # <- DAT020
    frame = frame.merge(means, on="shop")
    for fit, rest in KFold(5).split(frame):
        yield frame.iloc[fit], frame.iloc[rest]
""",
    "a pivot table": """
def load(frame):
    means = pd.pivot_table(frame, values="target", index="shop")["target"]  # <- DAT020
    x = torch.tensor(frame["shop"].map(means).values)
    return train_test_split(x, frame["target"])
""",
}
CORRECT |= {
    "out of fold": """
def encode(fit_on, rows, column):
    means = fit_on.groupby(column)["target"].mean()
    return rows[column].map(means)
def out_of_fold(frame, column):
    result = np.zeros(len(frame))
    for a, b in KFold(5).split(frame):
        result[b] = encode(frame.iloc[a], frame.iloc[b], column)
    return result
def load(frame):
    train, test = train_test_split(frame)
    return out_of_fold(train, "shop"), encode(train, test, "shop")
""",
    "fitted on the rows of the fold": """
def rates(fit_on, rows, column):
    total = np.bincount(fit_on[column], weights=fit_on["sold"], minlength=50)
    count = np.bincount(fit_on[column], minlength=50)
    return (total / count)[rows[column]]
def fold(table, tr_idx, va_idx):
    tr, va = table.iloc[tr_idx], table.iloc[va_idx]
    tr["rate"] = rates(tr, tr, "shop")
    va["rate"] = rates(tr, va, "shop")
    return tr, va, roc_auc_score(va["sold"], va["rate"])
""",
    "the mean of an input of each group": """
def load(frame, y):
    means = frame.groupby("shop")["price"].mean()
    frame["price_mean"] = frame["shop"].map(means)
    return train_test_split(frame, y)
""",
    "means of earlier rows": """
def load(frame):
    frame = frame.sort_values("day")
    frame["rate"] = frame.groupby("shop")["target"].transform(lambda each: each.shift().expanding().mean())
    return train_test_split(frame, shuffle=False)
""",
    "means that are only shown": """
def load(frame):
    print(frame.groupby("shop")["target"].mean())
    means = frame.groupby("shop")["target"].mean()
    means.plot()
    return train_test_split(frame)
""",
    "all rows are trained on": """
def load(frame):
    means = frame.groupby("shop")["target"].mean()
    return frame["shop"].map(means), frame["target"]
""",
    "the rows of one side": """
def load(shop, labels, cut):
    rate = np.bincount(shop[:cut], weights=labels[:cut]) / np.bincount(shop[:cut])
    x = torch.tensor(rate[shop])
    return x[:cut], x[cut:], train_test_split(labels)
""",
}


SCORES = """
import numpy as np
def t_scores(x, y):
    a, b = x[y == 1], x[y == 0]
    return (a.mean(0) - b.mean(0)) / np.sqrt(a.var(0) / len(a) + b.var(0) / len(b))
def top(x, y, k):
    return np.argsort(-np.abs(t_scores(x, y)))[:k]
"""
FAULTY |= {
    "columns chosen in the index, folds by hand": SCORES
    + """
def evaluate(x, y, folds=5):
    parts = np.array_split(np.random.permutation(len(x)), folds)
    x = x[:, top(x, y, 20)]  # <- DAT020
    for i, te in enumerate(parts):
        tr = np.concatenate([p for j, p in enumerate(parts) if j != i])
        print(fit_predict(torch.from_numpy(x[tr]), y[tr], torch.from_numpy(x[te])))
""",
    "split in another function": SCORES
    + """
def holdout(features, targets):
    order = torch.randperm(len(features))
    tr, te = order[:80], order[80:]
    return features[tr], targets[tr], features[te], targets[te]
def load(x, y):
    keep = top(x, y, 20)  # <- DAT020
    x = torch.tensor(x[:, keep])
    return holdout(x, y)
""",
    "a function that selects": SCORES
    + """
def select(x, y, k=20):
    order = np.abs(t_scores(x, y)).argsort()
    return x[:, order[-k:]]
features = select(expression, labels)  # <- DAT020
x_train, x_test = torch.tensor(features[:80]), torch.tensor(features[80:])
""",
    "correlated columns": """
import numpy as np
def load(x, y):
    r = np.array([np.corrcoef(x[:, j], y)[0, 1] for j in range(x.shape[1])])  # <- DAT020
    keep = np.abs(r) > 0.2
    x = torch.tensor(x[:, keep])
    return train_test_split(x, y)
""",
}
CORRECT |= {
    "columns chosen in each fold": SCORES
    + """
def evaluate(x, y, folds=5):
    parts = np.array_split(np.random.permutation(len(x)), folds)
    for i, te in enumerate(parts):
        tr = np.concatenate([p for j, p in enumerate(parts) if j != i])
        keep = top(x[tr], y[tr], 20)
        xtr, xte = x[tr][:, keep], x[te][:, keep]
        print(fit_predict(torch.from_numpy(xtr), y[tr], torch.from_numpy(xte)))
""",
    "chosen on the training part, in the index": SCORES
    + """
def evaluate(x, y, train_rows, test_rows):
    x = x[:, top(x[train_rows], y[train_rows], 20)]
    print(fit_predict(torch.from_numpy(x[train_rows]), y[train_rows], x[test_rows]))
""",
    "a function that selects in the training part": SCORES
    + """
def select(x, y, k=20):
    order = np.abs(t_scores(x, y)).argsort()
    return x[:, order[-k:]]
x_train, x_test, y_train, y_test = train_test_split(x, y)
x_train = select(x_train, y_train)
inner, outer = x_train[:60], x_train[60:]
""",
    "all samples are trained on": SCORES
    + """
def load(x, y):
    x = torch.tensor(x[:, top(x, y, 20)])
    return x, y
""",
    "columns without labels": """
import numpy as np
def widest(x, k):
    return np.argsort(-x.var(0))[:k]
def evaluate(x, y, tr, te):
    x = torch.from_numpy(x[:, widest(x, 20)])
    print(fit_predict(x[tr], y[tr], x[te]))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)


FOLDS = """
import numpy as np
import torch

def strongest(x, y, k):
    gap = np.abs(x[y == 1].mean(0) - x[y == 0].mean(0))
    return np.argsort(-gap)[:k]

BEFORE
for test in np.array_split(np.random.permutation(len(y)), 5):
    train = np.setdiff1d(np.arange(len(y)), test)
    INSIDE
    a, b = x[train][:, best], x[test][:, best]
    model = fit(torch.tensor(a), y[train])
"""


def test_lint_reports_columns_of_parts_that_all_samples_chose(lint_codes):
    chosen = "best = strongest(x, y, 20)"
    assert "DAT020" in lint_codes(FOLDS.replace("BEFORE", chosen).replace("INSIDE", "pass"))


@pytest.mark.parametrize("chosen", ["best = strongest(x[train], y[train], 20)", "best = np.argsort(-x.var(0))[:20]"])
def test_lint_accepts_columns_that_the_training_rows_chose(lint_codes, chosen):
    assert "DAT020" not in lint_codes(FOLDS.replace("BEFORE", "").replace("INSIDE", chosen))
