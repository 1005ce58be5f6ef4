"""
Bring attentions from elsewhere
===============================

You already have attention, from transformers, TransformerLens or your own code. Use it here.

No model needs to be loaded again: ``hs.from_attentions`` takes arrays from any framework, checks them, and gives you what
``hs.capture`` would.
"""

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import headscape as hs

# %%
# From transformers
# -----------------
# Ask the model for ``output_attentions=True`` and pass on what it returns. A small random GPT-2 stands in for yours.

_ = torch.manual_seed(0)
small = {"n_layer": 2, "n_head": 4, "n_embd": 64, "vocab_size": 100}
config = GPT2Config(**small, bos_token_id=0, eos_token_id=0, attn_implementation="eager")
ids = torch.randint(100, (1, 24))
outputs = GPT2LMHeadModel(config).eval()(ids, output_attentions=True)
names = [str(token) for token in ids[0].tolist()]
captured = hs.from_attentions(outputs.attentions, tokens=names)
captured.tensor(0)

# %%
# From a cache of hooks
# ---------------------
# A mapping with the names TransformerLens uses works the same way, and so does a list with one array per layer.

cache = {f"blocks.{i}.attn.hook_pattern": maps for i, maps in enumerate(outputs.attentions)}
hs.from_attentions(cache).tensor(0)

# %%
# From your own code
# ------------------
# Pass arrays of shape (head, query, key), one per layer. Here are some with a known answer: all heads are random, but head 1 of
# layer 0 puts 90 % of its attention on the previous token.

rng = np.random.default_rng(0)
maps = rng.dirichlet(np.ones(32), size=(2, 4, 32))  # layer, head, query, key
maps[0, 1] = 0.1 / 31
maps[0, 1, np.arange(1, 32), np.arange(31)] = 0.9
maps[0, 1] /= maps[0, 1].sum(axis=1, keepdims=True)
mine = hs.from_attentions(list(maps))
hs.find_heads(mine, "previous token", top=3).round(3)

# %%
hs.show(mine, 0, 1)

# %%
# A role of your own
# ------------------
# Any function of maps (query, key, head) and tokens can be a role. ``chance`` is then its mean score on 19 copies with shuffled rows,
# and a head ``has_role`` if it beats all of them, which one head in twenty does by accident. These heads are random, and none does.


def looks_far(maps, tokens):
    """Mean distance between query and key."""
    n_query, n_key, _ = maps.shape
    distance = abs(np.arange(n_query)[:, None] - np.arange(n_key))
    return (maps * distance[:, :, None]).sum(axis=1).mean(axis=0)


hs.find_heads(mine, looks_far, top=3).round(2)

# %%
# How sure is this?
# -----------------
# Imported maps are checked: rows must sum to one, and nothing may be NaN or infinite. headscape cannot check whether these are the
# maps your model really used; :func:`headscape.capture` can, by comparing logits.
#
# What next?
# ----------
# Everything that needs only attention works on ``mine``: ``hs.organize``, ``hs.report``, ``hs.Questionnaire().fit(mine.tensor(0))``. What
# removes heads or needs weights requires the model. On the command line: ``headscape import attention.npy --layout layer,head,query,key``.
# Terms: :doc:`/glossary`.
