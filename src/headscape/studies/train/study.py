"""Does carrying scores along depth help? The same small network trained with several kinds of attention, seed by seed.

An arm is one kind of attention under comparison (`headscape.hopfield.networks.ARMS`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Unpack

from headscape.errors import HeadscapeError, InputError
from headscape.fingerprints import digest
from headscape.hopfield.layer import Init
from headscape.hopfield.networks import ARMS, Attention, NetworkConfig, Transformer, arm
from headscape.hopfield.presets import Preset, preset
from headscape.records import save_record
from headscape.runs import Run
from headscape.studies.train.data import Data, TextData, check_source, image_data, text_data
from headscape.studies.train.loop import Plan, Trial, run_trial
from headscape.studies.train.result import TrainResult
from headscape.studies.work.folder import Folder, study_folder
from headscape.studies.work.how import How, Steps, Work
from headscape.studies.work.units import run_units

__all__ = ["train"]

Log = Mapping[str, Any]
IMAGE_EVALUATION = (10, 100)  # batches of 100 images at each evaluation, and at the end
TEXT_EVALUATION = (16, 64)  # batches of 8 windows


def train(
    name: str,
    out: str | Path,
    *,
    text: str | Path | None = None,
    images: str | Path | None = None,
    tokenizer: Any = None,
    tokenizer_name: str = "bytes",
    arms: Sequence[str] = tuple(ARMS),
    seeds: int = 3,
    rates: Sequence[float] | None = None,
    finalists: int = 1,
    steps: int | None = None,
    batch: int | None = None,
    sizes: Mapping[str, Any] | None = None,
    alpha: float = 0.5,
    alpha_hidden: float = 0.5,
    init: Init = "zero",
    evaluations: int = 10,
    patience: int = 0,
    random_state: int = 0,
    **how: Unpack[How],
) -> TrainResult:
    """Train a network with each kind of attention and compare them on a test part that was used for no choice.

    For each arm, every learning rate is tried with the first seed; the `finalists` of lowest validation loss are run
    with the other seeds too, and the one whose mean validation loss over the seeds is lowest is taken. A seed means the
    same first weights and the same batches in every arm, so arms are compared within seeds. The weights judged are
    those of the best validation loss of a run.

    Parameters
    ----------
    name
        Of `headscape.hopfield.presets.PRESETS`: gpt, vit, xl are small; the others are the paper's sizes.
    out
        A run directory. Every run is kept there with its log and weights; a killed command resumes where it stopped,
        and more arms, rates or seeds can be added later.
    text, images
        Text file or folder (default: the packaged prose); folder of Fashion-MNIST's files or an .npz.
    tokenizer
        Anything with encode and a length; None reads bytes. The vocabulary of the network follows it.
    arms
        Of standard, hidden, skip, both.
    finalists
        How many rates of an arm are run with all seeds. One is cheap; with two, a rate that did well once by luck does
        not win.
    sizes
        Changes to the preset's network: layers, heads, dim, tokens, ...
    alpha, alpha_hidden, init
        Of Modern Hopfield Attention.
    patience
        Evaluations without a better validation loss before a run stops early; 0 never stops.
    how
        jobs (runs at a time; the numbers do not depend on them), threads (within a run, 1 by default), engine, resume,
        progress, say: see `headscape.studies.work.how.How`.

    Raises
    ------
    InputError
        Unknown names, sizes or data that do not fit, a directory made with other settings.
    HeadscapeError
        An arm whose loss is not finite at any rate.
    """
    work = Work.of(**how)
    threads = 1 if work.asked_threads is None else work.asked_threads  # rounding depends on them
    if not arms or len(set(arms)) < len(arms):
        raise InputError(f"name each arm once, of {', '.join(ARMS)}; given were {', '.join(arms) or 'none'}")
    least = {"seeds": 1, "threads": 1, "evaluations": 1, "finalists": 1, "patience": 0}
    for count, value in zip(least, (seeds, threads, evaluations, finalists, patience), strict=True):
        if value < least[count]:
            raise InputError(f"{count} must be at least {least[count]}, not {value}")
    attention = {a: arm(a, alpha, alpha_hidden, init) for a in arms}
    chosen = preset(name)
    network = replace(chosen.network, **dict(sizes or {}))
    check_source(network, text, images)
    tried = tuple(dict.fromkeys(chosen.rates if rates is None else rates))
    if not tried or not all(0 < rate < 1 for rate in tried):
        raise InputError(f"learning rates must lie between 0 and 1, not {', '.join(map(str, tried)) or 'none'}")
    Transformer(replace(network, outputs=1, layers=1))  # sizes that do not fit are refused before anything is read
    data: Data = (
        image_data(images, network)
        if network.kind == "vit"
        else text_data(text, tokenizer, network.tokens, tokenizer_name)
    )
    plan = _plan(chosen, replace(network, outputs=data.outputs), steps, batch, evaluations, patience)
    shared = asdict(plan) | {"alpha": alpha, "alpha_hidden": alpha_hidden, "init": init, "threads": threads}
    settings = {
        **{"kind": "train", "name": name, **shared},
        **{"arms": list(arms), "rates": list(tried), "seeds": [random_state + k for k in range(seeds)]},
        "finalists": min(finalists, len(tried)),
    }
    path = Path(out).absolute()
    with work.started(next(p for p in (path, *path.parents) if p.is_dir())):
        run = Run.create(out, config={"kind": "train", "name": name, **shared}, inputs=data.about)
        with study_folder(run, TrainResult.study, settings, {"data": data.about}, work) as folder:
            logs, best = _compared(folder, plan, data, attention, settings, work)
            about = data.about | ({"bytes_a_token": data.bytes_a_token} if isinstance(data, TextData) else {})
            result = TrainResult.of_logs(logs, best, settings, about)
            folder.save(result)
    return result


def _plan(
    chosen: Preset, network: NetworkConfig, steps: int | None, batch: int | None, evaluations: int, patience: int
) -> Plan:
    steps, batch = chosen.steps if steps is None else steps, chosen.batch if batch is None else batch
    if steps < evaluations or batch < 1:
        raise InputError(f"{steps} steps with {evaluations} evaluations and a batch of {batch} is too little")
    at_each, at_end = IMAGE_EVALUATION if network.kind == "vit" else TEXT_EVALUATION
    return Plan(
        network=network,
        steps=steps,
        batch=batch,
        warmup=max(1, round(chosen.warmup * steps / chosen.steps)),
        weight_decay=chosen.weight_decay,
        floor=chosen.floor,
        label_smoothing=chosen.label_smoothing,
        evaluations=evaluations,
        patience=patience,
        eval_batches=at_each,
        test_batches=at_end,
    )


class _Evaluations(Steps):
    """Counts evaluations: those of a run in this process as they come, those of another when it is over."""

    def __init__(self, work: Work, runs: int, each: int) -> None:
        super().__init__(work.progress, runs * each)
        self._each, self._within = each, 0

    def tick(self) -> None:
        """One evaluation of the run in this process."""
        self._within += 1
        super().one()

    def one(self) -> None:
        """A run is over."""
        for _ in range(self._each - self._within):
            super().one()
        self._within = 0


def _compared(
    folder: Folder, plan: Plan, data: Data, attention: Mapping[str, Attention], settings: Mapping[str, Any], work: Work
) -> tuple[list[Log], dict[str, float]]:
    """Train all networks, each a unit of work; their logs, and the learning rate of each arm."""
    place = folder.units / f"data-{digest(data.about)[:12]}"  # where workers read the data
    if not (place / "result.json").is_file():
        save_record(data, place)
    rates, (first, *others), kept, threads = (settings[key] for key in ("rates", "seeds", "finalists", "threads"))
    n_runs = len(attention) * (len(rates) + kept * len(others))
    steps = _Evaluations(work, n_runs, plan.evaluations)
    work.say(f"{n_runs} runs of {plan.steps} steps, kept in {folder.units}")

    def trained(trials: Sequence[Trial]) -> list[Log]:
        units = {}
        for trial in trials:
            path = folder.unit(trial.name, asdict(plan), data.about, threads, asdict(trial), ending="json")
            units[trial.name] = (path, plan, place, trial, threads, None if work.engine.apart else steps.tick)
        run_units(run_trial, units, work, steps)
        return [json.loads(unit[0].read_text(encoding="utf-8")) for unit in units.values()]

    logs = trained([Trial(a, kind, rate, first) for a, kind in attention.items() for rate in rates])
    final = {a: _ranked(logs, a)[:kept] for a in attention}
    logs += trained([Trial(a, attention[a], rate, seed) for a in attention for rate in final[a] for seed in others])
    best = {a: _ranked([log for log in logs if log["trial"]["rate"] in final[a]], a)[0] for a in attention}
    work.say("learning rates: " + ", ".join(f"{a} {rate:g}" for a, rate in best.items()))
    return logs, best


def _ranked(logs: Sequence[Log], arm: str) -> list[float]:
    """Learning rates of an arm by mean validation loss over the seeds run, lowest first; diverged ones left out."""
    losses: dict[float, list[float]] = {}
    for log in logs:
        if log["trial"]["arm"] == arm:
            loss = math.inf if log["diverged"] else float(log["valid"]["loss"])
            losses.setdefault(float(log["trial"]["rate"]), []).append(loss)
    means = {rate: sum(values) / len(values) for rate, values in losses.items()}
    fine = [rate for rate in sorted(means, key=lambda rate: (means[rate], rate)) if math.isfinite(means[rate])]
    if not fine:
        raise HeadscapeError(f"arm {arm}: no loss stayed finite; take smaller learning rates")
    return fine
