"""Inputs and captures for studies that run a model of the zoo again."""

import json

import numpy as np
import torch

from headscape.attention.samples import Sample
from headscape.captures import Batch, Capture
from headscape.runs import Run
from headscape.storage import ArrayWriter


def samples_for(model, n=3, tokens=20, seed=0):
    draw = torch.Generator().manual_seed(seed)
    if model.images is not None:
        return [Sample({"pixel_values": torch.randn(1, 1, 28, 28, generator=draw)}, {}, {}, [i]) for i in range(n)]
    ids = [torch.randint(3, 100, (1, tokens), generator=draw) for _ in range(n)]
    return [Sample({"input_ids": row}, {}, {"input_ids": row[0].numpy()}, [i]) for i, row in enumerate(ids)]


def captured_by(model, n=5, tokens=48, folder=None, block=None, same=False):
    """A capture of a model of the zoo, which has no tokenizer: in memory, or as a run."""
    site = next(site for site in model.sites if block in (None, site.block))
    words = [str(i) for i in range(tokens)]
    info = {
        "keep": ["probs" if folder is None else "queries"],  # a run must hold the maps that it says it kept
        "blocks": {site.block: {"mask": site.mask, "query_tokens": words, "key_tokens": words}},
        "layers": {site.block: {str(s.layer): list(range(s.n_heads)) for s in model.sites if s.block == site.block}},
        "origin": [0],
    }
    batches = [{"input_ids": s.stored["input_ids"]} for s in samples_for(model, n, tokens, seed=3)]
    if same:
        batches = [{"input_ids": np.full_like(b["input_ids"], 7)} for b in batches]
    if folder is None:
        return Capture.in_memory([Batch(info, list(b), b.__getitem__) for b in batches])
    run = Run.create(folder, config={"kind": "capture"})
    for i, arrays in enumerate(batches):
        with ArrayWriter(run.batch_path(i), 1, {"headscape": json.dumps(info)}) as writer:
            writer.add("input_ids", arrays["input_ids"])
    return Capture.of_run(run)
