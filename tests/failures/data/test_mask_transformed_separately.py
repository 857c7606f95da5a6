"""DAT019: an image and its mask with random changes of their own."""

import pytest

HEAD = """
import random
import torch
import torchvision.transforms.functional as TF
from torchvision import transforms
from torch.utils.data import Dataset

"""

FAULTY = {
    "a flip without the box": """
class Boxes(Dataset):
    def __getitem__(self, i):
        image, box = self.images[i], self.boxes[i].clone()
        if torch.rand(1) < 0.5:
            image = image.flip(-1)  # <- DAT019
        return image, box
""",
    "a flip of an array without the keypoints": """
def augment(img, kpts):
    if random.random() < 0.5:
        img = img[:, :, ::-1].copy()  # <- DAT019
    return {"image": img, "keypoints": kpts}
""",
    "a composition in the class": """
class Data(Dataset):
    def __init__(self, images, masks):
        self.images, self.masks = images, masks
        self.tf = transforms.Compose([transforms.RandomRotation(30), transforms.ToTensor()])

    def __getitem__(self, i):
        return self.tf(self.images[i]), self.tf(self.masks[i])  # <- DAT019
""",
    "passed to the dataset": """
train_tf = transforms.Compose([transforms.Resize(64), transforms.RandomCrop(32), transforms.ToTensor()])

class Data(Dataset):
    def __init__(self, images, transform=None):
        self.images, self.transform = images, transform

    def __getitem__(self, i):
        img, seg_map = self.images[i]
        if self.transform is not None:
            img = self.transform(img)
            seg_map = self.transform(seg_map)  # <- DAT019
        return img, seg_map

data = Data([], transform=train_tf)
""",
    "two conditions": """
def augment(image, mask):
    if random.random() > 0.5:
        image = TF.hflip(image)
    if random.random() > 0.5:  # <- DAT019
        mask = TF.hflip(mask)
    return image, mask
""",
    "a transform of the program": """
class Flip:
    def __call__(self, t):
        return t.flip(-1) if torch.rand(1).item() < 0.5 else t

class Data(Dataset):
    def __init__(self, images, masks, augment=None):
        self.images, self.masks, self.augment = images, masks, augment

    def __getitem__(self, i):
        image, mask = self.images[i], self.masks[i]
        if self.augment is not None:
            image = self.augment(image)
            mask = self.augment(mask)  # <- DAT019
        return image, mask

train_set = Data([], [], augment=Flip())
""",
    "a function of the program": """
def random_rotation(t):
    return torch.rot90(t, random.randrange(4), (-2, -1))

def load(image, mask):
    return random_rotation(image), random_rotation(mask)  # <- DAT019
""",
}
CORRECT = {
    "the box is mirrored, too": """
class Boxes(Dataset):
    def __getitem__(self, i):
        image, box = self.images[i], self.boxes[i].clone()
        if torch.rand(1) < 0.5:
            image = image.flip(-1)
            box[0] = 1 - box[0]
        return image, box
""",
    "the box is mirrored later": """
def augment(image, keypoints):
    flipped = random.random() < 0.5
    if random.random() < 0.5:
        image = image[:, :, ::-1].copy()
        keypoints = mirror(keypoints)
    return image, keypoints
""",
    "a class is the target": """
def augment(image, label):
    if random.random() < 0.5:
        image = torch.flip(image, [2])
    return image, label
""",
    "colours": """
def augment(image, boxes):
    if random.random() < 0.5:
        image = image.clamp(0, 1)
    return image, boxes
""",
    "a transform of the program that draws once for both": """
class Flip:
    def draw(self):
        self.on = torch.rand(1).item() < 0.5

    def __call__(self, t):
        return t.flip(-1) if self.on else t

def load(image, mask, flip=Flip()):
    flip.draw()
    return flip(image), flip(mask)
""",
    "a function of the program that adds noise": """
def jitter(t):
    return t + 0.1 * torch.randn(t.shape) + random.random()

def load(image, mask):
    return jitter(image), jitter(mask)
""",
    "a function of the program for both": """
def random_flip(image, mask):
    return (image.flip(-1), mask.flip(-1)) if random.random() < 0.5 else (image, mask)

def load(image, mask):
    return random_flip(image, mask)
""",
    "one condition": """
def augment(image, mask):
    if random.random() > 0.5:
        image = TF.hflip(image)
        mask = TF.hflip(mask)
    return image, mask
""",
    "the same seed": """
tf = transforms.RandomHorizontalFlip()

def augment(image, mask):
    seed = random.randrange(1000)
    torch.manual_seed(seed)
    image = tf(image)
    torch.manual_seed(seed)
    return image, tf(mask)
""",
    "no random change of position": """
tf = transforms.Compose([transforms.Resize(64), transforms.ToTensor()])
color = transforms.Compose([transforms.ColorJitter(), transforms.RandomHorizontalFlip(0)])

def load(image, mask):
    return tf(image), tf(mask)
""",
    "two views": """
tf = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])

def views(image):
    return tf(image), tf(image)
""",
    "together": """
from torchvision.transforms import v2

tf = v2.Compose([v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32)])

def load(image, mask):
    return tf(image, mask)
""",
    "an attention mask": """
def drop(x, attention_mask):
    if torch.rand(1) < 0.1:
        x = torch.zeros_like(x)
    return x, attention_mask
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)
