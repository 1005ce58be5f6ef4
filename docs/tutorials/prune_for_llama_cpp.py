"""
Prune and run in llama.cpp
==========================

Make a model smaller, run it in an unmodified llama.cpp, and know what the removal cost.

The cost is more than the average loss: an ability that few tokens need, such as copying, can be lost without the average showing it.
"""

import tempfile
from pathlib import Path

import numpy as np

import headscape as hs

# %%
# Which heads?
# ------------
# ``rank_heads`` puts the least important heads first. The criterion ``novelty`` asks how much of a head's output the other heads of its
# layer cannot predict. In SmolLM2 three query heads share one head of keys and values, and the cache shrinks only if all three are
# removed. So we remove such groups, the four with the lowest mean.

scratch = tempfile.TemporaryDirectory()
here = Path(scratch.name)
model = hs.load_model("smollm2-135m")
text = [hs.sample_text("rank")]
captured = hs.capture(model, text, tokens=64, batches=2, out=here / "run")
ranking = hs.rank_heads(captured, "novelty", model)
ranking["group"] = ranking["head"] // 3
groups = ranking.groupby(["layer", "group"]).score.mean().nsmallest(4)
groups

# %%
# What does it cost?
# ------------------
# Judge on text that played no part in the choice, and on copying: lists of random words, each repeated once. As a control, remove four
# groups at random.

words = hs.sample_text().split()
rng = np.random.default_rng(0)
lists = [" ".join(list(rng.choice(words, 20)) * 2) for _ in range(2)]
anywhere = zip(rng.integers(30, size=4), rng.integers(3, size=4), strict=True)


def heads_of(groups):
    """The query heads of key/value groups."""
    return [(int(layer), 3 * int(group) + i) for layer, group in groups for i in range(3)]


def cost(heads):
    """Loss in nats on held-out prose and on copying."""
    with hs.ablate(model, heads):
        return [
            hs.loss(model, texts, tokens=64, batches=n).mean
            for texts, n in (([hs.sample_text("judge")], 2), (lists, None))
        ]


chosen = heads_of(groups.index)
cases = {"intact": [], "chosen": chosen, "random": heads_of(anywhere)}
for name, heads in cases.items():
    text, copying = cost(heads)
    print(f"{name:7} text {text:.2f}  copying {copying:.2f}")

# %%
# On text the chosen groups cost next to nothing, while random ones hurt. But copying suffers, and the average did not show it. This is
# why ``hs.prune`` has a budget for every ability.
#
# Write it
# --------
# Before the file gets its name, it is opened again and its logits are compared with those of the ablated model.

export = hs.export_pruned(model, chosen, here / "smaller.gguf")
print(export)

# %%
# What shrinks most is the KV cache: four of its 90 groups are gone. The file is larger than the one it came from, because that one stores 4-bit
# numbers and this one 16-bit; llama.cpp's own ``llama-quantize`` makes it small again.
#
# Run it
# ------
# Here llama.cpp is called from Python (``pip install xllamacpp``); ``llama-cli -m smaller.gguf -p "..."`` does the same.

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = str(here / "smaller.gguf")
params.n_ctx, params.n_parallel = 256, 1
params.cpuparams.n_threads = 1
params.verbosity = 1  # errors alone
server = xllamacpp.Server(params)
request = {"prompt": "The capital of France is", "n_predict": 8, "temperature": 0.0}
print(server.handle_completions(request)["choices"][0]["text"])

# %%
# How sure is this?
# -----------------
# Two windows of text are few, and four groups of 90 are a small cut. ``hs.prune`` does it thoroughly, in minutes: it keeps within a budget
# for every ability, lets the remaining heads take over what they can, and reports costs on held-out inputs with intervals.
#
# What next?
# ----------
# ``headscape prune RUN --budget text=1%,copy=2% --out smaller.gguf`` on the command line. How the criteria compare, also with published
# methods: :doc:`/prune`. Terms: :doc:`/glossary`.

del server
scratch.cleanup()
