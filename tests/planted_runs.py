"""Runs of made-up networks, organized: what tests that compare networks look at."""

import numpy as np

import headscape as hs
from headscape.geometry.questionnaire import Questionnaire
from headscape.runs import Run
from headscape.studies.organize import organize


def attention_of(network, seed, n_batch=8, n_layer=3, n_head=4, n=16):
    """Attention of a made-up network on random input: (batch, layer, head, query, key).

    Each head looks a fixed way ahead or back, more peaked the higher the number of the network; inputs add noise.
    """
    heads, noise = np.random.default_rng(network), np.random.default_rng(1000 + seed)
    reach, peak = heads.uniform(0, n, (n_layer, n_head)), network * heads.uniform(0.5, 4, (n_layer, n_head))
    apart = np.abs(np.arange(n)[:, None] - np.arange(n))
    scores = -peak[..., None, None] * np.abs(apart - reach[..., None, None]) / 4
    scores = scores + 0.7 * noise.normal(size=(n_batch, n_layer, n_head, n, n))
    e = np.exp(scores)
    return e / e.sum(axis=-1, keepdims=True)


def make_run(folder, values, fingerprint=None, kind="probs", organized=True, **options):
    folder.parent.mkdir(parents=True, exist_ok=True)
    file = folder.parent / f"{folder.name}.npy"
    np.save(file, values)
    layout = "batch,layer,head,query,key"
    hs.import_array(file, folder, layout=layout, kind=kind, mask="full", dtype="float32")
    if fingerprint:
        model = {"source": fingerprint, "fingerprint": fingerprint, "n_layers": 3, "n_heads": 4}
        Run.open(folder).update(model=model)
    if organized:
        organize(folder, model=False, threads=1, questionnaire=Questionnaire(n_iter=1, **options))
    return folder
