"""A training loop that knows nothing of what it trains: batches are drawn at random, without end."""

import itertools

import adding
import torch
from gpt import GPT
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, RandomSampler


class Trainer:
    def __init__(self, config, model, data):
        self.config, self.model, self.data = config, model, data
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model.to(self.device)
        self.on_batch_end = lambda trainer: None

    def run(self):
        model, config = self.model, self.config
        optimizer = model.configure_optimizers(config)
        sampler = RandomSampler(self.data, replacement=True, num_samples=10**9)
        batches = iter(DataLoader(self.data, config.batch_size, sampler=sampler))
        model.train()
        for self.number in itertools.count():
            x, y = (part.to(self.device) for part in next(batches))
            _, self.loss = model(x, y)
            model.zero_grad(set_to_none=True)
            self.loss.backward()
            clip_grad_norm_(model.parameters(), config.grad_norm_clip)
            optimizer.step()
            self.on_batch_end(self)
            if self.number + 1 >= config.max_iters:
                break


if __name__ == "__main__":
    config = adding.config()
    torch.manual_seed(7)
    trainer = Trainer(config, GPT(letters=10, length=6, dropout=config.dropout), adding.Sums())
    trainer.on_batch_end = lambda trainer: print(f"loss {trainer.loss.item()}")
    trainer.run()
    torch.save(trainer.model.state_dict(), config.save)
