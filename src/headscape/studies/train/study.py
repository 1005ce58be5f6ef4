"""Does carrying scores along depth help? The same small network trained with four kinds of attention, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed

from headscape.errors import HeadscapeError, InputError
from headscape.hopfield.layer import Init
from headscape.hopfield.networks import ARMS, NetworkConfig, Transformer, arm
from headscape.hopfield.presets import Preset, preset
from headscape.runs import Run
from headscape.studies.train.data import ImageData, TextData, image_data, text_data
from headscape.studies.train.loop import Plan, Trial, run_trial
from headscape.studies.train.result import TrainResult
from headscape.studies.work.old import Progress, Say, Steps

__all__ = ["train"]

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
    jobs: int = 1,
    threads: int = 1,
    random_state: int = 0,
    progress: Progress = lambda done, total: None,
    say: Say = lambda _: None,
) -> TrainResult:
    """Train a network with each kind of attention and compare them on a test part that nothing was chosen on.

    For each arm, every learning rate is tried with the first seed; the `finalists` of lowest validation loss are run
    with the other seeds too, and the one whose mean validation loss over the seeds is lowest is taken. A seed means the
    same first weights and the same batches in every arm, so arms are compared within seeds. The weights judged are
    those of the best validation loss of a run.

    Parameters
    ----------
    name
        Of `headscape.hopfield.presets.PRESETS`: gpt, vit, xl are small; the others are the paper's sizes.
    out
        A run directory. Every run is kept there with its log and weights; a killed command goes on where it stopped,
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
    jobs, threads
        Runs at a time, and threads within one. The numbers do not depend on jobs.

    Raises
    ------
    InputError
        Unknown names, sizes or data that do not fit, a directory made with other settings.
    HeadscapeError
        An arm whose loss is not finite at any rate.
    """
    _check(arms, seeds, jobs, threads, evaluations, patience, finalists)
    attention = {a: arm(a, alpha, alpha_hidden, init) for a in arms}
    chosen = preset(name)
    network = replace(chosen.network, **dict(sizes or {}))
    data = _data(network, text, images, tokenizer, tokenizer_name)
    network = replace(network, outputs=data.classes if isinstance(data, ImageData) else data.vocabulary)
    plan = _plan(chosen, network, steps, batch, evaluations, patience)
    Transformer(replace(network, outputs=1, layers=1))  # sizes that do not fit are said before anything is written
    tried = tuple(dict.fromkeys(chosen.rates if rates is None else rates))
    if not tried or not all(0 < rate < 1 for rate in tried):
        raise InputError(f"learning rates lie between 0 and 1, not {', '.join(map(str, tried)) or 'none'}")
    settings = {
        "kind": "train",
        "name": name,
        **asdict(plan),
        "alpha": alpha,
        "alpha_hidden": alpha_hidden,
        "init": init,
        "threads": threads,
    }
    run = Run.create(out, config=settings, inputs=data.about)
    study = _Study(plan, data, run.path / "train", jobs, threads)
    first, others = random_state, [random_state + k for k in range(1, seeds)]
    kept = min(finalists, len(tried))
    n_runs = len(arms) * (len(tried) + kept * len(others))
    steps_done = Steps(progress, n_runs * evaluations)
    say(f"{n_runs} runs of {plan.steps} steps, kept in {study.folder}")
    logs = study.run([Trial(a, attention[a], rate, first) for a in arms for rate in tried], steps_done)
    final = {a: _ranked(logs, a)[:kept] for a in arms}
    final_trials = [Trial(a, attention[a], rate, seed) for a in arms for rate in final[a] for seed in others]
    logs += study.run(final_trials, steps_done)
    best = {a: _ranked([log for log in logs if log["trial"]["rate"] in final[a]], a)[0] for a in arms}
    say("learning rates: " + ", ".join(f"{a} {rate:g}" for a, rate in best.items()))
    about = data.about | ({} if isinstance(data, ImageData) else {"bytes_a_token": data.bytes_a_token})
    result = TrainResult.of_logs(
        logs, best, settings | {"rates": list(tried), "seeds": [first, *others], "finalists": kept}, about
    )
    result.save(study.folder)
    return result


def _check(
    arms: Sequence[str], seeds: int, jobs: int, threads: int, evaluations: int, patience: int, finalists: int
) -> None:
    if not arms:
        raise InputError(f"no arms given; there are {', '.join(ARMS)}")
    if len(set(arms)) < len(arms):
        raise InputError(f"each arm is named once, not {', '.join(arms)}")
    counts = {"seeds": seeds, "jobs": jobs, "threads": threads, "evaluations": evaluations, "finalists": finalists}
    for name, value in counts.items():
        if value < 1:
            raise InputError(f"{name} must be at least 1, not {value}")
    if patience < 0:
        raise InputError(f"patience must be at least 0, not {patience}")


def _data(
    network: NetworkConfig, text: str | Path | None, images: str | Path | None, tokenizer: Any, tokenizer_name: str
) -> TextData | ImageData:
    if network.kind == "vit":
        if text is not None:
            raise InputError("a ViT is trained on images, not on text")
        return image_data(images, network)
    if images is not None:
        raise InputError("a language model is trained on text, not on images")
    return text_data(text, tokenizer, network.tokens, tokenizer_name)


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


class _Study:
    """Runs trials, each in its folder, some at a time."""

    def __init__(self, plan: Plan, data: TextData | ImageData, folder: Path, jobs: int, threads: int) -> None:
        self.plan, self.data, self.folder, self.jobs, self.threads = plan, data, folder, jobs, threads

    def run(self, trials: Sequence[Trial], steps: Steps) -> list[dict[str, Any]]:
        """The logs, in the order of the trials."""
        if self.jobs == 1:
            return [self._one(trial, steps) for trial in trials]
        # each job gets its share of the bar when its run is over
        calls = (delayed(_quietly)(self.plan, self.data, t, self._folder(t), self.threads) for t in trials)
        logs = []
        for log in Parallel(n_jobs=self.jobs, return_as="generator")(calls):
            logs.append(log)
            for _ in range(self.plan.evaluations):
                steps.one()
        return logs

    def _one(self, trial: Trial, steps: Steps) -> dict[str, Any]:
        ticks = 0

        def tick() -> None:
            nonlocal ticks
            ticks += 1
            steps.one()

        log = run_trial(self.plan, self.data, trial, self._folder(trial), self.threads, tick)
        for _ in range(self.plan.evaluations - ticks):  # a run that was there, or stopped early
            steps.one()
        return log

    def _folder(self, trial: Trial) -> Path:
        return self.folder / "trials" / trial.name


def _quietly(plan: Plan, data: TextData | ImageData, trial: Trial, folder: Path, threads: int) -> dict[str, Any]:
    return run_trial(plan, data, trial, folder, threads, lambda: None)


def _ranked(logs: Sequence[Mapping[str, Any]], arm: str) -> list[float]:
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
