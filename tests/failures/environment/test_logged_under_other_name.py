"""ENV013: a figure that is logged under the name of another one."""

import pytest

SCRIPT = """
import numpy as np

def fit(model, optimizer, writer, history, train_losses, val_losses, test_accs):
    for epoch in range(5):
        train_loss, train_acc = train_epoch(model, optimizer)
        val_loss, val_acc = validate(model)
        d_loss, g_loss = adversarial(model)
        test_acc = judge(model)
        loss.backward()
        {line}
"""
FAULTY = (
    'writer.add_scalar("Loss/val", train_loss, epoch)',
    'writer.add_scalar("train/accuracy", train_loss, epoch)',
    'wandb.log({"val_loss": train_loss, "epoch": epoch})',
    'self.log("val_acc", train_acc.item())',
    'history["val_loss"].append(train_loss / 10)',
    "val_losses.append(np.mean(train_losses))",
    'history["trainAcc"].append(float(val_acc))',
    "test_accs.append(val_acc)",
    'writer.add_scalar("D_loss", g_loss.item(), epoch)',
    'history["validation_loss"] = train_loss',
    'results = {"test_acc": val_acc}',
)
CORRECT = (
    'writer.add_scalar("Loss/val", val_loss, epoch)',
    'writer.add_scalars("loss", {"train": train_loss, "val": val_loss}, epoch)',
    'wandb.log({"loss": train_loss, "test_loss": val_loss})',
    'self.log("val_train_gap", train_loss)',
    "val_losses.append(1 - train_acc)",
    'history["loss_of_accurate_runs"].append(train_loss)',
    'writer.add_scalar("loss/g_and_d", g_loss, epoch)',
    'print("train", val_loss)',
    'config = {"train_path": val_path, "test_loader": val_loader}',
    'history["epoch"].append(train_loss)',
    "test_loss = []; test_loss.append(val_loss)",
    'batch["train_mask"] = val_mask',
)


@pytest.mark.parametrize("line", FAULTY)
def test_lint_reports_it(lint_reports, line):
    lint_reports(SCRIPT.replace("{line}", f"{line}  # <- ENV013"))


@pytest.mark.parametrize("line", CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, line):
    lint_is_clean(SCRIPT.replace("{line}", line), "ENV013")
