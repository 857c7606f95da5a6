"""The HF Trainer: a tiny GPT-2 in bf16, padded and masked, accumulation, early stopping, and resumed from a checkpoint."""

import os
import tempfile
import warnings

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", DISABLE_MLFLOW_INTEGRATION="TRUE")
warnings.filterwarnings("ignore")

import torch  # noqa: E402
from torch.utils.data import Dataset  # noqa: E402
from transformers import (  # noqa: E402
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.utils import logging  # noqa: E402

logging.set_verbosity_error()
logging.disable_progress_bar()


class Counting(Dataset):
    """Sequences that count upwards from somewhere, of different lengths."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.starts = torch.randint(1, 20, (n,), generator=g)
        self.lengths = torch.randint(6, 13, (n,), generator=g)

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, i):
        ids = self.starts[i] + torch.arange(12)
        mask = (torch.arange(12) < self.lengths[i]).long()
        return {"input_ids": ids * mask, "attention_mask": mask, "labels": ids.where(mask.bool(), torch.tensor(-100))}


def trainer(folder, epochs):
    set_seed(0)
    config = GPT2Config(
        vocab_size=40, n_positions=12, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0, pad_token_id=0
    )
    args = TrainingArguments(
        output_dir=folder, num_train_epochs=epochs, per_device_train_batch_size=16, gradient_accumulation_steps=3,
        per_device_eval_batch_size=32, learning_rate=2e-3, lr_scheduler_type="cosine", warmup_steps=3, bf16=True,
        eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True, metric_for_best_model="eval_loss",
        greater_is_better=False, report_to=[], use_cpu=True, disable_tqdm=True, logging_strategy="no", seed=1,
    )  # fmt: skip
    made = Trainer(
        model=GPT2LMHeadModel(config), args=args, train_dataset=Counting(240, 0), eval_dataset=Counting(60, 1),
        callbacks=[EarlyStoppingCallback(3)],
    )  # fmt: skip
    made.remove_callback(PrinterCallback)
    return made


with tempfile.TemporaryDirectory() as folder:
    trainer(folder, 2).train()
    second = trainer(folder, 4)
    result = second.train(resume_from_checkpoint=True)
    print(result.global_step, second.evaluate()["eval_loss"])
