"""MDL017: views that swap dimensions."""

import pytest

FAULTY = {
    "sizes of the tensor": """
def forward(self, x):
    x = x.view(x.size(1), x.size(0), -1)  # <- MDL017
    return self.rnn(x)
""",
    "named sizes": """
def decode(logits):
    batch, channels, time = logits.size()
    logits = logits.view(time, batch, channels)  # <- MDL017
    return logits.log_softmax(-1)
""",
    "a tuple, the shape": """
def forward(self, x):
    x = F.relu(self.conv(x))
    x = x.reshape((x.shape[2], x.shape[0], x.shape[1]))  # <- MDL017
    return self.rnn(x)
""",
    "the heads of attention": """
def split(self, queries, keys):
    B, L, H, D = queries.shape
    return queries.view(B, H, L, -1)  # <- MDL017
""",
}

FAULTY |= {
    "split into heads and merged again": """
def split(self, t):
    B, T, _ = t.shape
    return t.reshape(B, self.heads, T, self.size)  # <- MDL017
def merge(self, t):
    B, H, T, D = t.shape
    return t.reshape(B, T, H * D)  # <- MDL017
""",
}

FAULTY |= {
    "images with channels last": """
def load(path):
    X = torch.from_numpy(np.load(path)["X"]).float()
    return X.reshape(-1, 3, X.shape[1], X.shape[2]) / 255  # <- MDL017
""",
}

LAYERS = """
from torch import nn
class Net(nn.Module):
    def __init__(self, n, e, h, steps):
        super().__init__()
        self.steps, self.layers = steps, 2
        self.embedding = nn.Embedding(n, e)
        self.lstm, self.act = nn.LSTM(e, h), nn.Tanh()
"""

FAULTY |= {
    "the batch after a new size": f"""{LAYERS}
    def forward(self, x):
        out = self.embedding(x)
        out = out.view(self.steps, x.size(0), -1)  # <- MDL017
        return self.lstm(out)
""",
    "sizes of the tokens": f"""{LAYERS}
    def forward(self, tokens):
        batch, steps = tokens.size()
        embedded = self.act(self.embedding(tokens))
        return self.lstm(embedded.view(steps, batch, -1))  # <- MDL017
""",
    "the batch of the tensor itself": f"""{LAYERS}
    def forward(self, x):
        return self.lstm(x.view(self.steps, x.shape[0], -1))  # <- MDL017
""",
}

CORRECT = {
    "a batch of one step": f"""{LAYERS}
    def forward(self, x):
        return self.lstm(self.embedding(x).view(1, x.size(0), -1))
""",
    "sizes of the tokens in order": f"""{LAYERS}
    def forward(self, tokens):
        batch, steps = tokens.size()
        embedded = self.embedding(tokens)
        return self.lstm(embedded.view(batch, steps, -1).transpose(0, 1))
""",
    "states of layers": f"""{LAYERS}
    def forward(self, x):
        out, (h, c) = self.lstm(self.embedding(x))
        return h.view(self.layers, x.size(1), -1)
""",
    "directions": f"""{LAYERS}
    def forward(self, x):
        h, _ = self.gru(x)
        return h.view(self.directions, x.size(0), self.size)
""",
    "images of one channel, and rows of pixels": """
def load(X, rows):
    X = X.reshape(-1, 1, X.shape[1], X.shape[2])
    return X, rows.view(rows.size(0), 3, 32, 32)
""",
    "merged in another order": """
def gram(y):
    b, ch, h, w = y.size()
    return y.view(b, ch, w * h)
""",
    "split into heads, merged and grouped": """
def split(self, t):
    B, T, C = t.shape
    t = t.view(B, T, self.heads, C // self.heads).transpose(1, 2)
    return t
def merge(self, t):
    B, T, H, D = t.shape
    return t.reshape(B, T, H * D), t.reshape(B * T, H, D)
def groups(self, x):
    B, C, L = x.shape
    y = x.view(B, self.groups, C // self.groups, L)
    return x.view(B, 1, C, L), y
""",
    "the same order, dimensions merged and divided": """
def windows(x, size):
    B, H, W, C = x.shape
    x = x.view(B, H // size, size, W // size, size, C)
    x = x.permute(0, 1, 3, 2, 4, 5).reshape(-1, size, size, C)
    return x.view(x.size(0), -1, x.size(3))
""",
    "sizes of another tensor": """
def attend(x, memory):
    T, B, C = memory.shape
    x = x.view(B, T, C)
    return x
""",
    "sizes from before a transpose": """
def forward(self, x):
    B, C, L = x.shape
    x = x.transpose(1, 2)
    x = x.reshape(B, L, C)
    return x
""",
    "flattened": """
def forward(self, x):
    x = x.view(x.size(0), -1)
    return x.view(-1, x.size(1))
""",
    "a batch that is cut into groups": """
def share(self, hidden):
    b, n, d = hidden.shape
    groups = hidden.view(self.k, b, n, d).permute(0, 1, 3, 2)
    return groups, hidden.view(self.k, b // self.k, n, d)
""",
    "a new dimension": """
def forward(self, x):
    N, C = x.shape
    return x.view(N, C, 1, 1), x.view(N, 1, C)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(script)
