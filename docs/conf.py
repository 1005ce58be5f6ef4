"""How the site is built: `make docs`."""

import logging
import os
from importlib.metadata import files

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "warning")  # a cluster sets its own loggers when it is imported

from sphinx_gallery.sorting import ExampleTitleSortKey

import headscape
import headscape.collapse
import headscape.report.showing
import headscape.studies.collapse.study

# packages that can be called are documented as the functions they stand for
headscape.report = headscape.report.showing.report
headscape.collapse = headscape.studies.collapse.study.collapse

project = "headscape"
author = copyright = "the headscape authors"
version = release = headscape.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "results", "tutorials/GALLERY_HEADER.rst"]
templates_path = ["_templates"]

# pages: MyST
myst_enable_extensions = ["amsmath", "attrs_block", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
suppress_warnings = ["config.cache"]  # the settings of the gallery hold a class

# equations: MathJax beside the pages, so that nothing is fetched when they are read
mathjax = next(file for file in files("sphinx-mathjax-offline") or () if file.name == "tex-svg.js")
mathjax_path = mathjax.name

# look
highlight_language = "sh"  # blocks that name no language are commands
pygments_dark_style = "github-dark"  # furo's own underlines modules like links
html_theme = "furo"
html_title = f"headscape {release}"
html_static_path = ["_static", str(mathjax.locate())]
html_css_files = ["site.css"]
html_copy_source = html_show_sphinx = False

# API: one page per public name, from its docstring
autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True  # as the source writes them
napoleon_use_param = False  # parameters that share a description are one entry
napoleon_attr_annotations = False  # shapes are said in words
default_role = "code"

# tutorials: scripts that are run, in this order
TUTORIALS = [
    *("find_induction_heads", "two_prompts", "read_landscape", "any_matrix", "bring_attentions", "prune_for_llama_cpp"),
    *("softmax_matters", "weights_and_noise", "rank_collapse", "own_study", "cluster"),
]


class Order(ExampleTitleSortKey):
    """From the first question to the specialist's."""

    def __call__(self, filename):
        """Where a file stands."""
        return TUTORIALS.index(filename.removesuffix(".py"))


def drawn(gallery_conf, fname):
    """Pictures of tutorials have no background, and ink that can be read on light and on dark pages."""
    import matplotlib as mpl

    ink = "#808691"
    mpl.rcParams.update({"figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none"})
    mpl.rcParams.update({f"{part}.color": ink for part in ("text", "xtick", "ytick")})
    mpl.rcParams.update({"axes.labelcolor": ink, "axes.edgecolor": ink, "axes.titlecolor": ink})
    logging.getLogger("gguf").setLevel(logging.WARNING)  # what a file says while it is made


sphinx_gallery_conf = {
    "examples_dirs": "tutorials",
    "gallery_dirs": "made/tutorials",
    "filename_pattern": r"\.py$",
    "capture_repr": ("_repr_html_", "__repr__"),
    "abort_on_example_error": True,
    "show_memory": False,
    "min_reported_time": 600,  # how long a tutorial takes depends on the machine
    "within_subsection_order": Order,
    "write_computation_times": False,
    "remove_config_comments": True,
    "reset_modules": ("matplotlib", drawn),
}


def examples(app, what, name, obj, options, lines):
    """Examples after a section are a section of their own, which the docstrings leave unsaid."""
    first = next((i for i, line in enumerate(lines) if line.startswith(">>>")), None)
    if first is not None and any(line.startswith("---") for line in lines[:first]):
        lines[first:first] = ["Examples", "--------"]


def setup(app):
    """Run before napoleon reads the sections."""
    app.connect("autodoc-process-docstring", examples, priority=400)
