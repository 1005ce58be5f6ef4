"""
A study of your own in thirty lines
===================================

You measure something per head and want what every headscape study has: files, a table, findings with verdicts, a place on the page.
The question here: how sharp is each head, and is it sharper than random weights would make it?
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

import headscape as hs

# %%
# The result
# ----------
# A frozen dataclass. Its fields are what is saved; three methods say how it is shown.


@dataclass(frozen=True, eq=False)
class Sharpness(hs.Result):
    """The largest weight of a row, averaged over the rows of a head."""

    study, title = "sharpness", "How sharp is each head?"
    heads: pd.DataFrame

    def to_frame(self):
        """One row per head."""
        return self.heads

    def figures(self):
        """One cell per head."""
        data = {"score": "peak"}
        return [
            hs.FigureSpec(
                id="peak", title="Largest weight of a row", kind="head_grid", data=data, read="Dark is sharp."
            )
        ]

    def findings(self):
        """The trained model beside its control, with a verdict."""
        gain = hs.mean_interval(self.heads.groupby("layer")[["peak", "random"]].mean().diff(axis=1).random * -1)
        verdict = hs.judge(gain, above=0.0, control="random weights")
        opening = verdict.opening("training made heads sharper", "training made no head sharper")
        return [
            hs.Finding(
                f"{opening}: the largest weight rises by {gain} over random weights, mean over layers.", "peak", verdict
            )
        ]


# %%
# The measurement
# ---------------
# The same architecture with random weights is the control that every claim about training needs.


def peaks(model):
    """One number per head."""
    captured = hs.capture(model, [hs.sample_text()], tokens=64, batches=4)
    return captured.heads(), np.mean([X.values.max(axis=1).mean(axis=0) for X in captured], axis=0)


heads, trained = peaks(hs.load_model("minilm-l6"))
_, random = peaks(hs.load_model("minilm-l6", random_init=0))
table = pd.DataFrame(heads, columns=["block", "layer", "head"]).assign(peak=trained, random=random)

# %%
# What you get
# ------------
# A view in a notebook, a summary in a terminal, files, and a page.

result = Sharpness(table)
result

# %%
import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as folder:
    result.save(folder)
    print(*sorted(file.name for file in Path(folder).iterdir()))
    again = Sharpness.load(folder)
    page = hs.report(again, Path(folder) / "sharpness.html")
    print(page.name, page.stat().st_size > 10_000)

# %%
# How sure is this?
# -----------------
# The interval is over the six layers, of one draw of random weights: another draw is another control. ``hs.judge`` is the only place
# where headscape decides on a verdict; it says "cannot tell" where the interval includes the control.
#
# What next?
# ----------
# To make it a command with resumable units of work, follow "How to add a study" in CONTRIBUTING.
