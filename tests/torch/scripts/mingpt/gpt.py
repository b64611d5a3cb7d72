"""A small GPT: learned places, blocks of attention and a network, weight decay on matrices only."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm, self.norm_after = nn.LayerNorm(width), nn.LayerNorm(width)
        # Without a bias: that of the keys has no gradient but rounding, and AdamW would step by its sign.
        self.asked = nn.Linear(width, 3 * width, bias=False)
        self.told = nn.Linear(width, width)
        self.thought = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.asked(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        seen = functional.scaled_dot_product_attention(*parts, dropout_p=dropout, is_causal=True)
        x = x + self.told(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.thought(self.norm_after(x))


class GPT(nn.Module):
    def __init__(self, letters, length, width=24, layers=2, heads=3, dropout=0.1):
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, letters, bias=False)

    def configure_optimizers(self, config):
        """AdamW, which lets matrices decay and nothing else."""
        matrices = [module.weight for module in self.modules() if isinstance(module, nn.Linear)]
        known = {id(matrix) for matrix in matrices}
        others = [parameter for parameter in self.parameters() if id(parameter) not in known]
        groups = [
            {"params": matrices, "weight_decay": config.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95))

    def forward(self, x, targets):
        places = torch.arange(x.shape[1], device=x.device)
        answer = self.head(self.norm(self.blocks(self.letters(x) + self.places(places))))
        return answer, functional.cross_entropy(answer.flatten(0, 1), targets.flatten(), ignore_index=-1)
