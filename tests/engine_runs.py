"""Runs that engines work on, and commands in this process."""

import sys

import numpy as np
import pytest

from headscape.captures import import_array
from headscape.cli import main


def attention(seed, n_batch=4, n_head=5, n=12):
    X = np.random.default_rng(seed).gamma(0.5, size=(n_batch, n_head, n, n)) * np.tri(n)
    return X / X.sum(axis=-1, keepdims=True)


def make_run(folder, seed=0, kind="probs"):
    folder.mkdir(parents=True, exist_ok=True)
    values = attention(seed)
    np.save(folder / "a.npy", values if kind == "probs" else np.log(values + 1e-6))
    import_array(folder / "a.npy", folder / "run", layout="batch,head,query,key", kind=kind, mask="causal")
    (folder / "a.npy").unlink()
    return folder / "run"


def call(monkeypatch, capfd, *arguments):
    """The command line in this process: exit code, what is printed, what is said."""
    monkeypatch.setattr(sys, "argv", ["headscape", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    printed = capfd.readouterr()
    return stopped.value.code or 0, printed.out, printed.err
