"""Learns to tell images apart, with a test after each epoch whose figures are averaged over the workers."""

import argparse

import torch
from digits import Digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import penstock as ps


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 8, 5)
        self.second = nn.Conv2d(8, 16, 5)
        self.dropout = nn.Dropout2d()
        self.hidden = nn.Linear(256, 32)
        self.answer = nn.Linear(32, 10)

    def forward(self, x):
        x = functional.max_pool2d(self.first(x), 2).relu()
        x = functional.max_pool2d(self.dropout(self.second(x)), 2).relu()
        x = self.hidden(x.flatten(1)).relu()
        x = functional.dropout(x, training=self.training)
        return self.answer(x).log_softmax(1)


def main(args):
    def train(epoch):
        model.train()
        train_sampler.set_epoch(epoch)
        for images, labels in train_loader:
            optimizer.zero_grad()
            loss = functional.nll_loss(model(images), labels)
            loss.backward()
            optimizer.step()
            print(f"rank {job.rank} loss {loss.item()}")

    def average(value, name):
        return job.mean(torch.tensor(value)).item()

    def test():
        model.eval()
        loss = right = 0.0
        with torch.no_grad():
            for images, labels in test_loader:
                output = model(images)
                loss += functional.nll_loss(output, labels, reduction="sum").item()
                right += (output.argmax(1) == labels).sum().item()
        loss = average(loss / len(test_sampler), "loss")
        right = average(right / len(test_sampler), "accuracy")
        if job.rank == 0:
            print(f"test loss {loss} accuracy {right}")

    job = ps.init()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)

    train_data, test_data = Digits(512, seed=4), Digits(128, seed=5)
    train_sampler = ps.torch.sampler(train_data)
    train_loader = DataLoader(train_data, args.batch_size, sampler=train_sampler)
    test_sampler = ps.torch.sampler(test_data)
    test_loader = DataLoader(test_data, 64, sampler=test_sampler)

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * job.size, momentum=0.5)
    model, optimizer = ps.torch.distribute(model, optimizer)
    for epoch in range(args.epochs):
        train(epoch)
        test()
    if job.rank == 0:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--save", default="model.pt")
    main(parser.parse_args())
