"""MDL017: images with the channels last that are reshaped."""

import pytest

HEAD = """
import numpy as np
import torch
from PIL import Image
"""
FAULTY = {
    "a batch": """
frames = np.stack([np.asarray(Image.open(path)) for path in paths]).astype(np.float32) / 255
x = torch.from_numpy(frames)
x = x.view(-1, 3, 24, 24)  # <- MDL017
""",
    "one image of a dataset": """
class Pictures:
    def __getitem__(self, i):
        image = np.array(Image.open(self.files[i]).convert("RGB"), dtype=np.float32)
        return torch.tensor(image).reshape((3, self.size, self.size)), self.labels[i]  # <- MDL017
""",
}
CORRECT = {
    "permuted": """
x = torch.from_numpy(np.asarray(Image.open(path))).permute(2, 0, 1)
x = x.reshape(1, 3, 24, 24)
""",
    "rows of a file with the channels first": """
x = torch.tensor(table).view(-1, 3, 32, 32)
""",
    "ToImage": """
from torchvision.transforms.v2 import ToDtype, ToImage
x = ToDtype(torch.float32, scale=True)(ToImage()(Image.open(path)))[:3].view(1, 3, 300, 300)
""",
    "to_image": """
from torchvision.transforms.v2 import functional as tf
x = tf.to_image(Image.open(path)).reshape(1, 3, 24, 24)
""",
    "one number per channel": """
x = np.asarray(Image.open(path))
weights = torch.tensor([0.2126, 0.7152, 0.0722]).view(1, 3, 1, 1)
mean = torch.tensor([0.5, 0.4, 0.4]).reshape((3, 1, 1))
""",
    "grey": """
x = torch.from_numpy(np.asarray(Image.open(path).convert("L"))).view(1, 1, 24, 24)
""",
}


MADE = """
import numpy as np
import torch
from torch import nn

SIZE = 20
net = nn.Conv2d(3, 4, 3)
"""
MADE_FAULTY = {
    "drawn by a function": """
def draw(rng):
    image = rng.integers(0, 255, size=(SIZE, SIZE, 3))
    image[4:9, 4:9] = 0
    return image
rng = np.random.default_rng(0)
images = np.stack([draw(rng) for _ in range(90)])
x = torch.from_numpy(images).float() / 255
x = x.reshape(-1, 3, SIZE, SIZE)  # <- MDL017
""",
    "filled zeros": """
images = torch.zeros(90, SIZE, SIZE, 3)
for k in range(90):
    images[k, k % 9] = 1
out = net(images.view(90, 3, SIZE, SIZE))  # <- MDL017
""",
    "in two steps": """
table = np.load("faces.npy").reshape((-1, 48, 32, 3))
faces = torch.tensor(table / 255.0)
faces = faces.view(-1, 3, 48, 32)  # <- MDL017
""",
}
MADE_CORRECT = {
    "created with the channels first": """
images = torch.zeros(90, 3, SIZE, SIZE)
x = images.flatten(1).view(90, 3, SIZE, SIZE)
""",
    "permuted by another function": """
def to_tensor(images):
    return torch.from_numpy(images).permute(0, 3, 1, 2)
x = to_tensor(np.zeros((90, SIZE, SIZE, 3))).reshape(-1, 3, SIZE, SIZE)
""",
    "a canvas for a figure": """
canvas = np.zeros((SIZE, SIZE, 3))
fake = nn.Linear(8, 3 * SIZE * SIZE)(torch.randn(4, 8))
x = net(fake.view(-1, 3, SIZE, SIZE))
""",
    "back to pixels": """
images = torch.zeros(90, SIZE, SIZE, 3)
pixels = images.view(90, SIZE * SIZE, 3).mean(1)
""",
}


@pytest.mark.parametrize("script", MADE_FAULTY.values(), ids=MADE_FAULTY)
def test_lint_reports_created_images(lint_reports, script):
    lint_reports(MADE + script, fixes=False)


@pytest.mark.parametrize("script", MADE_CORRECT.values(), ids=MADE_CORRECT)
def test_lint_accepts_created_images_with_the_channels_first(lint_is_clean, script):
    lint_is_clean(MADE + script, "MDL017")


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_images_with_the_channels_last(lint_reports, script):
    lint_reports(HEAD + script, fixes=False)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_other_images(lint_is_clean, script):
    lint_is_clean(HEAD + script, "MDL017")
