"""DAT029: masks of class ids that are resized with interpolation, and correct programs that look like it."""

import pytest

HEAD = """
import cv2
import numpy as np
import torch
import torch.nn.functional as F
import torchvision.transforms.functional as TF
from PIL import Image
from scipy import ndimage
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.transforms import InterpolationMode

"""
LOOP = """
loader = DataLoader(Scenes([]), batch_size=8, shuffle=True)
for images, masks in loader:
    loss = F.cross_entropy(model(images), masks.long())
"""

FAULTY = {
    "interpolate in a step": """
def step(model, batch, size):
    labels = batch["label"].unsqueeze(1).float()
    labels = F.interpolate(labels, size=size, mode="bicubic", align_corners=False)  # <- DAT029
    return F.cross_entropy(model(batch["image"]), labels.squeeze(1).to(torch.long))
""",
    "the target of a loss, by another name": """
class Trainer:
    def loss(self, x, y):
        out = self.net(x)
        small = F.interpolate(y[:, None].float(), out.shape[-2:], mode="bilinear")  # <- DAT029
        return self.criterion(out, small[:, 0].long())
""",
    "a helper, by keyword": """
MODE = "bilinear"
def downsample(seg, size):
    return nn.functional.interpolate(input=seg.float(), size=size, mode=MODE)  # <- DAT029
def train(net, loader):
    for x, seg in loader:
        F.nll_loss(net(x), downsample(seg[:, None], (32, 32)).long().squeeze(1)).backward()
""",
    "PIL, the default": """
class Scenes(Dataset):
    def __getitem__(self, i):
        mask = Image.open(self.paths[i]).convert("L")
        mask = mask.resize((64, 64))  # <- DAT029
        return self.images[i], torch.from_numpy(np.array(mask)).long()
""",
    "PIL, bilinear": """
class Resized:
    def __call__(self, sample):
        mask = sample["label"].resize(self.size, Image.BILINEAR)  # <- DAT029
        return {"image": sample["image"], "label": np.array(mask, dtype=np.int64)}
""",
    "torchvision, converted in the loop": """
class Scenes(Dataset):
    def __init__(self, paths):
        self.paths = paths
        self.mask_tf = transforms.Compose([transforms.Resize((64, 64)), transforms.PILToTensor()])

    def __getitem__(self, i):
        image, mask = Image.open(self.paths[i][0]), Image.open(self.paths[i][1])
        return self.image_tf(image), self.mask_tf(mask).squeeze(0)  # <- DAT029

"""
    + LOOP,
    "a functional resize": """
def load(path):
    mask = TF.resize(Image.open(path), [64, 64])  # <- DAT029
    return torch.as_tensor(np.array(mask), dtype=torch.int64)
""",
    "OpenCV": """
def load(path, size):
    mask = cv2.imread(path, 0)
    mask = cv2.resize(mask, size)  # <- DAT029
    return torch.from_numpy(mask).long()
""",
    "SciPy": """
def load(volume, seg):
    seg = ndimage.zoom(seg, (0.5, 0.5, 0.5), order=1)  # <- DAT029
    return volume, torch.LongTensor(seg)
""",
    "a transform of a dataset of torchvision": """
from torchvision.datasets import OxfordIIITPet
to_mask = transforms.Compose([transforms.Resize((128, 128)), transforms.PILToTensor()])  # <- DAT029
pets = OxfordIIITPet("data", target_types="segmentation", transform=None, target_transform=to_mask)
for x, y in DataLoader(pets, batch_size=8):
    loss = F.cross_entropy(model(x), (y.squeeze(1) - 1).long())
    other = F.cross_entropy(model(x), y.long())
""",
}
FAULTY |= {
    "OpenCV, turned": """
class Scenes(Dataset):
    def __getitem__(self, i):
        mask = cv2.imread(self.masks[i], 0)
        mask = cv2.warpAffine(mask, self.matrix, (64, 64))  # <- DAT029
        return self.images[i], torch.from_numpy(mask).long()
""",
    "SciPy, an elastic deformation": """
def deform(label, indices):
    label = ndimage.map_coordinates(label, indices, order=1)  # <- DAT029
    return torch.from_numpy(label).long()
""",
    "scikit-image": """
from skimage.transform import resize
def load(path):
    label = resize(np.load(path)["label"], (64, 64))  # <- DAT029
    return torch.tensor(label, dtype=torch.long)
def load_mask(mask):
    mask = resize(mask, (64, 64), preserve_range=True)  # <- DAT029
    return mask.astype(np.int64)
""",
    "a transform in an attribute": """
class Scenes(Dataset):
    def __init__(self):
        self.resize = transforms.Resize((64, 64))
    def __getitem__(self, i):
        mask = self.resize(Image.open(self.masks[i]))  # <- DAT029
        return self.images[i], torch.from_numpy(np.array(mask)).long()
""",
    "a warp of a label": """
def random_rotate(image, label, matrix, size):
    image = cv2.warpAffine(image, matrix, size)
    label = cv2.warpAffine(label, matrix, size)  # <- DAT029
    return image, label
""",
    "the mode in the place of the output": """
def small(image, mask):
    mask = cv2.resize(mask, (64, 64), cv2.INTER_NEAREST)  # <- DAT029
    return image, torch.from_numpy(mask).long()
""",
}

