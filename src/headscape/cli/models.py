"""Commands about models: list and fetch, check."""

from __future__ import annotations

from typing import Annotated

import typer

from headscape.cli.old import (
    DeviceOption,
    JsonOption,
    ModelArgument,
    OnlineOption,
    QuietOption,
    WeightsOption,
    app,
    load,
    out,
    print_json,
    print_table,
    sayer,
)
from headscape.errors import HeadscapeError


@app.command(epilog="Example: `headscape models --get smollm2-135m`")
def models(
    get: Annotated[list[str] | None, typer.Option("--get", help="Fetch the weights of this model.")] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """List the bundled models, or fetch the weights of one."""
    from headscape.attention import bundled
    from headscape.attention.models import list_models
    from headscape.runs import human_bytes

    for name in get or []:
        folder = bundled.fetch(name, sayer(quiet))
        out.print(str(folder), soft_wrap=True, highlight=False)
    if get:
        return
    entries = list_models()
    if as_json:
        print_json([vars(entry) for entry in entries])
        return
    rows = [
        [e.name, e.summary, e.licence, "here" if e.present else f"fetch {human_bytes(e.download)}"] for e in entries
    ]
    print_table("Bundled models", ["name", "what", "licence", "weights"], rows)
    out.print("Any model folder, .gguf file or hub id works too.", highlight=False)


@app.command(epilog="Example: `headscape check smollm2-135m`")
def check(
    model: ModelArgument,
    device: DeviceOption = "auto",
    weights: WeightsOption = "float32",
    online: OnlineOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Check that headscape captures a model exactly: its logits under capture against its own."""
    from headscape.attention.capture import check_parity
    from headscape.attention.tapping import way_of

    loaded = load(model, device, weights, online, quiet)
    parity = check_parity(loaded)
    facts = {
        **loaded.describe(),
        "tapped by": way_of(loaded.module, loaded.attention),
        "attention layers captured": parity.n_layers,
        "blocks": sorted({site.block for site in loaded.sites}),
        "largest logit": parity.scale,
        "largest difference": parity.max_difference,
        "parity": "ok" if parity.ok else "FAILED",
    }
    if as_json:
        print_json(facts)
    else:
        shown = [[k, ", ".join(map(str, v)) if isinstance(v, (list, tuple)) else str(v)] for k, v in facts.items()]
        print_table(f"{model}", ["", ""], shown)
    if not parity.ok:
        raise HeadscapeError(f"logits under capture differ by {parity.max_difference:.2g}: {model} is not supported")
