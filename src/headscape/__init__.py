"""headscape maps the attention heads of transformers.

The public names are imported on first use, so `import headscape` is quick and needs no torch.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headscape import hooks
from headscape._lazy import lazy
from headscape.version import __version__

_HOMES = {
    "attention.capture": ("capture", "check_parity"),
    "attention.inputs": ("sample_images", "sample_text"),
    "attention.intervene": ("ablate", "gates", "mean_outputs", "patch_maps", "replace_attention", "scale_scores"),
    "attention.loss": ("loss",),
    "attention.models": ("Model", "list_models", "load_model", "wrap_module"),
    "attention.tracking": ("Tracker",),
    "captures": ("Capture", "open_capture"),
    "collapse": ("collapse",),  # this and report: packages that can be called
    "errors": ("HeadscapeError", "InputError"),
    "geometry.consensus": ("Consensus", "consensus"),
    "geometry.diffusion": ("diffusion_map",),
    "geometry.emd": ("tree_distance",),
    "geometry.matrix": ("organize_matrix",),
    "geometry.planted": ("planted",),
    "geometry.questionnaire": ("Questionnaire",),
    "hopfield.convert": ("to_hopfield",),
    "hopfield.layer": ("HopfieldAttention",),
    "pruning.export": ("Export", "export_pruned"),
    "intervals": ("Interval", "mean_interval"),
    "imports": ("from_attentions", "import_array"),
    "report": ("report",),
    "report.showing": ("show",),
    "results": ("FigureSpec", "Finding", "Result"),
    "runs": ("Run",),
    "studies": ("open_result",),
    "studies.change": ("compare_prompts",),
    "studies.claims": ("claims",),
    "studies.compare": ("coarsen", "compare"),
    "studies.compress": ("compress",),
    "studies.gaussian": ("gaussian",),
    "studies.laws": ("laws",),
    "studies.organize": ("find_heads", "organize"),
    "studies.prompt": ("prompt",),
    "studies.prune": ("prune", "rank_heads"),
    "studies.series": ("series",),
    "studies.softmax": ("softmax",),
    "studies.spectra": ("spectra",),
    "studies.train": ("train",),
    "studies.work.dask": ("DaskEngine",),
    "tensor": ("AttentionHead", "AttentionTensor", "HeadId"),
    "tree": ("PartitionTree",),
    "verdicts": ("Judgement", "judge"),
    "wavelets.entropy": ("decay_curve", "head_entropies", "network_entropy", "reconstruct", "top_energy"),
    "wavelets.paraproduct": ("paraproduct",),
    "wavelets.regularity": ("holder_exponent",),
    "wavelets.haar": ("haar_support", "haar_transform", "inverse_haar_transform"),
}
__all__ = ["__version__", *sorted(name for names in _HOMES.values() for name in names)]  # pyright: ignore[reportUnsupportedDunderAll]
__getattr__, __dir__ = lazy(__name__, _HOMES)


def _render_html(result: Any, only: Sequence[str] = ()) -> str:
    from headscape.report.notebook import render
    from headscape.report.showing import show_head
    from headscape.tensor import AttentionHead

    return show_head(result) if isinstance(result, AttentionHead) else render(result, only)


hooks.render_html = _render_html


def _restore_conversion(model: Any, record: Any) -> None:
    from headscape.hopfield.convert import restored

    restored(model, record)


hooks.restore_conversion = _restore_conversion

if TYPE_CHECKING:
    from headscape.attention.capture import capture, check_parity
    from headscape.attention.inputs import sample_images, sample_text
    from headscape.attention.intervene import (
        ablate,
        gates,
        mean_outputs,
        patch_maps,
        replace_attention,
        scale_scores,
    )
    from headscape.attention.loss import loss
    from headscape.attention.models import Model, list_models, load_model, wrap_module
    from headscape.attention.tracking import Tracker
    from headscape.captures import Capture, open_capture
    from headscape.errors import HeadscapeError, InputError
    from headscape.geometry.consensus import Consensus, consensus
    from headscape.geometry.diffusion import diffusion_map
    from headscape.geometry.emd import tree_distance
    from headscape.geometry.matrix import organize_matrix
    from headscape.geometry.planted import planted
    from headscape.geometry.questionnaire import Questionnaire
    from headscape.hopfield.convert import to_hopfield
    from headscape.hopfield.layer import HopfieldAttention
    from headscape.imports import from_attentions, import_array
    from headscape.intervals import Interval, mean_interval
    from headscape.pruning.export import Export, export_pruned
    from headscape.report.showing import report, show
    from headscape.results import FigureSpec, Finding, Result
    from headscape.runs import Run
    from headscape.studies.change import compare_prompts
    from headscape.studies.claims.study import claims
    from headscape.studies.collapse.study import collapse
    from headscape.studies.compare.coarse import coarsen
    from headscape.studies.compare.study import compare
    from headscape.studies.compress.study import compress
    from headscape.studies.gaussian.study import gaussian
    from headscape.studies.laws.study import laws
    from headscape.studies.organize.by_role import find_heads
    from headscape.studies.organize.study import organize
    from headscape.studies.prompt.study import prompt
    from headscape.studies.prune.study import prune, rank_heads
    from headscape.studies.series.study import series
    from headscape.studies.softmax.study import softmax
    from headscape.studies.spectra.study import spectra
    from headscape.studies.train.study import train
    from headscape.studies.work.dask import DaskEngine
    from headscape.tensor import AttentionHead, AttentionTensor, HeadId
    from headscape.tree import PartitionTree
    from headscape.verdicts import Judgement, judge
    from headscape.wavelets.entropy import decay_curve, head_entropies, network_entropy, reconstruct, top_energy
    from headscape.wavelets.haar import haar_support, haar_transform, inverse_haar_transform
    from headscape.wavelets.paraproduct import paraproduct
    from headscape.wavelets.regularity import holder_exponent