CORRECT = {
    "OpenCV, turned to the nearest pixel": """
def random_rotate(image, label, matrix, size):
    image = cv2.warpAffine(image, matrix, size)
    label = cv2.warpAffine(label, matrix, size, flags=cv2.INTER_NEAREST)
    return image, torch.from_numpy(label).long()
""",
    "order 0": """
from skimage.transform import resize
def deform(label, indices):
    label = ndimage.map_coordinates(label, indices, order=0)
    return torch.from_numpy(resize(label, (64, 64), order=0)).long()
""",
    "PIL turns by the nearest pixel": """
def turn(image, label):
    label = label.rotate(30)
    return image.rotate(30, Image.BILINEAR), torch.from_numpy(np.array(label)).long()
""",
    "the mode in a variable": """
def small(label):
    mode = cv2.INTER_NEAREST
    label = cv2.resize(label, (64, 64), interpolation=mode)
    return torch.from_numpy(label).long()
""",
    "a warped mask with a threshold": """
def turn(mask, matrix):
    mask = cv2.warpAffine(mask, matrix, (64, 64))
    return torch.from_numpy((mask > 127).astype(np.uint8)).long()
""",
    "a warped heatmap": """
def turn(label_heatmap, matrix):
    return cv2.warpAffine(label_heatmap, matrix, (64, 64))
""",
    "the nearest pixel": """
mask = F.interpolate(mask[:, None].float(), size=(8, 8), mode="nearest").squeeze(1).long()
""",
    "every fourth pixel": """
h = int((mask.size(1) - 1) / 4 + 1)
w = int((mask.size(2) - 1) / 4 + 1)
mask = F.interpolate(mask[:, None].float(), size=(h, w), mode="bilinear", align_corners=True).squeeze(1).long()
""",
    "the default of interpolate": """
mask = F.interpolate(mask[:, None].float(), size=(8, 8)).squeeze(1).long()
""",
    "logits at the size of the mask": """
def step(net, x, mask):
    logits = F.interpolate(net(x), size=mask.shape[-2:], mode="bilinear", align_corners=False)
    return F.cross_entropy(logits, mask.long()), logits.argmax(1).long()
""",
    "a soft mask": """
mask = F.interpolate(mask, size=(8, 8), mode="bilinear")
loss = F.binary_cross_entropy_with_logits(model(x), mask.float())
""",
    "a threshold": """
def shrink(mask):
    mask = F.interpolate(mask.float(), size=(8, 8), mode="bilinear")
    return (mask > 0.5).long()
""",
    "a threshold in place": """
def load(path, size):
    mask = np.array(Image.open(path).convert("L").resize(size))
    mask[mask > 0] = 1
    return torch.from_numpy(mask).long()
""",
    "one-hot": """
mask = F.interpolate(F.one_hot(mask).permute(0, 3, 1, 2).float(), (8, 8), mode="bilinear").argmax(1).long()
""",
    "PIL, nearest": """
mask = Image.open(path).convert("L").resize(size, Image.Resampling.NEAREST)
mask = torch.from_numpy(np.array(mask)).long()
""",
    "a palette": """
mask = Image.open(path)
assert mask.mode == "P"
mask = torch.from_numpy(np.array(mask.resize(size))).long()
""",
    "torchvision, nearest": """
class Scenes(Dataset):
    def __init__(self):
        self.image_tf = transforms.Compose([transforms.Resize((64, 64)), transforms.ToTensor()])
        self.mask_tf = transforms.Compose([
            transforms.Resize((64, 64), interpolation=InterpolationMode.NEAREST), transforms.PILToTensor()])
    def __getitem__(self, i):
        image, mask = Image.open(self.paths[i][0]), Image.open(self.paths[i][1])
        return self.image_tf(image), self.mask_tf(mask).squeeze(0).long()
""",
    "images, and the classes of whole images": """
class Scenes(Dataset):
    def __getitem__(self, i):
        image = Image.open(self.paths[i]).resize((64, 64))
        return TF.to_tensor(image), torch.tensor(self.labels[i]).long()
"""
    + LOOP,
    "OpenCV and SciPy, nearest": """
def load(path, size, seg):
    mask = cv2.resize(cv2.imread(path, 0), size, interpolation=cv2.INTER_NEAREST)
    return torch.from_numpy(mask).long(), torch.LongTensor(ndimage.zoom(seg, 0.5, order=0))
""",
    "a depth map in millimetres": """
depth_target = F.interpolate(depth_target, (8, 8), mode="bilinear").int()
""",
    "a binary mask": """
def load(path, size):
    mask = np.where(cv2.imread(path, 0) == 3, 1, 0).astype(np.uint8)
    mask = cv2.resize(mask, size)
    return torch.tensor(mask).long()
""",
    "marked masks": """
from torchvision import tv_tensors
from torchvision.transforms import v2
resize = v2.Compose([v2.Resize((64, 64))])
def load(mask):
    return resize(tv_tensors.Mask(mask)).long()
""",
}


