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

FAULTY |= {
    "the rest of one array": """
encoder = LabelEncoder()
first = torch.tensor(encoder.fit_transform(names[:500]))
later = torch.tensor(encoder.fit_transform(names[500:]))  # <- DAT013
""",
    "the rest of one series": """
scaler = MinMaxScaler()
cut = int(0.8 * len(series))
past = torch.tensor(scaler.fit_transform(series[:cut]))
future = torch.tensor(scaler.fit_transform(series[cut:]))  # <- DAT013
""",
    "in a function for both parts": """
encoders = {c: LabelEncoder() for c in CAT}
def encode(df, fit):
    cats = np.stack([encoders[c].fit_transform(df[c]) for c in CAT], 1)  # <- DAT013
    return torch.tensor(cats)
a, b = encode(train, fit=True), encode(test, fit=False)
""",
    "in the constructor of a dataset": """
class Rows(torch.utils.data.Dataset):
    def __init__(self, frame, columns):
        self.x = StandardScaler().fit_transform(frame[columns].values)  # <- DAT013
train_set, val_set = Rows(train_df, columns), Rows(frame=val_df, columns=columns)
""",
    "a method that makes features": """
class Features:
    def __init__(self):
        self.scaler = MinMaxScaler()
    def make(self, x):
        scaled = self.scaler.fit_transform(x)  # <- DAT013
        return torch.from_numpy(scaled)
features = Features()
a = features.make(X_train)
b = features.make(X_test)
""",
}
FAULTY |= {
    "columns under another name": """
def columns(train_raw, test_raw):
    scaler = StandardScaler()
    a = train_raw.iloc[:, 2:]
    b = test_raw.iloc[:, 2:]
    return torch.tensor(scaler.fit_transform(a)), torch.tensor(scaler.fit_transform(b))  # <- DAT013
""",
    "columns that remain": """
def features(df_train, df_test):
    mm = MinMaxScaler()
    a = df_train.drop(columns=["y"])
    b = df_test.drop(columns=["y"])
    b = b.to_numpy()
    a = mm.fit_transform(a)
    b = mm.fit_transform(b)  # <- DAT013
    return torch.tensor(a), torch.tensor(b)
""",
}

CORRECT = {
    "columns under another name, transformed": """
def columns(train_raw, test_raw):
    scaler = StandardScaler()
    a = train_raw.iloc[:, 2:]
    b = test_raw.iloc[:, 2:]
    return torch.tensor(scaler.fit_transform(a)), torch.tensor(scaler.transform(b))
""",
    "computed from held-out data": """
def columns(train_raw, test_raw, scaler):
    a = scaler.fit_transform(train_raw)
    b = combine(train_raw, test_raw)
    return torch.tensor(a), torch.tensor(scaler.fit_transform(b))
""",
    "the rest of one array, transformed only": """
a = torch.tensor(encoder.fit_transform(names[:500]))
b = torch.tensor(encoder.transform(names[500:]))
""",
    "columns of two units": """
a = torch.tensor(scaler.fit_transform(x[:, :3]))
b = torch.tensor(scaler.fit_transform(x[:, 3:]))
""",
    "a scaler for each recording": """
a = torch.tensor(first_scaler.fit_transform(x[:500]))
b = torch.tensor(second_scaler.fit_transform(x[500:]))
""",
    "a function that fits on request": """
def encode(df, fit):
    return torch.tensor(encoder.fit_transform(df) if fit else encoder.transform(df))
a, b = encode(train, True), encode(test, False)
""",
    "a function that fits once": """
def encode(df, scaler=None):
    if scaler is not None:
        return torch.tensor(scaler.transform(df))
    scaler = StandardScaler()
    return torch.tensor(scaler.fit_transform(df))
a, b = encode(train), encode(test, scaler)
""",
    "a function for the training part": """
def encode(train, other):
    return torch.tensor(scaler.fit_transform(train)), torch.tensor(scaler.transform(other))
(a, b), (_, c) = encode(x_train, x_val), encode(x_train, x_test)
""",
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


FAULTY |= {
    "a comprehension over the borders, unpacked by the caller": """
def load(series):
    scaler = StandardScaler()
    parts = [scaler.fit_transform(series[a:b]) for a, b in [(0, 700), (700, 800), (800, 1000)]]  # <- DAT013
    return [Windows(torch.tensor(part)) for part in parts]
class Experiment:
    def __init__(self, series):
        self.train_set, self.vali_set, self.test_set = load(series)
""",
    "a list of both parts": """
for frame in (train_df, test_df):
    frame[columns] = scaler.fit_transform(frame[columns])  # <- DAT013
x = torch.tensor(train_df.values)
""",
    "the names of the parts": """
for split in ["train", "val", "test"]:
    data[split] = torch.tensor(StandardScaler().fit_transform(raw[split]))  # <- DAT013
""",
    "appended parts": """
def load(x, borders):
    parts = []
    for first, last in borders:
        parts.append(torch.tensor(MinMaxScaler().fit_transform(x[first:last])))  # <- DAT013
    return parts
train_x, test_x = load(x, borders)
""",
}
CORRECT |= {
    "each sensor, in both parts": """
train, test = torch.tensor(train), torch.tensor(test)
for sensor in sensors:
    scaler = StandardScaler().fit(train[sensor])
    train[sensor], test[sensor] = scaler.transform(train[sensor]), scaler.transform(test[sensor])
""",
    "each fold": """
for train_rows, test_rows in KFold(5).split(x):
    scaler = StandardScaler()
    train_x = torch.tensor(scaler.fit_transform(x[train_rows]))
    test_x = torch.tensor(scaler.transform(x[test_rows]))
""",
    "only the first part is fitted": """
for number, part in enumerate((x_train, x_test)):
    part[:] = scaler.fit_transform(part) if number == 0 else scaler.transform(part)
for split in ("train", "test"):
    if split == "train":
        scaler.fit(raw[split])
    data[split] = torch.tensor(scaler.transform(raw[split]))
""",
    "several training sets": """
train_a, train_b = [torch.tensor(StandardScaler().fit_transform(site)) for site in sites]
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(script)


EACH_SAMPLE = """
import torch
import nibabel as nib
from sklearn.preprocessing import MinMaxScaler
scaler = MinMaxScaler()
test_image = scaler.fit_transform(nib.load("a.nii").get_fdata())
plt.imshow(test_image)
for number, name in enumerate(names):
    image = nib.load(name).get_fdata()
    image = scaler.fit_transform(image)
    torch.save(image, f"{number}.pt")
{after}
"""


@pytest.mark.parametrize("after", ["", "model.fit(train_loader)", "history = net.fit(train_x, epochs=3)"])
def test_samples_that_are_all_scaled_on_their_own_are_accepted(lint_codes, after):
    script = EACH_SAMPLE.replace("{after}", after)
    assert "DAT013" not in lint_codes(script.replace('nib.load("a.nii").get_fdata()', "test_image"))


@pytest.mark.parametrize("after", ["x = scaler.fit_transform(train_x)", "x = scaler.fit(train_x).transform(train_x)"])
def test_samples_scaled_apart_from_a_whole_set_are_reported(lint_codes, after):
    script = EACH_SAMPLE.replace("{after}", after)
    assert "DAT013" in lint_codes(script.replace('nib.load("a.nii").get_fdata()', "test_image"))
