"""Networks with Modern Hopfield Attention, their layers written out: H is carried by hand, row by row."""

import math

import torch
from torch import nn
from torch.nn import functional as F


def attention(q, k, v, before, a, allowed, depth, init):
    """One layer of q (batch, head, query, dim) on k, v of as many heads, row by row; returns outputs and H."""
    n_batch, n_head, n, dim = q.shape
    hidden, out = torch.zeros(n_batch, n_head, n, n, dtype=q.dtype), torch.zeros_like(q)
    for b in range(n_batch):
        for h in range(n_head):
            for i in range(n):
                scores = torch.stack([q[b, h, i] @ k[b, h, j] for j in range(n)]) / math.sqrt(dim)
                if before is None:
                    row = scores if init == "first" else (1 - a) * scores
                else:
                    row = a * before[b, h, i] + (1 - a) * scores
                hidden[b, h, i] = row
                entering = row / (1 - a**depth) if init == "debias" else row
                seen = [j for j in range(n) if allowed[b, i, j]]
                for j, p in zip(seen, torch.softmax(entering[seen], 0), strict=True):
                    out[b, h, i] += p * v[b, h, j]
    return out, hidden


def heads(x, n):
    return x.unflatten(-1, (n, -1)).transpose(1, 2)


def reference(name, network, batch, alpha, alpha_hidden, init, skip):
    """The logits of a converted network, its layers written out."""

    def add(x, out):
        return alpha * x + (1 - alpha) * out if skip == "scaled" else x + out

    hidden = None
    ids = batch.get("input_ids")
    if name != "vit":
        n = ids.shape[1]
        allowed = batch.get("attention_mask", torch.ones_like(ids)).bool()[:, None, :].expand(-1, n, -1)
        if name != "bert":
            allowed = allowed & torch.ones(n, n).tril().bool()

    def attend(q, k, v, depth):
        nonlocal hidden
        out, hidden = attention(q, k, v, hidden, alpha_hidden, allowed, depth, init)
        return out.transpose(1, 2).flatten(2)

    if name == "gpt2":
        t = network.transformer
        x = t.wte(ids) + t.wpe(batch.get("position_ids", torch.arange(n)[None]))
        for depth, block in enumerate(t.h, start=1):
            q, k, v = (heads(part, 4) for part in block.attn.c_attn(block.ln_1(x)).chunk(3, -1))
            x = add(x, block.attn.c_proj(attend(q, k, v, depth)))
            x = x + block.mlp(block.ln_2(x))
        return network.lm_head(t.ln_f(x))
    if name == "llama":
        x = network.model.embed_tokens(ids)
        angle = torch.arange(n)[:, None] * 10000.0 ** (-torch.arange(0, 8, 2) / 8)
        cos, sin = (torch.cat([f(angle)] * 2, -1).to(x.dtype) for f in (torch.cos, torch.sin))

        def turned(y):
            return y * cos + torch.cat([-y[..., 4:], y[..., :4]], -1) * sin

        for depth, block in enumerate(network.model.layers, start=1):
            s, y = block.self_attn, block.input_layernorm(x)
            q, k, v = heads(s.q_proj(y), 4), heads(s.k_proj(y), 2), heads(s.v_proj(y), 2)
            k, v = (torch.stack([z[:, h // 2] for h in range(4)], 1) for z in (turned(k), v))
            x = add(x, s.o_proj(attend(turned(q), k, v, depth)))
            x = x + block.mlp(block.post_attention_layernorm(x))
        return network.lm_head(network.model.norm(x))
    if name == "bert":
        x = network.bert.embeddings(ids)
        for depth, block in enumerate(network.bert.encoder.layer, start=1):
            s = block.attention.self
            q, k, v = (heads(p(x), 4) for p in (s.query, s.key, s.value))
            x = block.attention.output.LayerNorm(add(x, block.attention.output.dense(attend(q, k, v, depth))))
            x = block.output.LayerNorm(x + block.output.dense(block.intermediate(x)))
        return network.cls(x)
    parts = dict(network.named_modules())
    x = network.vit.embeddings(batch["pixel_values"])
    n = x.shape[1]
    allowed = torch.ones(len(x), n, n).bool()
    names = [p.removesuffix(".layernorm_before") for p in parts if p.endswith(".layernorm_before")]
    for depth, layer in enumerate(names, start=1):
        inside = {p.removeprefix(layer + "."): m for p, m in parts.items() if p.startswith(layer + ".")}

        def linear(*endings, inside=inside):
            return next(m for p, m in inside.items() if p.endswith(endings) and isinstance(m, nn.Linear))

        y = inside["layernorm_before"](x)
        q, k, v = (
            heads(linear(*endings)(y), 4) for endings in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"))
        )
        x = add(x, linear("attention.output.dense", "o_proj", "out_proj")(attend(q, k, v, depth)))
        x = x + _vit_mlp(inside, inside["layernorm_after"](x))
    return network.classifier(network.vit.layernorm(x)[:, 0])


def _vit_mlp(inside, y):
    """The two linear maps of the layer that are no part of attention."""
    linears = [m for p, m in inside.items() if isinstance(m, nn.Linear) and "attention" not in p]
    assert len(linears) == 2
    return linears[1](F.gelu(linears[0](y)))
