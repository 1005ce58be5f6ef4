"""The page and single heads from Python: `hs.report`, `hs.show`, and how a head shows itself in a notebook."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headscape.captures import Batch, Capture, open_capture
from headscape.errors import InputError
from headscape.imports import write_capture
from headscape.report.gather import Scene, gather
from headscape.report.headmaps import draw_maps
from headscape.report.notebook import Shown, framed, picture_of
from headscape.report.page import Page
from headscape.results import FigureSpec, Result
from headscape.runs import Run
from headscape.studies import load_results
from headscape.tensor import AttentionHead, AttentionTensor

__all__ = ["Shown", "report", "show", "show_head"]


def report(source: Run | Capture | Result | Sequence[Result] | str | Path, out: str | Path | None = None) -> Path:
    """Write the page of a run, of a capture in memory, or of results alone, and return where it is.

    Parameters
    ----------
    source
        A run or its directory, with whatever studies it has; a capture (one in memory is organized for the page, with
        the model it was made from while that is there); or
        one or more results, whose page then has no attention maps.
    out
        Where to write; RUN/report.html for a run, else report.html here.

    >>> hs.report(run, "page.html").name
    'page.html'
    """
    from headscape.report import write_report

    if isinstance(source, Result) or (isinstance(source, Sequence) and not isinstance(source, str)):
        results = [source] if isinstance(source, Result) else list(source)
        if not results or not all(isinstance(one, Result) for one in results):
            raise InputError(
                "a page is made from a run, a capture or results; hs.from_attentions makes a capture of attention in memory"
            )
        names = " and ".join(dict.fromkeys(one.title for one in results))
        return Page(names, [], gather(results), {}).write(Path(out or "report.html"))
    if isinstance(source, Capture) and source.run is None:
        from headscape.studies.organize import organize

        with tempfile.TemporaryDirectory(prefix="headscape-") as scratch:
            model = source.model
            facts = source.facts if model is None else {**source.facts, "model": model.describe()}
            run = write_capture(source, Path(scratch) / "attention in memory", **facts).run
            assert run is not None
            found = organize(run, model=model)
            return write_report(run, found if isinstance(found, list) else [found], Path(out or "report.html"))
    run = source.run if isinstance(source, Capture) else source if isinstance(source, Run) else Run.open(source)
    assert run is not None
    return write_report(run, load_results(run), None if out is None else Path(out))


def show(
    source: Run | Capture | AttentionTensor | str | Path,
    layer: int,
    head: int,
    batch: int = 0,
    *,
    block: str | None = None,
) -> Shown:
    """One head as a picture: its map and its attention over the text, in a notebook or as a string of HTML.

    If the notebook allows scripts, a token can be chosen and the map enlarged; otherwise a still picture is shown.

    >>> hs.show(hs.AttentionTensor(np.eye(3)[:, :, None]), 0, 0)[:4]
    '<div'
    """
    X = source if isinstance(source, AttentionTensor) else _tensor(open_capture(source), batch, block)
    return show_head(X.head(layer, head, block=block))


def _tensor(captured: Capture, batch: int, block: str | None) -> AttentionTensor:
    return captured.tensor(batch, block, captured.kind())


def show_head(head: AttentionHead) -> Shown:
    """The notebook view of one head."""
    place, name = head.id, f"Layer {head.id.layer}, head {head.id.head}"
    facts = {"mask": head.mask, "query_tokens": head.query_tokens, "key_tokens": head.key_tokens}
    info = {
        "keep": [head.kind],
        "blocks": {place.block: facts},
        "layers": {place.block: {str(place.layer): [place.head]}},
    }
    key = f"{head.kind}/{place.block}.{place.layer}"
    capture = Capture.in_memory([Batch(info, [key], lambda _: head.values[None])])
    maps = draw_maps(capture, [place])
    page = Page(name, [], Scene([place], [], [], []), {}, maps).view()
    return Shown(framed(page, _still(head, name)))


def _still(head: AttentionHead, name: str) -> str:
    panel: dict[str, Any] = {"name": name, "values": head.masked, "query_tokens": head.query_tokens}
    spec = FigureSpec(
        id="head",
        title=name,
        kind="maps",
        data={"panels": [panel | {"key_tokens": head.key_tokens}]},
        read="Rows are queries, columns are keys; dark is strong attention.",
        alt=f"Attention map of {name}",
    )
    return picture_of(spec)
