"""A minimal hand-written GPT-2 in plain torch: the reference our trainer must equal, and its rival in speed."""

import math

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (
            part.view(b, t, self.heads, d // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(d, dim=2)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class PlainGPT2(nn.Module):
    def __init__(self, depth: int, width: int, heads: int, vocabulary: int, context: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        return self.norm(h) @ self.tokens.weight.t()

    def copy_from(self, model: nn.Module) -> None:
        """Take the weights of a HuggingFace GPT-2 whose Conv1D layers were turned into Linear."""
        with torch.no_grad():
            state = model.state_dict()
            names = {"norm1": "ln_1", "norm2": "ln_2", "qkv": "attn.c_attn", "out": "attn.c_proj"}
            names |= {"up": "mlp.c_fc", "down": "mlp.c_proj"}
            for name, parameter in self.named_parameters():
                parts = name.split(".")
                if parts[0] == "blocks":
                    theirs = f"transformer.h.{parts[1]}.{names[parts[2]]}.{parts[3]}"
                else:
                    outer = {"tokens": "wte", "positions": "wpe", "norm": "ln_f"}
                    theirs = f"transformer.{outer[parts[0]]}.{parts[1]}"
                parameter.copy_(state[theirs])


class PlainTrainer:
    """AdamW, clipping to one, linear warm-up and cosine to zero: what a careful person writes in thirty lines."""

    def __init__(
        self, model: nn.Module, lr: float, steps: int, warmup: int, weight_decay: float = 0.01
    ) -> None:
        self.model, self.lr, self.steps, self.warmup, self.step_number = model, lr, steps, warmup, 0
        matrices = [p for p in model.parameters() if p.ndim >= 2]
        vectors = [p for p in model.parameters() if p.ndim < 2]
        groups = [
            {"params": matrices, "weight_decay": weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8, fused=True)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> float:
        if self.step_number < self.warmup:
            factor = (self.step_number + 1) / self.warmup
        else:
            share = min(1.0, (self.step_number - self.warmup + 1) / (self.steps - self.warmup))
            factor = 0.5 * (1 + math.cos(math.pi * share))
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * factor
        logits = self.model(x)
        loss = functional.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step_number += 1
        return float(loss.detach())
