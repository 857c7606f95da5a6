"""DAT013: scalers that are fitted on held-out data."""

import pytest

FAULTY = {
    "the same scaler": """
X_train, X_test, y_train, y_test = train_test_split(X, y)
sc = StandardScaler()
X_train = sc.fit_transform(X_train)
X_test = sc.fit_transform(X_test)  # <- DAT013
X_train = torch.tensor(X_train)
""",
    "new scalers": """
x_train = torch.tensor(StandardScaler().fit_transform(train[columns]))
x_val = torch.tensor(StandardScaler().fit_transform(val[columns]))  # <- DAT013
""",
    "an encoder": """
encoder = LabelEncoder()
y_train = encoder.fit_transform(y_train)
y_test = torch.from_numpy(encoder.fit_transform(y_test))  # <- DAT013
""",
}

CORRECT = {
    "transformed only": """
scaler = MinMaxScaler()
x_train = torch.tensor(scaler.fit_transform(x_train))
x_test = torch.tensor(scaler.transform(x_test))
""",
    "no transform for new data": """
a = torch.tensor(TSNE(2).fit_transform(train_codes))
b = torch.tensor(TSNE(2).fit_transform(test_codes))
""",
    "the only fit of the file": """
x_test = torch.tensor(StandardScaler().fit_transform(x_test))
""",
    "fitted on both": """
scaler.fit(x_train)
both = torch.tensor(scaler.fit_transform(np.concatenate([x_train, x_test])))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(script)
