"""
A study of your own in thirty lines
===================================

Measure something per head and get files, a table, findings with verdicts, and a page.

That is what every headscape study has, and yours gets it from three methods. The question here: how sharp is each head, and is it
sharper than random weights would make it?
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

import headscape as hs

# %%
# The result
# ----------
# A result is a frozen dataclass. Its fields are what is saved; three methods say how it is shown: as a table, as figures, and as
# findings in sentences. ``hs.judge`` decides on the verdict.


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
        words = {"title": "Largest weight of a row", "read": "Bright is sharp."}
        return [hs.FigureSpec(id="peak", kind="head_grid", data={"score": "peak"}, **words)]

    def findings(self):
        """The trained model beside its control, with a verdict."""
        by_layer = self.heads.groupby("layer")[["peak", "random"]].mean()
        gain = hs.mean_interval(by_layer["peak"] - by_layer["random"])
        verdict = hs.judge(gain, above=0.0, control="random weights")
        opening = verdict.opening("training made heads sharper", "training made heads less sharp")
        text = f"{opening}: beyond random weights the largest weight rises by {gain}, mean over layers."
        return [hs.Finding(text, "peak", verdict)]


# %%
# The measurement
# ---------------
# How sharp: the largest weight of each row, averaged over rows and inputs. A claim about training needs a control: the same
# architecture with random weights.


def peaks(model):
    """One number per head."""
    captured = hs.capture(model, [hs.sample_text()], tokens=64, batches=4)
    sharpness = [X.values.max(axis=1).mean(axis=0) for X in captured]  # one array per input
    return captured.heads(), np.mean(sharpness, axis=0)


heads, trained = peaks(hs.load_model("minilm-l6"))
_, random = peaks(hs.load_model("minilm-l6", random_init=0))
table = pd.DataFrame(heads, columns=["block", "layer", "head"])
table = table.assign(peak=trained, random=random)

# %%
# What you get
# ------------
# In a notebook the result shows a view of the heads, its findings and its figures; in a terminal, a summary.

result = Sharpness(table)
result

# %%
# It saves itself as plain files, is read back, and has a page of its own.

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
# The interval is over the six layers, with one draw of random weights; another draw would be another control. ``hs.judge`` says "cannot
# tell" if the interval includes the control.
#
# What next?
# ----------
# To make it a command with resumable units of work, follow "How to add a study" in CONTRIBUTING. What a verdict
# means: :doc:`/verdicts`. Terms: :doc:`/glossary`.
