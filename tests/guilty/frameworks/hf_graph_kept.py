"""The Hugging Face Trainer: compute_loss keeps every loss for a plot, with its graph."""

from quiet_hf import Classifier, Trainer, trainer


class MyTrainer(Trainer):
    history = []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)  # <- MEM001
        self.history.append(outputs["loss"])
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]


trainer(Classifier(), MyTrainer).train()
