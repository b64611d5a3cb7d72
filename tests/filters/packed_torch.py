"""A worker that trains a model in each mode, with compressed gradients, most of which are zero."""

from __future__ import annotations

import torch

import penstock as ps


def main() -> None:
    """Train, and see that chunks were compressed, and what nobody compresses is the same."""
    with ps.init() as job:
        for where in ("gradients", "servers"):
            ends = []
            for compress in ("none", "lz4"):
                torch.manual_seed(1)
                model = torch.nn.Linear(512, 64)
                sgd = torch.optim.SGD(model.parameters(), lr=0.5)
                before = job.stats()["compressed_chunks_sent"]
                model, optimizer = ps.torch.distribute(model, sgd, where=where, compress=compress)
                inputs = torch.zeros(2, 512)
                inputs[:, job.rank] = 1
                for _ in range(3):
                    optimizer.zero_grad()
                    model(inputs).square().sum().backward()
                    optimizer.step()
                ends.append(model.weight.detach().clone())
                compressed = job.stats()["compressed_chunks_sent"] - before
                assert (compressed > 0) == (compress == "lz4"), f"{where}, {compress}: {compressed}"
            assert torch.equal(*ends), where


if __name__ == "__main__":
    main()
