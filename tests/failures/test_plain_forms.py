"""Mistakes that stand in the text of fragments, cells and functions whose objects come from elsewhere."""

import pytest

FAULTY = {
    "backward without a call": """
def train(model, loader, optimizer, criterion):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward  # <- GRD013
        optimizer.step()
""",
    "step without a call": """
def train(model, loader, optimizer, criterion):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step  # <- OPT006
""",
    "a scheduler's step without a call": """
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
for epoch in range(9):
    train_epoch(model, optimizer)
    scheduler.step  # <- SCH006
""",
    "a softmax without imports": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)
    def forward(self, x):
        return F.softmax(self.fc(x), dim=1)
model = Net()
criterion = nn.CrossEntropyLoss()
for x, y in loader:
    loss = criterion(model(x), y)  # <- LOS001
    loss.backward()
""",
    "a plateau of an accuracy": """
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=3)
for epoch in range(9):
    val_acc = evaluate(model)
    scheduler.step(val_acc)  # <- SCH005
""",
    "a plateau of a loss": """
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max")
for epoch in range(9):
    metrics = evaluate(model)
    scheduler.step(metrics["val_loss"])  # <- SCH005
""",
    "as many steps as epochs": """
def fit(model, loader, optimizer, criterion, epochs):
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
            scheduler.step()  # <- SCH007
""",
    "cleared between backward and step": """
for x, y in batches:
    loss = criterion(model(x), y)
    loss.backward()
    print(loss.item())
    optimizer.zero_grad()  # <- GRD002
    optimizer.step()
""",
    "clipped before backward": """
for x, y in batches:
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <- GRD010
    loss.backward()
    optimizer.step()
""",
    "a sum of losses": """
total = 0.0
for x, y in batches:
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    total = total + loss  # <- MEM001
""",
    "a product of losses": """
perplexity = 1.0
for x, y in batches:
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    perplexity *= torch.exp(loss)  # <- MEM001
""",
    "an output that is copied": """
def step(model, x, y, criterion, optimizer):
    optimizer.zero_grad()
    out = torch.tensor(model(x), requires_grad=True)  # <- GRD009
    loss = criterion(out, y)
    loss.backward()
    optimizer.step()
""",
    "a loss that is copied": """
for x, y in batches:
    optimizer.zero_grad()
    loss = Variable(criterion(model(x), y), requires_grad=True)
    loss.backward()  # <- GRD009
    optimizer.step()
""",
    "a loss that gets requires_grad": """
def step(net, x, y, loss_fn, opt):
    opt.zero_grad()
    with torch.no_grad():
        loss = loss_fn(net(x), y)
    loss.requires_grad = True  # <- GRD009
    loss.backward()
    opt.step()
""",
    "labels as the prediction": """
criterion = nn.BCEWithLogitsLoss()
for x, labels in loader:
    optimizer.zero_grad()
    outputs = model(x)
    loss = criterion(labels, outputs)  # <- LOS008
    loss.backward()
    optimizer.step()
""",
    "a sigmoid before cross-entropy": """
model = nn.Sequential(nn.Linear(8, 5), nn.Sigmoid())
for x, y in loader:
    loss = F.cross_entropy(model(x), y)  # <- LOS002
    loss.backward()
""",
}

FAULTY |= {
    "a seed in each epoch": """
def fit(model, loader, optimizer, criterion, epochs):
    for epoch in range(epochs):
        torch.manual_seed(42)  # <- DAT004
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
""",
    "results of methods": """
def forward(self, x):
    x.view(-1, 784)  # <- MDL009
    out = self.fc(x)
    out.squeeze(1)  # <- MDL009
    return out
""",
    "parts of a batch": """
def train(model, loader, optimizer, criterion, device):
    for i, (images, labels) in enumerate(loader):
        images.to(device)  # <- MDL009
        labels.cuda()  # <- MDL009
        optimizer.zero_grad()
        criterion(model(images), labels).backward()
        optimizer.step()
