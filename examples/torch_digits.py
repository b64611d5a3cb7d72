"""
A plain PyTorch training script, made distributed by one line.

    penstock run --workers 2 examples/torch_digits.py

prints, from worker 0, an accuracy above 0.9 on handwritten digits that it has not seen.
"""

import torch
from sklearn.datasets import load_digits

import penstock as ps


def main() -> None:
    torch.manual_seed(0)
    job = ps.init()
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    mine = slice(job.rank, 1500, job.size)  # this worker's share of the first 1500

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = ps.torch.distribute(model, optimizer, job=job)

    for _ in range(20):
        for x, y in zip(images[mine].split(50), labels[mine].split(50), strict=True):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    if job.rank == 0:
        accuracy = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean()
        print(f"accuracy {accuracy:.3f}")
    job.close()


if __name__ == "__main__":
    main()
