"""The minimal loop on several processes, which the table of costs shows next to the components."""

from typing import Final

from trueloop.lab.teaching.production.program import PROGRAM, Program, assemble
from trueloop.lab.teaching.production.selection import Selection
from trueloop.lab.teaching.production.snippets import MODEL

TITLE: Final = "Distributed, one process"
DEVICE: Final = """
distributed.init_process_group()  # torchrun sets the rank and the number of processes
device = "cpu"
if torch.cuda.is_available():
    device = f"cuda:{os.environ['LOCAL_RANK']}"
"""
LOADERS: Final = """
sampler = DistributedSampler(train_data)
size = BATCH // distributed.get_world_size()
loader = DataLoader(train_data, batch_size=size, sampler=sampler)
"""
EPOCHS: Final = """
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)  # another order in every epoch
"""
PRINT: Final = """
if distributed.get_rank() == 0:
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
"""


def distributed_program(model: str = MODEL, **replacements: str) -> Program:
    """Generate the program; ``torchrun --nproc-per-node 2 train_distributed.py`` runs it on two processes.

    Args:
        model: lines that create the model.
        replacements: snippet name -> source code to use instead, as for `production_program`.
    """
    return assemble(
        "Trains on several processes: torchrun --nproc-per-node 2 train_distributed.py.",
        PROGRAM,
        Selection(),
        {
            "device": DEVICE,
            "loaders": LOADERS,
            "model": f"{model.strip()}\nmodel = DistributedDataParallel(model)  # averages the gradients",
            "epochs": EPOCHS,
            "print": PRINT,
            "restore": "distributed.destroy_process_group()",
            **replacements,
        },
    )
