"""A Hugging Face Trainer that prints nothing, and a small model for it."""

import os
import tempfile
import warnings

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", DISABLE_MLFLOW_INTEGRATION="TRUE")
warnings.filterwarnings("ignore")

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.data import Dataset  # noqa: E402
from transformers import PrinterCallback, Trainer, TrainingArguments, set_seed  # noqa: E402
from transformers.utils import logging  # noqa: E402

logging.set_verbosity_error()
logging.disable_progress_bar()


class Sentences(Dataset):
    def __init__(self, first, last):
        g = torch.Generator().manual_seed(1)
        self.ids = torch.randint(5, 50, (640, 12), generator=g)[first:last]
        self.labels = (self.ids < 20).sum(1).clamp(2, 5) - 2

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.labels[i]}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(50, 16), nn.Linear(16, 32), nn.Linear(32, 4)
        self.dropout = nn.Dropout(0.1)

    def features(self, input_ids):
        return self.dropout(self.hidden(self.embed(input_ids).mean(1)).relu())

    def forward(self, input_ids, labels=None):
        logits = self.head(self.features(input_ids))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


FOLDER = tempfile.TemporaryDirectory()


def trainer(model, kind=Trainer, data=None, held_out=None, **options):
    set_seed(0)
    settings = {"num_train_epochs": 3, "per_device_train_batch_size": 16, "learning_rate": 5e-3, **options}
    args = TrainingArguments(
        output_dir=FOLDER.name, eval_strategy="epoch", save_strategy="no", report_to=[], use_cpu=True,
        disable_tqdm=True, logging_strategy="no", seed=1, **settings,
    )  # fmt: skip
    made = kind(
        model=model, args=args, train_dataset=data or Sentences(0, 512), eval_dataset=held_out or Sentences(512, 640)
    )
    made.remove_callback(PrinterCallback)
    return made
