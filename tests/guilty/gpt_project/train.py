"""Trains the model of model.py on arithmetic sentences; gradient accumulation, one-cycle schedule."""

from config import TrainConfig
from engine import Engine
from model import build_model

if __name__ == "__main__":
    config = TrainConfig(epochs=3, accumulate=5)
    engine = Engine(build_model(config), config)
    for epoch in range(config.epochs):
        print(epoch, engine.train_epoch(epoch))
    print("lr", engine.optimizer.param_groups[0]["lr"])
