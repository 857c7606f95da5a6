"""MDL027: layers that are never used, while their neighbours are called twice."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
"""
NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(8, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(8)
    def forward(self, x):
"""
FAULTY = {
    "BatchNorm": NET
    + """
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn1(self.conv2(x)))  # <- MDL027
""",
    "a convolution": NET
    + """
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv1(y))  # <- MDL027
        return F.relu(x + y)
""",
    "in one line": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer_1 = nn.Linear(8, 8)
        self.layer_2 = nn.Linear(8, 8)
    def forward(self, x):
        return self.layer_1(torch.relu(self.layer_1(x)))  # <- MDL027
""",
    "created in one line": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 8), nn.Linear(8, 8)
    def forward(self, x):
        x = torch.relu(self.fc1(x))
        return self.fc1(x)  # <- MDL027
""",
    "attention": """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(8)
        self.norm2 = nn.LayerNorm(8)
        self.fc = nn.Linear(8, 8)
        self.mix = nn.Linear(8, 8)
    def forward(self, x):
        x = x + self.mix(self.norm1(x))
        return x + self.fc(self.norm1(x))  # <- MDL027
""",
}
CORRECT = {
    "each once": NET
    + """
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x)))
""",
    "shared on purpose": """
class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 8)
        self.fc2 = nn.Linear(16, 1)
    def forward(self, a, b):
        return self.fc2(torch.cat([self.fc1(a), self.fc1(b)], 1))
""",
    "left over from another version": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 8)
        self.fc2 = nn.Linear(8, 8)
        self.fc3 = nn.Linear(8, 8)
    def forward(self, x):
        return self.fc1(self.fc2(x))
""",
    "read by another class": NET
    + """
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn1(self.conv2(x)))
class Other(Net):
    def forward(self, x):
        return self.bn2(self.conv2(x))
""",
    "found by name": NET
    + """
        for i in (1, 2):
            x = getattr(self, f"conv{i}")(x)
        return self.bn1(self.bn1(x))
""",
    "activations": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.relu1 = nn.ReLU()
        self.relu2 = nn.ReLU()
        self.fc = nn.Linear(8, 8)
    def forward(self, x):
        return self.relu1(self.fc(self.relu1(x)))
""",
    "one in a loop": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 8)
        self.fc2 = nn.Linear(8, 8)
    def forward(self, x):
        for _ in range(3):
            x = self.fc1(x)
        return self.fc1(x)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_second_call(lint_reports, script):
    lint_reports(HEAD + script.replace("(self, x):\n\n", "(self, x):\n"))


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script.replace("(self, x):\n\n", "(self, x):\n"), "MDL027")