FAULTY |= {
    "a layer, in a function that resizes labels": """
def resize_labels(label, size):
    small = np.zeros((size, size, 1, label.shape[3]))
    interp = nn.UpsamplingBilinear2d(size=(size, size))
    planes = torch.from_numpy(label.transpose(3, 2, 0, 1))
    small[:] = interp(planes).numpy().transpose(2, 3, 1, 0)  # <- DAT029
    return small
""",
    "a layer with a mode, before a loss": """
class Step:
    def __init__(self):
        self.up = nn.Upsample(scale_factor=2, mode="bilinear")
    def loss(self, out, mask):
        mask = self.up(mask[:, None].float())  # <- DAT029
        return F.cross_entropy(out, mask[:, 0].long())
""",
    "the default of OpenCV, in a function for annotations": """
def scale_annotation(annotation, factor):
    h, w = annotation.shape[:2]
    return cv2.resize(annotation, (int(w * factor), int(h * factor)))  # <- DAT029
""",
    "a helper of a class": """
class Pairs(Dataset):
    def _downsample_gt(self, gt):
        gt = torch.as_tensor(gt)[None, None].float()
        return F.interpolate(gt, scale_factor=0.5, mode="bilinear")[0, 0]  # <- DAT029
""",
}
CORRECT |= {
    "a layer for the nearest pixel": """
def resize_labels(label, size):
    interp = nn.UpsamplingNearest2d(size=(size, size))
    return interp(torch.from_numpy(label)[None, None].float())
def resize_seg(seg, size):
    return nn.Upsample(size=size)(seg)
""",
    "images in a function that resizes labels too": """
def resize_image_and_label(image, label, size):
    image = cv2.resize(image, size)
    return image, cv2.resize(label, size, interpolation=cv2.INTER_NEAREST)
def resize_pair_with_label(image, label, size):
    return cv2.resize(image, size), label
""",
    "logits, soft labels and one-hot labels": """
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Upsample(scale_factor=4, mode="bilinear")
    def forward(self, x):
        return self.up(x).argmax(1).long()
def resize_soft_labels(labels, size):
    return F.interpolate(labels, size=size, mode="bilinear")
def upsample_onehot_label(label, size):
    return F.interpolate(label, size=size, mode="bilinear")
""",
    "a threshold after it": """
def resize_gt(gt, size):
    gt = cv2.resize(gt, size)
    return gt > 0.5
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)
