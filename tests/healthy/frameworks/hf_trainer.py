"""The HF Trainer: a tiny BERT from scratch on made-up sentences, accumulation, warm-up, evaluation every epoch."""

import os
import tempfile
import warnings

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", DISABLE_MLFLOW_INTEGRATION="TRUE")
warnings.filterwarnings("ignore")

import torch  # noqa: E402
from torch.utils.data import Dataset  # noqa: E402
from transformers import BertConfig, BertForSequenceClassification, PrinterCallback, Trainer, TrainingArguments  # noqa: E402
from transformers.utils import logging  # noqa: E402

logging.set_verbosity_error()
logging.disable_progress_bar()


class Sentences(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(5, 50, (n, 12), generator=g)
        self.labels = ((self.ids == 7).sum(1) + (self.ids < 20).sum(1) > 4).long()

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": torch.ones(12, dtype=torch.long), "labels": self.labels[i]}


def compute_metrics(pred):
    return {"accuracy": float((pred.predictions.argmax(-1) == pred.label_ids).mean())}


with tempfile.TemporaryDirectory() as folder:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, num_labels=2
    )
    args = TrainingArguments(
        output_dir=folder, num_train_epochs=3, per_device_train_batch_size=16, gradient_accumulation_steps=2,
        per_device_eval_batch_size=32, learning_rate=3e-3, warmup_steps=4, weight_decay=0.01, eval_strategy="epoch",
        save_strategy="epoch", load_best_model_at_end=True, metric_for_best_model="accuracy", report_to=[],
        use_cpu=True, disable_tqdm=True, logging_strategy="no", seed=1,
    )  # fmt: skip
    trainer = Trainer(
        model=BertForSequenceClassification(config), args=args, train_dataset=Sentences(256, 0),
        eval_dataset=Sentences(96, 1), compute_metrics=compute_metrics,
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    result = trainer.train()
    print(result.training_loss, trainer.evaluate()["eval_accuracy"], result.global_step)