""",
}

CORRECT = {
    "a seed for each epoch": """
def fit(model, loader, optimizer, criterion, epochs, seed):
    torch.manual_seed(seed)
    for epoch in range(epochs):
        torch.manual_seed(seed + epoch)
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
""",
    "a seed for each run": """
for seed in range(5):
    torch.manual_seed(0)
    train(model_of(seed))
""",
    "results that are used, checked or moved in place": """
def forward(self, x, batch, model, device):
    try:
        x.view(-1, 784)
    except RuntimeError:
        x = x.contiguous()
    with assert_raises():
        x.squeeze(1)
    model.to(device)
    batch.to(device)
    window.view(x)
    y = x.view(-1, 784)
    return y.squeeze(1)
""",
    "graphs that move in place": """
def train(model, loader, optimizer, device):
    for graph, labels in loader:
        graph.to(device)
        labels = labels.to(device)
        optimizer.zero_grad()
        model(graph, labels).backward()
        optimizer.step()
""",
    "called": """
def train(model, loader, optimizer, criterion, scheduler):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    scheduler.step()
    print(scheduler.step, optimizer.step)
""",
    "a property of another object": """
for state in machine:
    machine.step
""",
    "a plateau of minus an accuracy": """
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
for epoch in range(9):
    val_acc = evaluate(model)
    scheduler.step(-val_acc)
    scheduler.step(1 - val_acc)
    scheduler.step(value)
""",
    "a schedule in updates": """
def fit(model, loader, optimizer, criterion, epochs):
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * len(loader))
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
            scheduler.step()
""",
    "a schedule in epochs": """
def fit(model, loader, optimizer, criterion, epochs):
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        scheduler.step()
""",
    "gradients written between": """
for x, y in batches:
    loss = criterion(model(x), y)
    loss.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    optimizer.zero_grad()
    for p, g in zip(model.parameters(), gradients):
        p.grad = g
    optimizer.step()
""",
    "another optimizer is cleared": """
for x, y in batches:
    first.zero_grad()
    criterion(model(x), y).backward()
    second.zero_grad()
    first.step()
""",
    "a second step of another loss": """
for x, y in batches:
    opt.zero_grad()
    criterion(model(x), y).backward()
    opt.step()
    other.zero_grad()
    criterion(head(x), y).backward()
    torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
    other.step()
""",
    "a sum of numbers": """
total = 0.0
for x, y in batches:
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    total = total + loss.item()
    loss = loss.detach()
""",
    "a sum that has its own backward pass": """
for batches in windows:
    total = 0.0
    for x, y in batches:
        total = total + criterion(model(x), y)
    total.backward()
""",
    "an input that needs gradients": """
def attack(model, x, y, criterion):
    x = torch.tensor(x, requires_grad=True)
    loss = criterion(model(x), y)
    loss.backward()
    return x + 0.1 * x.grad.sign()
""",
    "gradients that are passed on by hand": """
def split(client, server, x, y, criterion):
    output = client(x)
    received = Variable(output.data, requires_grad=True)
    loss = criterion(server(received), y)
    loss.backward()
    output.backward(received.grad)
""",
    "a needless requires_grad": """
model = nn.Linear(8, 2)
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    loss.requires_grad_(True)
    loss.backward()
""",
    "a prediction and labels": """
criterion = nn.BCEWithLogitsLoss()
for x, labels in loader:
    optimizer.zero_grad()
    outputs = model(x)
    loss = criterion(outputs, labels)
    loss.backward()
    optimizer.step()
""",
    "the gradient of each loss in a list": """
for x in batches:
    losses = criterion(model(x), y)
    for each in losses:
        model.zero_grad()
        each.backward(retain_graph=True)
        measure(model)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_fragments(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_fragments(lint_is_clean, script):
    lint_is_clean(script)
