"""Does carrying scores along depth help? The same small network trained with several kinds of attention, seed by seed.

An arm is one kind of attention under comparison (`headscape.hopfield.networks.ARMS`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeVar, Unpack

from headscape.attention.bundled import BUNDLED
from headscape.attention.models import device_of
from headscape.checks import integer, one_of
from headscape.checks import seed as check_seed
from headscape.errors import HeadscapeError, InputError
from headscape.fingerprints import digest
from headscape.hopfield.networks import ARMS, Attention, NetworkConfig, Transformer, arm, base_arm
from headscape.hopfield.presets import PRESETS, Preset, preset
from headscape.hopfield.pretrained import check_further, config_of
from headscape.hopfield.state import Init
from headscape.records import save_record
from headscape.runs import Run
from headscape.storage import read_json
from headscape.studies.train.augment import AUGMENTS
from headscape.studies.train.baselines import run_baselines
from headscape.studies.train.data import Data, TextData, check_source, image_data, text_data
from headscape.studies.train.loop import AUTOCAST, Plan, Trial, run_trial
from headscape.studies.train.result import TrainResult, diverged
from headscape.studies.work.folder import Folder, working_folder
from headscape.studies.work.how import How, Steps, Work
from headscape.studies.work.units import run_units

__all__ = ["train"]

Log = Mapping[str, Any]
_T = TypeVar("_T")
IMAGE_EVALUATION = (10, 100)  # batches of 100 images at each evaluation, and at the end
TEXT_EVALUATION = (16, 64)  # batches of 8 windows
MODEL_EVALUATION = (2, 8)  # the same, of a trained model: its windows are longer and cost more
DEFAULT_ARMS = ("standard", "hidden", "skip", "both", "longer")


def train(
    name: str,
    out: str | Path,
    *,
    text: str | Path | None = None,
    images: str | Path | None = None,
    tokenizer: Any = None,
    tokenizer_name: str = "bytes",
    arms: Sequence[str] = DEFAULT_ARMS,
    seeds: int = 3,
    rates: Sequence[float] | None = None,
    finalists: int = 1,
    search_steps: int | None = None,
    sizes: Mapping[str, Any] | None = None,
    alpha: float | Sequence[float] = 0.5,
    alpha_hidden: float | Sequence[float] = 0.5,
    init: Init = "zero",
    steps: int | None = None,
    batch: int | None = None,
    evaluations: int = 10,
    patience: int = 0,
    accumulate: int = 1,
    autocast: str = "",
    augment: str | None = None,
    device: str = "cpu",
    random_state: int = 0,
    **how: Unpack[How],
) -> TrainResult:
    """Train a network with each kind of attention and compare them on a test part that was used for no choice.

    For each arm, every learning rate is tried with the first seed; the `finalists` of lowest validation loss are run
    with all seeds, and the one whose mean validation loss over the seeds is lowest is taken. A seed means the same
    first weights and the same batches in every arm, so arms are compared within seeds. The weights judged are those of
    the best validation loss of a run. Also reported are what n-grams or a linear classifier reach, what each network
    loses when its attention is made uniform or removed, and, in the arm `longer`, a gain that should be detected. An arm
    that diverges at every rate, or in a seed at the rate taken, is listed with the reason and not compared.

    Parameters
    ----------
    name
        Of `headscape.hopfield.presets.PRESETS`: gpt, vit, xl are small; the others are the paper's sizes. Or a trained
        language model by name or folder: it is trained further, in the arm `hidden` with an a' that is raised from 0
        during the first half of the steps.
    out
        A run directory. Every run is kept there with its log and weights; a killed command resumes where it stopped,
        and more arms, rates or seeds can be added later.
    text, images
        Text file or folder (default: the packaged prose); folder of Fashion-MNIST's files or an .npz.
    tokenizer
        Anything with encode and a length; None reads bytes. The vocabulary of the network follows it.
    arms
        Of `headscape.hopfield.networks.ARMS`.
    finalists
        How many rates of an arm are run with all seeds. One is cheap; with two, a rate that was
        lucky once does not win.
    search_steps
        Steps of the runs that choose learning rates; by default as many as of the others.
    sizes
        Changes to the preset's network: layers, heads, dim, tokens, patch, ...
    alpha, alpha_hidden, init
        Parameters of Modern Hopfield Attention; with several values every combination is a separate arm.
    steps, batch
        Replace the preset's; a batch is the sequences or images of a step.
    evaluations
        Each keeps the weights and measures the layers.
    patience
        Evaluations without a better validation loss before a run stops early; 0 never stops.
    accumulate, autocast, device
        Parts of a batch that are run one after the other; number type of the forward pass (bfloat16, float16); cpu,
        cuda, mps or auto.
    augment
        Changes to training images: none, light, paper; as the preset says by default.
    how
        jobs (runs at a time; the numbers do not depend on them), threads (within a run, 1 by default), engine, resume,
        progress, say: see `headscape.studies.work.how.How`.

    Raises
    ------
    InputError
        Unknown names, sizes or data that do not fit, a directory made with other settings.
    HeadscapeError
        Standard attention, or every arm, diverges at all rates.

    >>> sizes = {"layers": 1, "heads": 2, "dim": 16, "tokens": 8}
    >>> short = {"seeds": 1, "rates": [1e-3], "steps": 4, "batch": 2, "evaluations": 1, "sizes": sizes}
    >>> result = hs.train("gpt", "runs/train", arms=("standard", "hidden"), **short)
    >>> result.to_frame()[["arm", "seeds"]]  # with score, change, what removing attention costs, ...
            arm  seeds
    0  standard      1
    1    hidden      1
    """
    work = Work.of(**how)
    threads = 1 if work.asked_threads is None else work.asked_threads  # rounding depends on them
    for count, value in {"seeds": seeds, "threads": threads, "finalists": finalists}.items():
        integer(count, value, low=1)
    check_seed(random_state)
    attention = _attentions(arms, alpha, alpha_hidden, init)
    chosen = _preset(name, attention)
    network = _sized(chosen.network, dict(sizes or {}))
    asked = {"steps": chosen.steps if steps is None else steps, "batch": chosen.batch if batch is None else batch}
    asked |= {"evaluations": evaluations, "patience": patience, "accumulate": accumulate}
    made = _plan(chosen, network, asked, autocast, chosen.augment if augment is None else augment, device)
    check_source(network, text, images, augment)
    tried = _rates(chosen.rates if rates is None else rates, search_steps, made)
    data = _data(name, network, text, images, tokenizer, tokenizer_name)
    made = replace(made, network=network if network.kind == "model" else replace(network, outputs=data.outputs))
    shared = asdict(made) | {"alpha": alpha, "alpha_hidden": alpha_hidden, "init": init, "threads": threads}
    settings = {
        **{"kind": "train", "name": name, **shared},
        **{"arms": list(attention), "rates": list(tried), "seeds": [random_state + k for k in range(seeds)]},
        **{"finalists": min(finalists, len(tried)), "search_steps": search_steps or made.steps},
    }
    config = {"kind": "train", "name": name, "network": asdict(made.network)}
    make = partial(Run.create, config=config, inputs=data.about)
    with working_folder(out, TrainResult.study, settings, {"data": data.about}, work, make) as folder:
        logs, best, baselines = _compared(folder, made, data, attention, settings, work)
        about = data.about | ({"bytes_a_token": data.bytes_a_token} if isinstance(data, TextData) else {})
        result = TrainResult.of_logs(logs, best, baselines, settings, about)
        folder.save(result)
    return result


def _sized(network: NetworkConfig, sizes: Mapping[str, Any]) -> NetworkConfig:
    """A network of other sizes; one that it does not have is refused."""
    without = {"vit": {"tokens"}, "model": set(vars(network)) - {"tokens"}}.get(network.kind, {"patch", "image"})
    what = {"vit": "a ViT", "model": "a model that is trained further"}.get(network.kind, "a language model")
    for name in sizes:
        if name in without:
            raise InputError(f"{what} takes no {name}; leave it out")
    return replace(network, **sizes)


def _rates(asked: Sequence[float], search_steps: int | None, plan: Plan) -> tuple[float, ...]:
    """The learning rates to try, each once."""
    rates = tuple(dict.fromkeys(asked))
    if not rates or not all(0 < rate < 1 for rate in rates):
        raise InputError(f"learning rates must lie between 0 and 1, not {', '.join(map(str, rates)) or 'none'}")
    if search_steps is not None and search_steps < plan.evaluations:
        raise InputError(
            f"{search_steps} steps to choose a learning rate are too few for {plan.evaluations} evaluations"
        )
    return rates


def _data(name: str, network: NetworkConfig, text: Any, images: Any, tokenizer: Any, tokenizer_name: str) -> Data:
    """What the network is trained on; sizes that do not fit are refused before anything is read."""
    if network.kind != "model":
        Transformer(replace(network, outputs=1, layers=1))
    if network.kind == "vit":
        return image_data(images, network)
    data = text_data(text, tokenizer, network.tokens, tokenizer_name)
    for part in data.parts:
        data.examples(part, 1, network)  # a text that is too short is refused before anything is written
    if network.kind == "model" and data.outputs > network.outputs:
        raise InputError(
            f"the tokenizer has {data.outputs} tokens, {name} {network.outputs}; give its own: --tokenizer {name}"
        )
    return data


def _attentions(
    arms: Sequence[str], alpha: float | Sequence[float], alpha_hidden: float | Sequence[float], init: Init
) -> dict[str, Attention]:
    """The attention of each arm; with several alphas, of each combination that an arm uses, named by them."""
    if not arms or len(set(arms)) < len(arms):
        raise InputError(f"name each arm once, of {', '.join(ARMS)}; given were {', '.join(arms) or 'none'}")
    visible, hidden = ([x] if isinstance(x, float | int) else list(x) for x in (alpha, alpha_hidden))
    if not visible or not hidden:
        raise InputError("give at least one alpha and one alpha_hidden")
    found: dict[str, Attention] = {}
    for name, a, b in product(arms, visible, hidden):
        made = arm(name, a, b, init)
        said = [f"a={a:g}"] if len(visible) > 1 and ARMS[name].scaled else []
        said += [f"a'={b:g}"] if len(hidden) > 1 and ARMS[name].hidden else []
        found.setdefault(" ".join([name, *said]), made)
    return found


def _plan(
    chosen: Preset, network: NetworkConfig, counts: Mapping[str, int], autocast: str, augment: str, device: str
) -> Plan:
    for name, value in counts.items():
        if value < (0 if name == "patience" else 1):
            raise InputError(f"{name} must be at least {0 if name == 'patience' else 1}, not {value}")
    steps = counts["steps"]
    if steps < counts["evaluations"]:
        raise InputError(f"{steps} steps are too few for {counts['evaluations']} evaluations")
    if counts["batch"] % counts["accumulate"]:
        raise InputError(f"a batch of {counts['batch']} cannot be run in {counts['accumulate']} equal parts")
    if autocast:
        one_of("autocast", autocast, AUTOCAST)
    one_of("augment", augment, AUGMENTS)
    at_each, at_end = {"vit": IMAGE_EVALUATION, "model": MODEL_EVALUATION}.get(network.kind, TEXT_EVALUATION)
    return Plan(
        network=network,
        **counts,
        warmup=max(1, round(chosen.warmup * steps / chosen.steps)),
        weight_decay=chosen.weight_decay,
        floor=chosen.floor,
        warmup_rate=chosen.warmup_rate,
        cooldown=round(chosen.cooldown * steps / chosen.steps),
        label_smoothing=chosen.label_smoothing,
        eval_batches=at_each,
        test_batches=at_end,
        augment=augment,
        autocast=autocast,
        device=device_of(device),
        ramp=steps // 2 if network.kind == "model" else 0,
    )


def _preset(name: str, attention: Mapping[str, Attention]) -> Preset:
    """What a name stands for; a trained language model is trained further: 100 steps of 1,024 tokens.

    Arms that it cannot take are refused.
    """
    if name in PRESETS or not (name in BUNDLED or Path(name).is_dir()):
        return preset(name)
    for kind in attention.values():
        check_further(kind)
    return Preset(f"{name}, trained further", config_of(name, 256), 4, 100, (5e-5,), 10, weight_decay=0.01)


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
        """Count a run that ended, with the steps it left out."""
        for _ in range(self._each - self._within):
            super().one()
        self._within = 0


def _compared(
    folder: Folder, plan: Plan, data: Data, attention: Mapping[str, Attention], settings: Mapping[str, Any], work: Work
) -> tuple[list[Log], dict[str, float], dict[str, float]]:
    """Train all networks, each a unit of work; their logs, the learning rate of each arm, and the baselines."""
    place = folder.units / f"data-{digest(data.about)[:12]}"  # where workers read the data
    if not (place / "result.json").is_file():
        save_record(data, place)
    rates, seeds, kept, threads = (settings[key] for key in ("rates", "seeds", "finalists", "threads"))
    free = [a for a in attention if base_arm(a).stretch == 1 or "standard" not in attention]
    searched = len(rates) > kept
    n_runs = len(attention) * kept * len(seeds) + searched * len(free) * len(rates)
    steps = _Evaluations(work, n_runs + 1, plan.evaluations)
    work.say(f"{n_runs} run{'s' * (n_runs > 1)} of {plan.steps} steps, kept in {folder.units}")
    file = folder.unit("baselines", asdict(plan.network), plan.test_batches, data.about, ending="json")
    run_units(run_baselines, {"baselines": (file, place, plan.network, plan.test_batches)}, work, steps)

    def trained(trials: Sequence[Trial]) -> list[Log]:
        units = {}
        for trial in trials:
            path = folder.unit(trial.name, asdict(plan), data.about, threads, asdict(trial), ending="json")
            units[trial.name] = (path, plan, place, trial, threads, None if work.engine.apart else steps.tick)
        run_units(run_trial, units, work, steps)
        return [read_json(unit[0]) for unit in units.values()]

    def trial(a: str, rate: float, seed: int) -> Trial:
        stretch = base_arm(a).stretch
        return Trial(a, attention[a], rate, seed, 0 if stretch == 1 else round(stretch * plan.steps))

    def as_standard(found: dict[str, _T]) -> dict[str, _T]:
        """Arms that only change the number of steps take what standard attention takes; diverged ones nothing."""
        source = {a: a if a in free else "standard" for a in attention}
        return {a: found[source[a]] for a in attention if source[a] in found}

    search: list[Log] = []
    final = {a: list(rates) for a in attention}
    if searched:
        short = settings["search_steps"]
        tries = [trial(a, rate, seeds[0]) for a in free for rate in rates]
        search = trained(tries if short == plan.steps else [replace(t, steps=short, kept=False) for t in tries])
        final = as_standard({a: found[:kept] for a, found in _ranked(search).items()})
        for _ in range((len(attention) - len(final)) * kept * len(seeds)):
            steps.one()  # of arms that diverged
        work.say("learning rates: " + ", ".join(f"{a} {_slashed(final[a]) if a in final else '-'}" for a in free))
    logs = trained([trial(a, rate, seed) for seed in seeds for a in final for rate in final[a]])
    ranked = _ranked(logs)
    best = {a: found[0] for a, found in as_standard(ranked).items() if found[0] in ranked.get(a, ())}
    return [log for log in search if log not in logs] + logs, best, read_json(file)


def _slashed(rates: Sequence[float]) -> str:
    return "/".join(f"{rate:g}" for rate in rates)


def _ranked(logs: Sequence[Log]) -> dict[str, list[float]]:
    """Learning rates of each arm by mean validation loss over the seeds run, lowest first.

    Rates that diverged with any seed are left out, and so are arms without another; not standard attention, nor all arms.
    """
    losses: dict[str, dict[float, list[float]]] = {}
    for log in logs:
        loss = math.inf if log["diverged"] else float(log["valid"]["loss"])
        losses.setdefault(log["trial"]["arm"], {}).setdefault(float(log["trial"]["rate"]), []).append(loss)
    ranked = {}
    for name, by_rate in losses.items():
        means = {rate: sum(values) / len(values) for rate, values in by_rate.items()}
        ranked[name] = [r for r in sorted(means, key=lambda rate: (means[rate], rate)) if math.isfinite(means[r])]
    found = {name: rates for name, rates in ranked.items() if rates}
    if not found or ("standard" in losses and "standard" not in found):
        name = "standard" if "standard" in losses else next(iter(losses))
        raise HeadscapeError(f"arm {name} diverged: {diverged(logs, name)}; take smaller learning rates")
    return found
