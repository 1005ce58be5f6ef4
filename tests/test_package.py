"""The package: quick to import, its public names, what it refuses.

Also tests _lazy.
"""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import headscape as hs


def test_import_is_light():
    heavy = ("torch", "transformers", "numba", "pandas", "scipy")
    code = f"import headscape, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


CORE = """
import sys, importlib.abc
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name in ('torch', 'transformers', 'matplotlib', 'plotly'): raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Missing())
import numpy as np, headscape as hs
X = hs.AttentionTensor(np.ones((3, 3, 2)) / 3); print(X)
def ask(use):
    try: use()
    except ImportError as error: print(error)
"""
"""An environment without extras."""


def test_the_numeric_core_needs_no_torch():
    code = CORE + "ask(lambda: hs.capture)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "AttentionTensor(3 queries" in done.stdout
    assert "headscape.capture needs torch: pip install 'headscape[models]'" in done.stdout


def test_what_is_drawn_says_which_extra_it_needs():
    """`headscape._lazy`: by the name that was asked for, also where a package is called as a function."""
    code = (
        CORE
        + "X = hs.from_attentions([np.ones((2, 3, 3)) / 3])\nask(lambda: hs.report(X))\nask(lambda: hs.show(X, 0, 1))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in ("report", "show"):
        assert f"headscape.{name} needs matplotlib: pip install 'headscape[report]'" in done.stdout


def test_every_public_name_resolves():
    for name in hs.__all__:
        assert getattr(hs, name) is not None
    with pytest.raises(AttributeError, match="no name 'nope'"):
        hs.nope  # noqa: B018


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("captures", "import_array"),
        ("collapse.attention_only", "AttentionNetwork AttentionOnly four_cells"),
        ("collapse.bounds", "corrected_d3 layer_bounds printed_d3"),
        ("collapse.residual", "effective_rank relative_residual"),
        ("collapse.similarity", "attention_entropy token_similarities"),
        ("results", "FigureSpec Finding Result"),
        ("statistics.edits", "edited scale_spectra truncate"),
        ("statistics.spectra", "fit_marchenko_pastur singular_values"),
        ("studies.collapse", "collapse"),
        ("studies.compare", "compare"),
        ("studies.engines", "make_engine"),
        ("studies.gaussian", "gaussian"),
        ("studies.organize", "organize"),
        ("studies.prompt", "prompt"),
        ("studies.prune", "prune rank_heads"),
        ("studies.softmax", "softmax"),
        ("studies.spectra", "spectra"),
        ("studies.train", "train"),
    ],
)
def test_addresses_of_version_01_still_work(module, names):
    home = import_module(f"headscape.{module}")
    assert all(callable(getattr(home, name)) for name in names.split())


def test_a_package_that_is_a_public_function_can_be_called(tmp_path):
    for function in (hs.collapse, hs.report):
        with pytest.raises(hs.InputError, match="no run"):
            function(tmp_path / "none")


def test_attention_tensor_checks_what_it_is_given():
    for arguments, message in [
        ({"values": np.zeros((2, 2))}, "three axes"),
        ({"values": np.zeros((2, 2, 2), dtype=complex)}, "real numbers"),
        ({"values": np.zeros((2, 2, 2)), "query_tokens": ["a"]}, "1 query_tokens given.*needs 2"),
        ({"values": np.zeros((2, 2, 2)), "mask": "banded"}, "mask is one of causal, full"),
        ({"values": np.zeros((2, 2, 2)), "kind": "logits"}, "kind is one of probs, scores"),
    ]:
        with pytest.raises(hs.InputError, match=message):
            hs.AttentionTensor(**arguments)


def test_present_entries_with_a_memory_end_in_the_last_corner():
    X = hs.AttentionTensor(np.zeros((2, 4, 1)), mask="causal")
    assert X.present.tolist() == [[True, True, True, False], [True, True, True, True]]


def test_no_committed_result_says_where_things_were_on_a_machine():
    """Results that were measured elsewhere travel without paths of a model, of a user's home or of scratch space."""
    results = Path(__file__).parents[1] / "docs" / "results"
    files = [path for path in results.rglob("*") if path.is_file()]
    absolute = re.compile(rb"(?<![\w./$}])(/(?:home|root|Users|tmp|work|mnt|data|opt|var)/[^\s\"']*)|[A-Z]:\\\\")
    assert files and not {str(p): found for p in files if (found := absolute.findall(p.read_bytes()))}
