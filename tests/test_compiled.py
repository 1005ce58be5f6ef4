import subprocess
import sys

import pytest

from headscape.compiled import cores, free_threads, kernel_threads, n_threads


def test_threads_follow_the_cores_and_what_the_environment_says(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert free_threads() == cores() and free_threads(10**6) == 1 and n_threads() == cores()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert free_threads() == 1 and n_threads() == 1 and n_threads(3) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "some")
    assert free_threads() == cores()


def test_kernels_have_their_number_within_the_block_alone(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with kernel_threads(3):
        with kernel_threads(2):
            assert n_threads() == 2
        assert n_threads() == 3 and n_threads(1) == 1
    with pytest.raises(ValueError, match="x"), kernel_threads(2):
        raise ValueError("x")
    assert n_threads() == 1


def test_organizing_leaves_the_threads_of_torch_alone():
    code = (
        "import numpy as np, torch, headscape as hs; torch.set_num_threads(1); "
        "hs.organize(hs.from_attentions(np.full((1, 2, 4, 4), 0.25), tokens=list('abcd'))); "
        "print(torch.get_num_threads())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert found.stdout.strip() == "1"
