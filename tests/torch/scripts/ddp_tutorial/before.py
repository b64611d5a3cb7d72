"""Trains on parts of a dataset, with epochs and checkpoints, in a process for each device."""

import argparse
import os

import torch
import torch.multiprocessing as mp
from noise import Noise
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


def join_group(rank, size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ.setdefault("MASTER_PORT", "29511")
    init_process_group("gloo", rank=rank, world_size=size)


class Trainer:
    def __init__(self, model, batches, optimizer, rank, path):
        self.batches, self.optimizer = batches, optimizer
        self.rank, self.path = rank, path
        self.model = DDP(model)

    def take_step(self, inputs, targets):
        self.optimizer.zero_grad()
        loss = mse_loss(self.model(inputs), targets)
        loss.backward()
        self.optimizer.step()
        print(f"rank {self.rank} loss {loss.item()}")

    def run_epoch(self, number):
        self.batches.sampler.set_epoch(number)
        for inputs, targets in self.batches:
            self.take_step(inputs, targets)

    def save(self):
        torch.save(self.model.module.state_dict(), self.path)

    def train(self, epochs):
        for number in range(epochs):
            self.run_epoch(number)
            if self.rank == 0:
                self.save()


def prepared(batch_size):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = Noise(256)
    batches = DataLoader(data, batch_size, sampler=DistributedSampler(data))
    return model, optimizer, batches


def main(rank, size, args):
    join_group(rank, size)
    model, optimizer, batches = prepared(args.batch_size)
    Trainer(model, batches, optimizer, rank, args.save).train(args.epochs)
    destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--save", default="checkpoint.pt")
    size = 2
    mp.spawn(main, args=(size, parser.parse_args()), nprocs=size)
