"""The slow, obvious twins of the pruning room."""

import numpy as np
import torch

from headscape.attention.projections import output_projections


def error_without(S, W, removed, ridge=1e-3):
    """Square error of W o without some inputs, the others predicting them by ridge regression solved anew."""
    mean = S[-1, :-1]
    C = S[:-1, :-1] - np.outer(mean, mean)
    C = C + ridge * np.diag(C).mean() * np.eye(len(C))
    kept = np.setdiff1d(np.arange(len(C)), removed)
    left = C[np.ix_(removed, removed)]
    if len(kept):
        left = left - C[np.ix_(removed, kept)] @ np.linalg.solve(C[np.ix_(kept, kept)], C[np.ix_(kept, removed)])
    return np.trace(W[:, removed] @ left @ W[:, removed].T)


def outputs_of(model, samples):
    """Outputs of the heads of every layer, (position, head * dim), by hooks on the output projections."""
    found, handles = {}, []
    for name, path in output_projections(model).items():
        rows = found.setdefault(name, [])
        module = model.module.get_submodule(path)
        handles.append(module.register_forward_pre_hook(lambda _, a, rows=rows: rows.append(a[0].flatten(0, -2))))
    with torch.no_grad():
        for sample in samples:
            model.module(**sample.arguments)
    for handle in handles:
        handle.remove()
    return {name: torch.cat(rows).double().numpy() for name, rows in found.items()}
