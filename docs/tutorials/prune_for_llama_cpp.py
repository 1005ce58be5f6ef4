"""
Prune and run in llama.cpp
==========================

You want a smaller model that an unmodified llama.cpp runs, and you want to know what the removal cost: not only on average text, but in
what the model can do.
"""

import tempfile
from pathlib import Path

import numpy as np

import headscape as hs

# %%
# Which heads?
# ------------
# ``rank_heads`` puts the least important heads first. ``novelty`` asks what the other heads of the layer cannot predict of a head's
# output. In SmolLM2 three heads share one key and value; only when all three are removed does the cache shrink, so groups are
# what we remove.

scratch = tempfile.TemporaryDirectory()
here = Path(scratch.name)
model = hs.load_model("smollm2-135m")
captured = hs.capture(model, [hs.sample_text("rank")], tokens=48, batches=2, out=here / "run")
ranking = hs.rank_heads(captured, "novelty", model)
groups = ranking.assign(group=ranking["head"] // 3).groupby(["layer", "group"]).score.mean().nsmallest(4)
groups

# %%
# What does it cost?
# ------------------
# Judge on text that played no part in the choice, and on copying: lists of random words, repeated. Average text hides the loss
# of an ability. The control removes as many groups at random.

words = hs.sample_text().split()
rng = np.random.default_rng(0)
lists = [" ".join(list(rng.choice(words, 20)) * 2) for _ in range(2)]
layers, group = rng.integers(30, size=4), rng.integers(3, size=4)


def heads_of(groups):
    """The query heads of key/value groups."""
    return [(int(layer), 3 * int(group) + i) for layer, group in groups for i in range(3)]


def cost(heads):
    """Loss in nats on held-out prose and on copying."""
    with hs.ablate(model, heads):
        return [
            hs.loss(model, texts, tokens=48, batches=n).mean
            for texts, n in (([hs.sample_text("judge")], 2), (lists, None))
        ]


chosen = heads_of(groups.index)
for name, heads in [("intact", []), ("chosen", chosen), ("random", heads_of(zip(layers, group, strict=True)))]:
    text, copying = cost(heads)
    print(f"{name:7} text {text:.2f}  copying {copying:.2f}")

# %%
# On text the chosen groups cost next to nothing, where random ones hurt. Copying pays all the same, and the average never showed it:
# this is why ``hs.prune`` keeps a budget for every ability.
#
# Write it
# --------
# The file is opened again and its logits are compared with those of the ablated model before it gets its name.

export = hs.export_pruned(model, chosen, here / "smaller.gguf")
print(export)

# %%
# Run it
# ------
# ``llama-cli -m smaller.gguf -p "..."`` does the same; here llama.cpp is called from Python (``pip install xllamacpp``).

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel = str(here / "smaller.gguf"), 256, 1
params.cpuparams.n_threads = 1
server = xllamacpp.Server(params)
request = {"prompt": "The capital of France is", "n_predict": 8, "temperature": 0.0}
print(server.handle_completions(request)["choices"][0]["text"])

# %%
# How sure is this?
# -----------------
# Two windows of text are few, and four groups are a small cut. ``hs.prune`` does it thoroughly, in minutes: it keeps a budget for every
# ability, fits what the remaining heads can take over, and reports costs on held-out inputs with intervals.
#
# What next?
# ----------
# ``headscape prune RUN --budget text=1%,copy=2% --out smaller.gguf``. Which criteria are worth their time, and against which rivals:
# :doc:`/prune`.

del server
scratch.cleanup()
