"""The first screen in words: the model, the input, what was run. Pairs of a label and a sentence, unescaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headscape.captures import Capture
from headscape.report.gather import Scene
from headscape.report.text import number
from headscape.runs import Run

__all__ = ["captures", "excerpt", "facts", "title"]

N_EXCERPT = 320  # characters of the input that are quoted


def title(run: Run) -> str:
    """Return what the page is about: the model's name, or the file the attention came from."""
    model, inputs = run.meta.get("model", {}), run.meta.get("inputs", {})
    source = str(model.get("source") or inputs.get("file") or run.path.name)
    return Path(source).name if source.startswith(("/", "./", "../", "~")) else source


def captures(run: Run) -> bool:
    """Whether the run was made to capture or import attention; in other runs, no attention is missing."""
    return run.meta.get("config", {}).get("kind") in (None, "capture", "import", "memory")


def facts(run: Run, scene: Scene, capture: Capture | None) -> list[tuple[str, str]]:
    """Return model and input, which make one line under the title, and the facts at the end of the page."""
    quantized = run.meta.get("model", {}).get("quantized")
    told = [("Model", _model(run, scene)), ("Input", _input(run, capture)), ("Run", _run(run, scene))]
    return told + ([("Weights", f"quantized: {quantized}")] if quantized else [])


def _count(n: int, thing: str, things: str = "") -> str:
    return f"{number(n)} {thing if n == 1 else things or thing + 's'}"


def _model(run: Run, scene: Scene) -> str:
    model = run.meta.get("model", {})
    layers = {(head.block, head.layer) for head in scene.heads}
    blocks = {head.block for head in scene.heads}
    given = "imported from a file" if run.meta.get("config", {}).get("kind") == "import" else "given in memory"
    none = f"attention {given}, no model" if captures(run) else "networks made for this study"
    parts = [
        (model.get("family"), f"{model.get('family')}, {model.get('task', 'task unknown')}"),
        (scene.heads, f"{_count(len(scene.heads), 'head')} in {_count(len(layers), 'layer')}"),
        (len(blocks) > 1, f"blocks {', '.join(sorted(blocks))}"),
        (isinstance(model.get("n_parameters"), int), f"{number(model.get('n_parameters'))} parameters"),
        (model.get("quantized"), f"weights {str(model.get('quantized')).partition(' ')[0]}"),
        (not model, none),
    ]
    return "; ".join(text for known, text in parts if known)


def _input(run: Run, capture: Capture | None) -> str:
    inputs, config = run.meta.get("inputs", {}), run.meta.get("config", {})
    n_batch = len(capture) if capture is not None else config.get("batches", 0)
    kind = inputs.get("kind")
    if kind == "images":
        rows, columns = inputs.get("grid", ("?", "?"))
        return f"{_count(n_batch, 'image')} of {number(inputs.get('images', n_batch))}, {rows} x {columns} patches each"
    lengths = inputs.get("lengths") or []
    if kind == "ids" or lengths:
        what = "prompt" if kind == "text" else "input"
        few = list(dict.fromkeys(lengths))  # of two prompts in their order, of more from the shortest to the longest
        span = " and ".join(map(str, few)) if len(few) <= 2 else f"{min(few)} to {max(few)}"
        return f"{_count(n_batch, what)}{f' of {span} tokens' if lengths else ''}{'; each is one batch' if n_batch > 1 else ''}"
    if kind == "text":
        among = f" of {number(inputs['windows'])}" if isinstance(inputs.get("windows"), int) else ""
        pooled = f", pooled to {number(config['pool'])} blocks" if config.get("pool") else ""
        size, texts = number(config.get("tokens", "?")), _count(int(inputs.get("texts", 1)), "text")
        missing = ", ".join(map(str, run.missing_batches))
        gap = f"; batch {missing} is missing" if missing else ""
        return f"{number(n_batch)}{among} windows of {size} tokens{pooled}, from {texts}; each window is one batch{gap}"
    if inputs.get("file"):
        shape = " x ".join(str(n) for n in inputs.get("shape", []))
        return f"array {shape} (batch, layer, head, query, key), {_count(n_batch, 'batch', 'batches')}"
    if not captures(run):
        told = {name: value for name, value in inputs.items() if isinstance(value, str | int) and name != "sha256"}
        return "; ".join(f"{name} {number(value)}" for name, value in told.items()) or "described in the study below"
    return _count(n_batch, "batch", "batches") if n_batch else "not recorded"


def _run(run: Run, scene: Scene) -> str:
    done = [*(["capture"] if captures(run) else []), *(section.study for section in scene.sections)]
    parts = [", ".join(done)]
    if scene.missing:
        parts.append(f"missing: {', '.join(name for name, _ in scene.missing)} (see below)")
    seed = run.meta.get("config", {}).get("seed")
    if seed is not None:
        parts.append(f"seed {seed}")
    version, day = run.meta.get("headscape", "of unknown version"), str(run.meta.get("created", ""))[:10]
    return "; ".join([*parts, f"headscape {version}, {day}"])


def excerpt(capture: Capture | None, inputs: Mapping[str, Any]) -> str:
    """Return the opening of the first text, empty where the inputs are not text."""
    if capture is None or inputs.get("kind") != "text":
        return ""
    tokens: Sequence[str] = capture.batch(0).tokens(capture.blocks[0])[0]
    if not any(token[:1].isspace() for token in tokens):  # word pieces: spaces are not part of them
        tokens = [token.removeprefix("##") if token.startswith("##") else f" {token}" for token in tokens]
    text = " ".join("".join(tokens).split())
    return text[:N_EXCERPT].strip() + ("…" if len(text) > N_EXCERPT else "")
