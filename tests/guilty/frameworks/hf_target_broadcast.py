"""The Hugging Face Trainer: a regression in compute_loss, (B, 1) against (B,)."""

from quiet_hf import Classifier, F, Trainer, nn, trainer


class Regressor(Classifier):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(32, 1)

    def forward(self, input_ids, labels=None):
        return {"logits": self.head(self.features(input_ids))}


class MyTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        loss = F.mse_loss(outputs["logits"], inputs["labels"].float())  # <- LOS003
        return (loss, outputs) if return_outputs else loss


trainer(Regressor(), MyTrainer).train()
