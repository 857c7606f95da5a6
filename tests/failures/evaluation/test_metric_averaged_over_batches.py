"""EVL016: metrics that are no means over samples, averaged over batches."""

import pytest

FAULTY = {
    "divided by the number of batches": """
def evaluate(model, val_loader):
    total = 0
    with torch.no_grad():
        for x, y in val_loader:
            p = model(x).argmax(1)
            total += f1_score(y, p, average="macro")  # <- EVL016
    return total / len(val_loader)
""",
    "through a variable and a list": """
aucs = []
for x, y in test_loader:
    scores = torch.sigmoid(model(x))
    auc = roc_auc_score(y.numpy(), scores.numpy())  # <- EVL016
    aucs.append(auc)
print(np.mean(aucs))
""",
    "a meter": """
def validate(model, loader, f1_meter):
    for x, y in loader:
        f1_meter.update(f1_score(y, model(x) > 0), x.size(0))  # <- EVL016
""",
    "weighted by the size of the batch": """
for x, y in loader:
    r2 += r2_score(y, model(x)).item() * len(x)  # <- EVL016
r2 /= len(loader.dataset)
""",
    "a class that averages": """
class MacroF1:
    def __init__(self):
        self.total, self.n = 0.0, 0
    def update(self, logits, target):
        predicted = logits.argmax(1).numpy()
        self.total += f1_score(target.numpy(), predicted, average="macro")  # <- EVL016
        self.n += 1
    def compute(self):
        return self.total / self.n

metric = MacroF1()
for x, y in val_loader:
    metric.update(model(x), y)
print(metric.compute())
""",
    "a class with a list, called, in a function": """
class Scores:
    def __init__(self):
        self.values = []
    def __call__(self, outputs, labels):
        auc = roc_auc_score(labels.numpy(), outputs.sigmoid().numpy())  # <- EVL016
        self.values.append(auc)
    def mean(self):
        return float(np.mean(self.values))

def evaluate(model, loader, scores):
    for x, y in loader:
        scores(model(x), y)
    return scores.mean()

def main():
    scores = Scores()
    evaluate(model, test_loader, scores)
""",
    "attributes of a trainer": """
class Trainer:
    def validate(self):
        self.f1_total = 0
        for x, y in self.val_loader:
            self.f1_total += f1_score(y, self.model(x).argmax(1), average="macro")  # <- EVL016
    def report(self):
        print(self.f1_total / len(self.val_loader))
""",
    "a function around that of a library": """
def score_batch(logits, labels):
    predicted = logits.argmax(1).cpu()
    score = f1_score(labels.cpu(), predicted, average="macro")
    return score

total = 0
for x, y in val_loader:
    total += score_batch(model(x), y) * len(x)  # <- EVL016
print(total / len(val_loader.dataset))
""",
    "a function of the program": """
def recall_of_positives(predicted, labels):
    tp = (predicted & labels).sum()
    fn = (~predicted & labels).sum()
    return tp / (tp + fn + 1e-8)

recalls = []
for x, y in val_loader:
    recalls.append(recall_of_positives(model(x) > 0, y.bool()).item())  # <- EVL016
print(sum(recalls) / len(recalls))
""",
    "a mean IoU from a confusion matrix": """
def mean_iou(predicted, labels, n):
    matrix = torch.bincount(labels.flatten() * n + predicted.flatten(), minlength=n * n).view(n, n)
    hits = matrix.diag()
    return (hits / (matrix.sum(0) + matrix.sum(1) - hits)).nanmean()

totals = {"loss": 0.0, "iou": 0.0}
for x, y in val_loader:
    out = model(x)
    totals["loss"] += loss(out, y).item()
    totals["iou"] += mean_iou(out.argmax(1), y, 3).item()  # <- EVL016
print({k: v / len(val_loader) for k, v in totals.items()})
""",
    "an F1 per class": """
def f1_macro(predicted, labels):
    scores = []
    for c in range(5):
        hits = ((predicted == c) & (labels == c)).sum()
        scores.append(2 * hits / ((predicted == c).sum() + (labels == c).sum()))
    return torch.stack(scores).mean()

scores = []
for x, y in val_loader:
    scores.append(f1_macro(model(x).argmax(1), y).item())  # <- EVL016
print(np.mean(scores))
""",
    "an RMSE": """
total, n = 0, 0
with torch.no_grad():
    for i in range(400, 500, 10):
        total += torch.sqrt(F.mse_loss(net(X[i : i + 10]).squeeze(1), y[i : i + 10])).item()  # <- EVL016
        n += 1
print("test RMSE", total / n)
""",
    "an RMSE from a variable": """
criterion = nn.MSELoss()
def validate(model, loader):
    rmses = []
    for x, y in loader:
        mse = criterion(model(x), y)
        rmse = mse.sqrt().item()  # <- EVL016
        rmses.append(rmse)
    return np.mean(rmses)
""",
    "an RMSE by hand, in a class": """
class Trainer:
    def evaluate(self):
        self.rmse = 0.0
        for x, y in self.val_loader:
            error = ((self.model(x) - y) ** 2).mean()
            self.rmse += error.item() ** 0.5 * len(x)  # <- EVL016
        return self.rmse / len(self.val_loader.dataset)
""",
    "a function for the RMSE": """
def score(predicted, y):
    return torch.sqrt(torch.mean((predicted - y) ** 2))
scores = []
for x, y in zip(X.split(32), Y.split(32)):
    scores.append(score(model(x), y))  # <- EVL016
print(torch.stack(scores).mean())
""",
    "a perplexity": """
ppl, n = 0, 0
for i in range(160, 200, 10):
    b = data[i : i + 10]
    ppl += torch.exp(F.cross_entropy(net(b[:, :-1]).reshape(-1, V), b[:, 1:].reshape(-1))).item()  # <- EVL016
    n += 1
print("perplexity", ppl / n)
""",
    "a perplexity from the loss of a model": """
def evaluate(model, eval_loader):
    values = []
    for batch in eval_loader:
        loss = model(**batch).loss
        values.append(math.exp(loss.item()))  # <- EVL016
    return sum(values) / len(values)
""",
    "a function for the perplexity": """
def perplexity(logits, targets):
    ce = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return ce.exp()
total = 0.0
for x, y in test_loader:
    total += perplexity(model(x), y).item()  # <- EVL016
print(total / len(test_loader))
""",
    "comprehensions": """
values = [torch.sqrt(F.mse_loss(net(x), y)).item() for x, y in val_loader]  # <- EVL016
print(sum(values) / len(values))
ppl = sum(math.exp(F.cross_entropy(net(x), y).item()) for x, y in val_loader) / len(val_loader)  # <- EVL016
print(np.mean([f1_score(y, net(x) > 0) for x, y in val_loader]))  # <- EVL016
""",
    "an F1 of parts of a tensor": """
scores = []
for start in range(0, len(x), 64):
    p = model(x[start : start + 64]).argmax(1)
    scores.append(f1_score(y[start : start + 64], p))  # <- EVL016
print(np.mean(scores))
""",
}
CORRECT = {
    "the root and the exponential after the loop": """
for x, y in val_loader:
    mse += F.mse_loss(model(x), y).item() * len(x)
    nll += F.cross_entropy(model(x), y).item()
mse /= len(val_loader.dataset)
print(math.sqrt(mse), math.exp(nll / len(val_loader)))
""",
    "an RMSE that is trained": """
def rmse(predicted, y):
    return torch.sqrt(F.mse_loss(predicted, y) + 1e-8)
for x, y in train_loader:
    loss = rmse(model(x), y)
    loss.backward()
for x, y in val_loader:
    total += rmse(model(x), y).item()
print(total / len(val_loader))
""",
    "an RMSE that is trained, in a class": """
class RMSELoss(nn.Module):
    def forward(self, predicted, y):
        return torch.sqrt(((predicted - y) ** 2).mean())
criterion = RMSELoss()
for x, y in train_loader:
    criterion(model(x), y).backward()
for x, y in val_loader:
    total += criterion(model(x), y).item()
print(total / len(val_loader))
""",
    "an RMSE that is printed for each batch": """
for x, y in val_loader:
    mse = F.mse_loss(model(x), y)
    print(mse.sqrt().item())
    total += mse.item()
print((total / len(val_loader)) ** 0.5)
""",
    "an RMSE per sample": """
for x, y in val_loader:
    errors = torch.sqrt(((model(x) - y) ** 2).mean(dim=1))
    total += errors.sum().item()
print(total / len(val_loader.dataset))
""",
    "one batch": """
x, y = next(iter(val_loader))
print(torch.sqrt(F.mse_loss(model(x), y)))
""",
    "the perplexity of each sentence": """
for sentence in sentences:
    ppl.append(math.exp(model(sentence, labels=sentence).loss.item()))
print(np.mean(ppl))
""",
    "the perplexity of each sentence of a batch": """
for x, y in loader:
    loss = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none").mean(1)
    ppl.append(torch.exp(loss))
print(torch.cat(ppl).mean())
""",
    "a progress bar": """
bar = tqdm(val_loader)
for i, (x, y) in enumerate(bar):
    loss = F.cross_entropy(model(x), y)
    nll += loss.item()
    shown += math.exp(loss.item())
    bar.set_postfix(ppl=f"{shown / (i + 1):.1f}")
print(math.exp(nll / len(val_loader)))
""",
    "a standard deviation": """
for x, y in val_loader:
    mean, logvar = model(x)
    spread += torch.exp(0.5 * logvar).mean().item()
    norm += torch.sqrt((x**2).mean())
print(spread / len(val_loader), norm / len(val_loader))
""",
    "a list of roots that is printed": """
values = [torch.sqrt(F.mse_loss(net(x), y)).item() for x, y in val_loader]
print(values)
print(sum(F.mse_loss(net(x), y).item() for x, y in val_loader) / len(val_loader))
""",
    "the running perplexity": """
for i, (x, y) in enumerate(val_loader):
    total += F.cross_entropy(model(x), y).item()
    history.append(math.exp(total / (i + 1)))
print(np.mean(history[-3:]))
""",
    "an F1 per sample": """
def f1_score(predicted, labels):
    hits = (predicted * labels).sum(1)
    return (2 * hits / (predicted.sum(1) + labels.sum(1))).mean()
for x, y in val_loader:
    total += f1_score(model(x) > 0, y) * len(x)
print(total / len(val_loader.dataset))
""",
    "an IoU per image": """
def iou(predicted, masks):
    inter = (predicted & masks).flatten(1).sum(dim=-1)
    union = (predicted | masks).flatten(1).sum(dim=-1)
    return (inter / union).mean()
for x, y in val_loader:
    ious.append(iou(model(x) > 0, y))
print(np.mean(ious))
""",
    "an F1 per pair of texts": """
def f1(predicted, gold):
    return sum(token_f1(p, g) for p, g in zip(predicted, gold)) / len(gold)
for x, y in val_loader:
    total += f1(model(x), y) * len(y)
print(total / n)
""",
    "a precision in the first k": """
def precision_at_k(scores, labels, k):
    hits = (scores.topk(k).indices == labels[:, None]).sum()
    return hits / labels.size(0)
for x, y in val_loader:
    total += precision_at_k(model(x), y, 5) * len(x)
print(total / n)
""",
    "overlap of boxes": """
def box_iou(a, b):
    inter = (torch.min(a[:, 2:], b[:, 2:]) - torch.max(a[:, :2], b[:, :2])).clamp(min=0).prod(1)
    return inter / (area(a) + area(b) - inter)
for x, y in val_loader:
    total += box_iou(model(x), y).mean() * len(x)
print(total / n)
""",
    "a class that collects": """
class MacroF1:
    def __init__(self):
        self.predicted, self.labels, self.history = [], [], []
    def update(self, logits, target):
        self.predicted.append(logits.argmax(1))
        self.labels.append(target)
    def compute(self, epoch, name):
        self.history.append(f1_score(torch.cat(self.labels), torch.cat(self.predicted)))
        return np.mean(self.history[-3:])
metric = MacroF1()
for x, y in val_loader:
    metric.update(model(x), y)
print(metric.compute(1, "f1"))
""",
    "a class that is called once per fold": """
class Folds:
    def __init__(self):
        self.scores = []
    def add(self, predicted, labels):
        self.scores.append(f1_score(labels, predicted))
    def mean(self):
        return np.mean(self.scores)
folds = Folds()
for train, test in splits:
    for x, y in test_loader:
        predicted.append(model(x))
    folds.add(torch.cat(predicted), y_test)
print(folds.mean())
""",
    "a dice loss": """
def dice_loss(predicted, masks):
    return 1 - 2 * (predicted * masks).sum() / (predicted.sum() + masks.sum())
for x, y in val_loader:
    total += dice_loss(model(x), y).item()
print(total / len(val_loader))
""",
    "counts that are divided at the end": """
def recall_counts(predicted, labels):
    return (predicted & labels).sum(), labels.sum()
for x, y in val_loader:
    hits, all_positive = recall_counts(model(x) > 0, y)
    tp += hits
    positives += all_positive
print(tp / positives)
""",
    "once, after the loop": """
preds, labels = [], []
for x, y in loader:
    preds.append(model(x).argmax(1)); labels.append(y)
f1 = f1_score(torch.cat(labels), torch.cat(preds))
print(f1 / 1.0)
""",
    "displayed during training": """
for x, y in train_loader:
    out = model(x)
    loss(out, y).backward()
    running += f1_score(y, out.argmax(1))
print(running / len(train_loader))
""",
    "a list that is only printed": """
history = []
for epoch in range(3):
    for x, y in loader:
        preds.append(model(x))
    history.append(f1_score(y_all, torch.cat(preds)))
print(np.mean(history))
""",
    "the mean over samples": """
for x, y in loader:
    f1 += f1_score(y, model(x) > 0, average="samples") * len(x)
f1 /= len(dataset)
""",
    "folds": """
for fold, (a, b) in enumerate(kf.split(X)):
    scores.append(f1_score(y[b], fit(X[a], y[a]).predict(X[b])))
print(np.mean(scores))
""",
    "one document for each batch": """
loader = DataLoader(documents, batch_size=1)
for x, y in loader:
    total += f1_score(y, model(x))
print(total / len(loader))
""",
    "an accuracy": """
for x, y in loader:
    correct += accuracy_score(y, model(x).argmax(1)) * len(x)
print(correct / len(dataset))
""",
}
PREDICT = """
def predict(model, loader):
    with torch.no_grad():
        for x, y in loader:
            yield model(x).argmax(1), y
"""
FAULTY |= {
    "a generator over the batches": PREDICT
    + """
def summary(pairs):
    return float(np.mean([f1_score(truth, guess) for guess, truth in pairs]))  # <- EVL016
print(summary(predict(model, test_loader)))
""",
    "a loop over a generator": PREDICT
    + """
scores = []
for guess, truth in tqdm(predict(model, test_loader)):
    scores.append(f1_score(truth, guess))  # <- EVL016
print(sum(scores) / len(scores))
""",
    "pairs that are collected": """
pairs = []
for x, y in test_loader:
    pairs.append((y.numpy(), model(x).numpy()))
print(statistics.fmean(roc_auc_score(*pair) for pair in pairs))  # <- EVL016
""",
    "parts of a tensor": """
print(np.mean([f1_score(b, model(a) > 0) for a, b in zip(x.split(50), y.split(50))]))  # <- EVL016
""",
}
CORRECT |= {
    "a list of folds": """
print(np.mean([f1_score(y[test], fit(x[train]).predict(x[test])) for train, test in kf.split(x)]))
""",
    "a generator over the samples": """
def predict(model, loader):
    for x, y in loader:
        for guess, truth in zip(model(x), y):
            yield guess, truth
print(np.mean([f1_score(truth, guess) for guess, truth in predict(model, test_loader)]))
""",
    "all pairs together": PREDICT
    + """
guess, truth = map(np.concatenate, zip(*predict(model, test_loader)))
print(f1_score(truth, guess))
""",
    "a metric for each class": """
pairs = []
for number in range(10):
    pairs.append((y == number, predicted == number))
print(np.mean([f1_score(truth, guess) for truth, guess in pairs]))
""",
    "a generator of folds": """
def folds(x, y):
    for train, test in KFold(5).split(x):
        yield y[test], fit(x[train], y[train]).predict(x[test])
print(np.mean([f1_score(truth, guess) for truth, guess in folds(x, y)]))
""",
}
COUNTS = """
def counts(pred, gold):
    keep = gold != -100
    pred, gold = pred[keep], gold[keep]
    tp = ((pred == 1) & (gold == 1)).sum().item()
    fp = ((pred == 1) & (gold == 0)).sum().item()
    fn = ((pred == 0) & (gold == 1)).sum().item()
    return tp, fp, fn
"""
FAULTY |= {
    "from counts that another function returns": COUNTS
    + """
def score_from(tp, fp, fn):
    denom = 2 * tp + fp + fn
    return 2 * tp / denom if denom > 0 else 0.0
def evaluate(model, loader):
    scores = []
    for x, y in loader:
        scores.append(score_from(*counts(model(x).argmax(-1), y)))  # <- EVL016
    return sum(scores) / len(scores)
""",
    "counts in variables": COUNTS
    + """
def harmonic(hits, wrong, missed):
    if hits == 0:
        return 0.0
    p, r = hits / (hits + wrong), hits / (hits + missed)
    return 2 * p * r / (p + r)
total = 0
for x, y in val_loader:
    a, b, c = counts(model(x).argmax(-1), y)
    total += harmonic(a, b, c)  # <- EVL016
print(total / len(val_loader))
""",
    "written out in the loop": """
values = []
for x, y in val_loader:
    p = model(x) > 0
    tp = (p & y).sum().item()
    fp = (p & ~y).sum().item()
    fn = (~p & y).sum().item()
    f1 = 2 * tp / (2 * tp + fp + fn) if tp else 0.0  # <- EVL016
    values.append(f1)
print(np.mean(values))
""",
    "several values in a tuple": """
def prf(pred, gold):
    tp = (pred & gold).sum().item()
    fp = (pred & ~gold).sum().item()
    fn = (~pred & gold).sum().item()
    precision = tp / (tp + fp + 1e-9)
    recall = tp / (tp + fn + 1e-9)
    return precision, recall, len(pred)
history = {"p": [], "n": []}
for x, y in test_loader:
    precision, recall, n = prf(model(x) > 0, y)  # <- EVL016
    history["p"].append(precision)
    history["n"].append(n)
print({key: sum(v) / len(v) for key, v in history.items()}, {key: np.mean(v) for key, v in history.items()})
""",
    "a tuple of sklearn": """
f1s = []
for x, y in test_loader:
    p, r, f, _ = precision_recall_fscore_support(y, model(x) > 0, average="binary")  # <- EVL016
    f1s.append(f)
print(np.mean(f1s))
""",
    "an object of torchmetrics": """
metric = BinaryF1Score().to(device)
total = 0.0
for x, y in val_loader:
    total += metric(model(x), y).item()  # <- EVL016
print(total / len(val_loader))
""",
    "an object of torchmetrics, in a class": """
class Evaluator:
    def __init__(self):
        self.auc = torchmetrics.AUROC(task="multiclass", num_classes=3)
        self.values = []
    def run(self, model, loader):
        for x, y in loader:
            self.values.append(self.auc(model(x), y))  # <- EVL016
        return torch.stack(self.values).mean()
""",
}
CORRECT |= {
    "counts are added up": COUNTS
    + """
def score_from(tp, fp, fn):
    denom = 2 * tp + fp + fn
    return 2 * tp / denom if denom > 0 else 0.0
totals, losses = [0, 0, 0], []
for x, y in val_loader:
    out = model(x)
    losses.append(F.cross_entropy(out, y).item())
    totals = [a + b for a, b in zip(totals, counts(out.argmax(-1), y))]
print(score_from(*totals), sum(losses) / len(losses))
""",
    "a running value": """
tp = fp = fn = 0
history = []
for x, y in val_loader:
    p = model(x) > 0
    tp += (p & y).sum().item()
    fp += (p & ~y).sum().item()
    fn += (~p & y).sum().item()
    history.append(2 * tp / (2 * tp + fp + fn))
print(np.mean(history[-3:]))
""",
    "the size of a tuple": """
def summary(pred, gold):
    tp = (pred & gold).sum().item()
    fp = (pred & ~gold).sum().item()
    return tp / (tp + fp), len(pred)
sizes, ps = [], []
for x, y in test_loader:
    p, n = summary(model(x) > 0, y)
    sizes.append(n)
    ps.append(p)
print(np.mean(sizes), ps)
""",
    "micro F1, which is the accuracy": """
metric = torchmetrics.F1Score(task="multiclass", num_classes=3, average="micro")
total = 0.0
for x, y in val_loader:
    total += metric(model(x), y).item() * len(y)
print(total / len(val_loader.dataset))
""",
    "a metric that is computed at the end": """
metric = BinaryF1Score()
for x, y in val_loader:
    metric.update(model(x), y)
    total += loss(model(x), y).item()
print(metric.compute(), total / len(val_loader))
""",
    "a share of weights": """
for x, y in val_loader:
    a, b = model(x).exp().sum(), y.sum()
    share = a / (a + b)
    total += share.item()
print(total / len(val_loader))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_metric(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(script, "EVL016")
