"""Test the claims of the papers on one model: every study they need, in one run, and one row per claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pandas as pd

from headscape.attention.wrapping import Model
from headscape.captures import Capture
from headscape.checks import seed as check_seed
from headscape.errors import HeadscapeError, InputError
from headscape.fingerprints import digest
from headscape.intervals import Interval
from headscape.papers import Claim
from headscape.papers import claims as all_claims
from headscape.results import Finding, Result
from headscape.runs import Run
from headscape.studies.claims.needs import not_applicable
from headscape.studies.claims.result import ClaimsResult
from headscape.studies.work.folder import kept_studies, study_folder
from headscape.studies.work.how import How, Work
from headscape.studies.work.models import Loader
from headscape.tensor import HeadId
from headscape.verdicts import strictest

__all__ = ["chosen", "claims", "sampled"]

SIZES = {False: {"tokens": 128, "batches": 10}, True: {"tokens": 50, "batches": 8}}
"""What is captured of a model, in full and for a quick look: 8 inputs are the fewest on which all studies decide, and 50
tokens are those of the bundled ViT, beside which a quick look can then be compared."""
OPTIONS: dict[bool, dict[str, dict[str, Any]]] = {
    False: {"gaussian": {"temperatures": True}, "prompt": {"sweep": (0, 1, 3, 5, 8)}},
    True: {
        "table1": {"seeds": 4, "depth": 4, "images": 4},
        "prompt": {"prompts": 4, "alphas": (0.5, 2.0), "sweep": (0, 3, 8)},
        "prune": {"windows": 8, "evaluations": 4},
    },
}
"""Settings of studies that are not their own defaults."""
SAMPLED = 2
"""Heads of a layer that the softmax study takes in a quick look: the first ones, as good as any others."""
SAMPLED_LAYERS = 6
"""Layers of which it takes them, at equal steps of depth: every head that is replaced costs passes through the model."""
UNSAID = {
    "compare.bottom": "it takes two runs of this network, on other kinds of input; name the second with --beside",
    "prune.abilities": "no heads were removed, or the model has none of these abilities",
    "prune": "comparing criteria takes hours: run `headscape prune RUN --study`, then this again",
    "gaussian.temperature": "a quick look does not change the temperature of every head; leave out --quick",
}
"""Why a study, or one claim of it, may be left out."""


def claims(
    source: str | Path | Run,
    *,
    only: Sequence[str] = (),
    quick: bool = False,
    inputs: Any = None,
    out: str | Path | None = None,
    beside: Sequence[str | Path] = (),
    block: str | None = None,
    loader: Loader | None = None,
    random_state: int = 0,
    **how: Unpack[How],
) -> ClaimsResult:
    """Test the claims of the papers on a model: run what each of them needs, and report which hold.

    Parameters
    ----------
    source
        A model (name, folder, file or hub id), which is captured first; or a run, which should keep probs and scores. All
        studies live in the run and reuse what is there: a killed one resumes, and a second call is quick.
    only
        Papers (fasina2025), studies (softmax) or claims (softmax.invariance); by default all of claims.toml.
    quick
        A first look: 8 inputs of 50 tokens, fewer repetitions, 2 heads in each of 6 layers in the softmax study.
    inputs, out
        For a model: text or images, by default the sample; and the run directory, by default runs/NAME-claims, or
        runs/NAME-claims-quick for a first look.
    beside
        Other runs: organized runs of other networks, with as many tokens, for claims about several networks;
        training runs, for claims about training.
    block
        Which block of an encoder-decoder; by default the first.
    how
        jobs, threads, engine, resume, progress, say: see `headscape.studies.work.how.How`.

    Raises
    ------
    InputError
        If `only` names nothing, or there is no such model or run. A study that fails is a row that says why.

    >>> result = hs.claims("vit-fmnist", only=["spectra"], quick=True)
    >>> result.claims[["claim", "verdict"]]
                    claim      verdict
    0     spectra.sparser  cannot tell
    1      spectra.energy  cannot tell
    2   spectra.alignment        holds
    3  spectra.directions  cannot tell
    """
    check_seed(random_state)
    wanted, others = chosen(only), [Run.open(path) for path in beside]
    work = Work.of(**how)
    loader = loader or Loader(say=work.say)
    run, model = _captured(source, inputs, out, quick, random_state, loader, work)
    if any(one.path.resolve() == run.path.resolve() for one in others):
        raise InputError(f"{run.path} is named beside itself; name a run of another network, or of other inputs")
    captured = Capture.of_run(run.path)
    name = captured.block(block) if block is not None or len(captured.blocks) == 1 else captured.blocks[0]
    facts = {"quick": quick, "only": sorted(set(only)), "block": name, "seed": random_state}
    read = captured.content() | {f"beside {one.path.name}": digest(one.meta) for one in others}
    # one thread is quickest for short inputs; what was not begun cannot be resumed
    own: How = {**how, "threads": how.get("threads") or (1 if quick else None), "resume": False}
    test = _Test(captured, run, model, loader, others, facts, own)
    with study_folder(run, ClaimsResult.study, facts, read, work) as folder:
        rows = []
        for study in dict.fromkeys(one.study for one in wanted):
            rows += _tested(test, study, [one for one in wanted if one.study == study], work)
        result = ClaimsResult(run.model_source or run.path.name, pd.DataFrame(rows), facts | dict(SIZES[quick]))
        folder.save(result)
    return result


def chosen(only: Sequence[str] = ()) -> list[Claim]:
    """The claims that are named by paper, study or id; all of them by default. `InputError` for a name of none."""
    every = list(all_claims().values())
    for name in only:
        if not any(name in (one.id, one.study, one.source.id) for one in every):
            papers, studies = (
                dict.fromkeys(words) for words in zip(*((c.source.id, c.study) for c in every), strict=True)
            )
            raise InputError(
                f"no claim, study or paper is called {name!r}; papers are {', '.join(papers)}; studies {', '.join(studies)}"
            )
    return [one for one in every if not only or {one.id, one.study, one.source.id} & set(only)]


def place_of(source: str | Path, quick: bool) -> Path:
    """Where the run of a model is kept unless another place is asked for; a first look has a place of its own."""
    return Path("runs") / f"{Path(source).name}-claims{'-quick' if quick else ''}"


def _captured(
    source: str | Path | Run, inputs: Any, out: str | Path | None, quick: bool, seed: int, loader: Loader, work: Work
) -> tuple[Run, Model | None]:
    """The run of a source, captured first where it is a model; and that model, where it can be had."""
    if isinstance(source, Run) or (Path(source) / "run.json").is_file():
        run = source if isinstance(source, Run) else Run.open(source)
        if inputs is not None or out is not None:
            raise InputError(f"{run.path} is a run and has its own inputs and place; leave out both")
        return run, loader.model_or_none(run, "nothing that needs the model is tested", work.warn)
    from headscape.attention.capture import capture
    from headscape.attention.inputs import sample_images, sample_text

    model = loader.load(str(source))
    given = inputs if inputs is not None else sample_images() if model.images is not None else [sample_text("rank")]
    work.stage("capturing", 1)
    target = Path(out or place_of(source, quick))
    options: dict[str, Any] = {"keep": ("probs", "scores"), "dtype": "float32", "random_state": seed, **SIZES[quick]}
    captured = capture(model, given, out=target, progress=work.progress, say=work.say, **options)
    assert captured.run is not None
    return captured.run, model


@dataclass(frozen=True)
class _Test:
    """What the studies are given."""

    captured: Capture
    run: Run
    model: Model | None
    loader: Loader
    beside: Sequence[Run]
    facts: Mapping[str, Any]
    how: How

    @cached_property
    def about(self) -> dict[str, Any]:
        """What claims may need: facts of the model, and how many networks and training runs were given with it."""
        kinds = [run.meta.get("config", {}).get("kind") for run in self.beside]
        counts = {"networks": len(kinds) - kinds.count("train"), "training": kinds.count("train")}
        return {"task": None, **self.run.meta.get("model", {}), **counts}

    @cached_property
    def control(self) -> Model | None:
        """The same architecture with random weights."""
        return None if self.model is None else self.loader.model(self.run, random_init=self.facts["seed"])

    def result(self, study: str) -> Result:
        """Run a study, or read it where another run holds it."""
        from headscape.studies import open_result

        options = {"random_state": self.facts["seed"], **OPTIONS[self.facts["quick"]].get(study, {}), **self.how}
        run = getattr(import_module(f"headscape.studies.{study}"), study)
        on_run = {"model": self.model, "loader": self.loader, "block": self.facts["block"]}
        sample = sampled(self.captured.heads(self.facts["block"])) if self.facts["quick"] else None
        make: dict[str, Callable[[], Result]] = {
            "organize": lambda: run(self.run, control=True if self.model else None, **on_run, **options),
            "compress": lambda: run(self.run, **on_run, **options),
            "softmax": lambda: run(self.run, heads=sample, **on_run, **options),
            "spectra": lambda: run(self._needed, self.run, control=self.control, **options),
            "gaussian": lambda: run(self.run, control=self.control, **on_run, **options),
            "prompt": lambda: run(self._needed, self.run, control=self.control, **options),
            "compare": lambda: run([self.run.path, *self._paths("capture")], **options),
            "collapse": lambda: run(self.run, control=self.control, **on_run, **options),
            "table1": lambda: run(self.run, **options),
            "laws": lambda: run(self.run, **options),
            "train": lambda: open_result(self._paths("train")[0], study),
            "prune": lambda: run(self.run, **on_run, **options),
        }
        return make[study]()

    @property
    def _needed(self) -> Model:
        if self.model is None:
            raise InputError("the model of the run could not be loaded")
        return self.model

    def _paths(self, kind: str) -> list[Path]:
        return [
            run.path for run in self.beside if (run.meta.get("config", {}).get("kind") == "train") == (kind == "train")
        ]

    def compared(self, study: str) -> list[Finding]:
        """Findings of earlier, larger studies of the run, for claims that the one made here leaves out."""
        from headscape.studies import result_class

        kept = [one for one in kept_studies(self.run, study) if one.finished is not None]
        larger = [one for one in kept if one.facts.get("settings", {}).get("study") is True]
        return larger[-1].result(self.run, result_class(study)).findings() if larger else []


def sampled(heads: Sequence[HeadId]) -> list[str]:
    """The heads that the softmax study takes in a quick look: a few of a few layers."""
    layers = sorted({head.layer for head in heads})
    kept = {layers[round(i)] for i in np.linspace(0, len(layers) - 1, SAMPLED_LAYERS)}
    return [str(head) for head in heads if head.layer in kept and head.head < SAMPLED]


def _tested(test: _Test, study: str, wanted: Sequence[Claim], work: Work) -> list[dict[str, Any]]:
    """The rows of the claims that one study tests; it is not run where none of them is about this model."""
    why = {one.id: not_applicable(one, test.about) for one in wanted}
    found: dict[str, list[Finding]] = {}
    failed, more = None, ""
    if not all(why.values()):
        work.say(f"{study}: {sum(one is None for one in why.values())} claims")
        try:
            result = test.result(study)
            why |= {id: reason for id, reason in getattr(result, "apart", {}).items() if id in why}
            notes = getattr(result, "left_out", ())
            more = f" (left out: {'; '.join(notes)})" if notes else ""
            drawn = {figure.id for figure in result.figures()}  # what the page of the run shows, which rows link to
            for finding in (*result.findings(), *test.compared(study)):
                shown = finding if finding.figure in drawn else replace(finding, figure=None)
                found.setdefault(finding.claim or "", []).append(shown)
        except HeadscapeError as error:
            failed = str(error)

    def unsaid(one: Claim) -> str:
        nothing = UNSAID.get(study, f"the study says nothing about it on these inputs{more}")
        return failed or UNSAID.get(one.id, nothing)

    return [_row(one, why[one.id], found.get(one.id, []), unsaid(one)) for one in wanted]


def _row(claim: Claim, apart: str | None, findings: Sequence[Finding], failed: str) -> dict[str, Any]:
    """The row of a claim. Of several findings on it (measures, pairs, abilities) the one that decides is shown."""
    judged = [finding for finding in findings if finding.judgement is not None]
    row: dict[str, Any] = {
        **{"claim": claim.id, "study": claim.study, "paper": claim.source.id, "place": claim.place},
        **{"citation": claim.citation, "statement": claim.statement, "measured": claim.statistic},
        **{"value": float("nan"), "low": float("nan"), "high": float("nan"), "n": 0},
        **{"control": claim.control, "rule": claim.rule, "verdict": "cannot tell", "why": failed},
        **{"finding": "", "figure": ""},
    }
    if apart is not None:
        return row | {"verdict": "not applicable", "why": apart}
    if not judged:
        return row
    decisive = strictest(*(finding.judgement for finding in judged if finding.judgement is not None))
    finding = next(one for one in judged if one.judgement is decisive)
    number = decisive.statistic
    if number is not None:
        shown = number if number.readable else Interval(number.value, n=number.n)
        row |= {"value": shown.value, "low": shown.low, "high": shown.high, "n": shown.n}
    said = {"verdict": decisive.verdict, "why": decisive.why, "finding": finding.text, "figure": finding.figure or ""}
    return row | said
