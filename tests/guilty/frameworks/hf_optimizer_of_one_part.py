"""The Hugging Face Trainer: create_optimizer passes only one part of the model to the optimizer."""

from quiet_hf import Classifier, Trainer, torch, trainer


class MyTrainer(Trainer):
    def create_optimizer(self, *_):
        parts = [*self.model.embed.parameters(), *self.model.hidden.parameters()]
        self.optimizer = torch.optim.AdamW(parts, lr=self.args.learning_rate)  # <- OPT001
        return self.optimizer


trainer(Classifier(), MyTrainer).train()
