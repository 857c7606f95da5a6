"""MDL022: new heads under a name that the model does not use."""

import pytest

HEAD = """
import torch
import torchvision
from torch import nn
from torchvision import models

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.classifier = nn.Linear(8, 16), nn.Linear(16, 6)
    def forward(self, x):
        return self.classifier(torch.relu(self.features(x)))

def train(model, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""

FAULTY = {
    "a class of the program, through another variable": """
base = Net()
model = base
num_ftrs = model.classifier.in_features
model.fc = nn.Linear(num_ftrs, 3)  # <- MDL022
train(model, torch.optim.Adam(model.fc.parameters()))
""",
    "a VGG with the head of a ResNet": """
def build(classes):
    net = models.vgg16(weights="DEFAULT")
    net.fc = nn.Linear(4096, classes)  # <- MDL022
    return net
""",
    "a ResNet with the head of a DenseNet": """
model = torchvision.models.resnet50()
for p in model.parameters():
    p.requires_grad = False
model.classifier = nn.Sequential(nn.Linear(2048, 64), nn.ReLU(), nn.Linear(64, 3))  # <- MDL022
train(model, torch.optim.Adam(model.classifier.parameters()))
""",
}
CORRECT = {
    "the head of each model": """
first, second, third = Net(), 1, 2
net = Net()
net.classifier = nn.Linear(16, 3)
resnet = models.resnet18()
resnet.fc = nn.Linear(512, 3)
vgg = models.vgg11()
vgg.classifier[6] = nn.Linear(4096, 3)
""",
    "the program calls the new layer": """
net = Net()
net.fc = nn.Linear(16, 3)
out = net.fc(net.features(x))
""",
    "a class that looks at its children": """
class Stack(nn.Module):
    def forward(self, x):
        for layer in self.children():
            x = layer(x)
        return x
stack = Stack()
stack.first = nn.Linear(3, 3)
""",
    "a model from elsewhere": """
net = make_model()
net.fc = nn.Linear(16, 3)
""",
    "an attribute that forward uses": """
class Late(nn.Module):
    def forward(self, x):
        return self.fc(x)
late = Late()
late.fc = nn.Linear(16, 3)
""",
    "a forward of its own": """
net = Net()
net.fc = nn.Linear(16, 3)
net.forward = lambda x: net.fc(net.features(x))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_programs(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script)
