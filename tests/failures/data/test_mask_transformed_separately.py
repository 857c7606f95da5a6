"""DAT019: an image and its mask with random changes of their own."""

import pytest

HEAD = """
import random
import numpy as np
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
    "a joint transform that draws for each array": """
class Compose:
    def __init__(self, *steps):
        self.steps = steps

    def __call__(self, *arrays):
        for step in self.steps:
            arrays = step(*arrays)
        return arrays

class Mirror:
    def __init__(self, rng):
        self.rng = rng

    def __call__(self, *arrays):
        return [np.flip(a, -1) if self.rng.random() < 0.5 else a for a in arrays]  # <- DAT019

class Cells(Dataset):
    def __init__(self, items, transform):
        self.items, self.transform = items, transform

    def __getitem__(self, i):
        img, mask = self.items[i]
        img, mask = self.transform(img, mask)
        return torch.tensor(img), torch.tensor(mask)

cells = Cells([], Compose(Mirror(np.random.default_rng(0))))
""",
    "a loop that rotates each array of a list": """
def rotate(tensors, rng):
    rotated = []
    for each in tensors:
        turns = int(rng.integers(4))
        rotated.append(torch.rot90(each, turns, (-2, -1)))  # <- DAT019
    return rotated

def load(picture, labels, rng):
    return rotate([picture, labels], rng)
""",
    "a pair in the comprehension": """
def jittered(scan, seg):
    return tuple(torch.roll(each, random.randint(-4, 4), -1) for each in (scan, seg))  # <- DAT019
""",
    "mapped": """
def hflip_if(x):
    if torch.rand(()) < 0.5:
        return x.flip(-1)
    return x

def load(x, y):
    image, mask = map(hflip_if, (x, y))  # <- DAT019
    return image, mask
""",
    "a random crop in a method": """
class RandomCropPair:
    def _crop(self, a):
        y = np.random.randint(0, a.shape[0] - self.size + 1)
        x = np.random.randint(0, a.shape[1] - self.size + 1)
        return a[y:y + self.size, x:x + self.size]

    def __call__(self, image, seg_map):
        return self._crop(image), self._crop(seg_map)  # <- DAT019
""",
    "items of a sample": """
class Augment:
    def maybe(self, t):
        return torch.rot90(t, random.randint(0, 3), [-2, -1])

    def __call__(self, sample):
        sample["image"] = self.maybe(sample["image"])
        sample["mask"] = self.maybe(sample["mask"])  # <- DAT019
        return sample
""",
    "a dictionary": """
class RandomFlip:
    def __call__(self, sample):
        return {k: v.flip(-1) if random.random() < 0.5 else v for k, v in sample.items()}  # <- DAT019

def item(image, depth, flip=RandomFlip()):
    return flip({"image": image, "depth": depth})
""",
    "keys": """
def augment(sample):
    for key in ("image", "mask"):
        if torch.rand(1) < 0.5:  # <- DAT019
            sample[key] = torch.flip(sample[key], [-1])
    return sample
""",
    "crops": """
class Crop:
    def __call__(self, *maps):
        out = []
        for m in maps:
            y, x = np.random.randint(0, 8), np.random.randint(0, 8)
            out.append(m[..., y:y + 24, x:x + 24])  # <- DAT019
        return out

crop = Crop()

def load(rgb, depth):
    return crop(rgb, depth)
""",
    "a helper with a generator": """
def maybe_flip(a, rng):
    return np.flip(a, -1).copy() if rng.random() < 0.5 else a

class Data(Dataset):
    def __getitem__(self, i):
        img, msk = self.items[i]
        return maybe_flip(img, self.rng), maybe_flip(msk, self.rng)  # <- DAT019
""",
    "a helper that is mapped": """
def turned(a):
    return np.rot90(a, np.random.randint(4))

def load(image, mask):
    image, mask = [turned(each) for each in (image, mask)]  # <- DAT019
    return image, mask
""",
    "conditional expressions": """
def augment(img, mask, rng):
    img = img.flip(-1) if rng.random() < 0.5 else img
    mask = mask.flip(-1) if rng.random() < 0.5 else mask  # <- DAT019
    return img, mask
""",
    "amounts": """
def augment(img, mask):
    img = np.rot90(img, random.randrange(4))
    mask = np.rot90(mask, random.randrange(4))  # <- DAT019
    return img, mask
""",
}
CORRECT = {
    "a joint transform that draws once": """
class Mirror:
    def __init__(self, rng):
        self.rng = rng

    def __call__(self, *arrays):
        if self.rng.random() < 0.5:
            arrays = [np.flip(a, -1) for a in arrays]
        k = self.rng.integers(0, 4)
        return [np.rot90(a, k, axes=(-2, -1)) for a in arrays]

mirror = Mirror(np.random.default_rng(0))

def load(img, mask):
    return mirror(img, mask)
""",
    "the images of a batch": """
def augment(images):
    return torch.stack([each.flip(-1) if random.random() < 0.5 else each for each in images])

def step(model, images, masks):
    return model(augment(images)), masks
""",
    "pairs in a loop": """
def augment(images, masks):
    out = []
    for image, mask in zip(images, masks):
        if random.random() < 0.5:
            image, mask = image.flip(-1), mask.flip(-1)
        out.append((image, mask))
    return out
""",
    "views": """
class Views:
    def __call__(self, *views):
        return [v.flip(-1) if random.random() < 0.5 else v for v in views]

views = Views()

def load(image, label):
    return views(image, image.clone()), label
""",
    "noise for each array": """
class Noise:
    def __call__(self, *arrays):
        return [a + 0.1 * np.random.randn(*a.shape) for a in arrays]

noise = Noise()

def load(image, depth):
    return noise(image, depth)
""",
    "a decision for all, and brightness for one": """
def augment(image, mask):
    flip = random.random() < 0.5
    out = [each.flip(-1) if flip else each for each in (image, mask)]
    out[0] = out[0] * random.uniform(0.8, 1.2)
    return out
""",
    "a helper with a seed": """
def turned(a, seed):
    rng = np.random.default_rng(seed)
    return np.rot90(a, rng.integers(4))

def load(image, mask, i):
    return turned(image, i), turned(mask, i)
""",
    "a generator with the same seed": """
def turned(a, rng):
    return np.rot90(a, rng.integers(4))

def load(image, mask, i):
    return turned(image, np.random.default_rng(i)), turned(mask, np.random.default_rng(i))
""",
    "a helper that draws only if it gets no number": """
def turned(a, turns=None):
    turns = random.randrange(4) if turns is None else turns
    return np.rot90(a, turns)

def load(image, mask):
    turns = random.randrange(4)
    return turned(image, turns), turned(mask, turns)
""",
    "the same seed in a loop": """
def augment(image, mask):
    seed = random.randrange(10000)
    out = []
    for each in (image, mask):
        torch.manual_seed(seed)
        out.append(each.flip(-1) if torch.rand(1) < 0.5 else each)
    return out
""",
    "a loop over the transforms": """
def augment(image, mask, moves=(TF.hflip, TF.vflip)):
    for move in moves:
        if random.random() < 0.5:
            image, mask = move(image), move(mask)
    return image, mask
""",
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
