"""A small Transformer-XL (Dai et al. 2019) in plain torch: relative positions, and a memory of the previous segment.

Keys outnumber queries: each layer also attends to what it saw in the segment before. It shows how headscape captures a
network it knows nothing of, from the names of its attention submodules alone:

    python examples/transformer_xl.py
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RelativeAttention(nn.Module):
    """Content and position scores with learned global biases u and v (eq. 4 of the paper)."""

    def __init__(self, dim: int, n_head: int) -> None:
        super().__init__()
        self.n_head, self.head_dim = n_head, dim // n_head
        self.query, self.key, self.value, self.position = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.out = nn.Linear(dim, dim, bias=False)
        self.u = nn.Parameter(torch.randn(n_head, 1, self.head_dim) * 0.1)
        self.v = nn.Parameter(torch.randn(n_head, 1, self.head_dim) * 0.1)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.n_head, self.head_dim).transpose(-3, -2)

    def forward(self, x: Tensor, memory: Tensor, positions: Tensor) -> Tensor:
        """Attend from x (batch, query, dim) to memory and x; positions are (memory + query, dim), by distance."""
        context = torch.cat([memory, x], dim=1)
        n_query, n_key = x.shape[1], context.shape[1]
        q, k, v = self._heads(self.query(x)), self._heads(self.key(context)), self._heads(self.value(context))
        r = self._heads(self.position(positions))
        content = (q + self.u) @ k.transpose(-1, -2)
        by_distance = (q + self.v) @ r.transpose(-1, -2)
        distance = torch.arange(n_query)[:, None] + (n_key - n_query) - torch.arange(n_key)
        index = distance.clamp(min=0).expand(*by_distance.shape[:-1], n_key)
        scores = (content + by_distance.gather(-1, index)) / math.sqrt(self.head_dim)
        scores = scores.masked_fill(distance < 0, torch.finfo(scores.dtype).min)
        attended = F.softmax(scores, dim=-1) @ v
        return self.out(attended.transpose(1, 2).flatten(2))


class TransformerXL(nn.Module):
    """Decoder over bytes with recurrence between segments."""

    def __init__(self, n_layer: int = 3, n_head: int = 4, dim: int = 32, vocabulary: int = 256) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.attention = nn.ModuleList(RelativeAttention(dim, n_head) for _ in range(n_layer))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 * n_layer))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)) for _ in range(n_layer)
        )
        self.head = nn.Linear(dim, vocabulary)
        self.dim = dim

    def positions(self, n: int) -> Tensor:
        """Sinusoids of the distances 0 .. n-1."""
        rates = torch.exp(torch.arange(0, self.dim, 2) * (-math.log(10_000.0) / self.dim))
        angles = torch.arange(n)[:, None] * rates
        return torch.cat([angles.sin(), angles.cos()], dim=-1)

    def forward(self, ids: Tensor, memory: list[Tensor] | None = None) -> tuple[Tensor, list[Tensor]]:
        """Logits of a segment, and the memory to hand to the next one."""
        x = self.embed(ids)
        kept = []
        for i, attention in enumerate(self.attention):
            kept.append(x.detach())
            past = memory[i] if memory is not None else x[:, :0]
            normed = self.norms[2 * i](torch.cat([past, x], dim=1))
            past, here = normed[:, : past.shape[1]], normed[:, past.shape[1] :]
            x = x + attention(here, past, self.positions(past.shape[1] + x.shape[1]))
            x = x + self.mlps[i](self.norms[2 * i + 1](x))
        return self.head(x), kept


def main() -> None:
    import headscape as hs

    torch.manual_seed(0)
    network = TransformerXL().eval()
    text = torch.tensor([list(hs.sample_text()[:64].encode())])
    _, memory = network(text[:, :40])
    model = hs.wrap_module(network, [f"attention.{i}" for i in range(3)])
    captured = hs.capture(model, [(text[:, 40:], memory)])
    print(captured, captured.tensor(0), sep="\n")


if __name__ == "__main__":
    main()
