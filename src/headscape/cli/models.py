"""Commands about models: list and fetch, check."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Annotated

import typer

from headscape.cli import options as o
from headscape.cli.records import Fetching, command
from headscape.cli.shared import app, out, print_facts, print_json, print_table, sayer
from headscape.errors import HeadscapeError


@app.command(epilog="Example: `headscape models --get smollm2-135m`")
def models(
    get: Annotated[list[str] | None, typer.Option("--get", help="Fetch the weights of this model.")] = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """List the bundled models, or fetch the weights of one."""
    from headscape.attention import bundled
    from headscape.attention.models import bundled_folder, list_models
    from headscape.runs import human_bytes

    for name in get or []:
        entry = bundled.find_bundled(name)
        # converted here too, so that the first use need not wait for it
        prepare = partial(bundled_folder, entry) if find_spec("transformers") else partial(bundled.fetch, name)
        out.print(str(prepare(sayer(quiet))), soft_wrap=True)
    if get:
        return
    entries = list_models()
    if as_json:
        print_json([vars(entry) for entry in entries])
        return
    rows = [
        [e.name, e.summary, e.quantized or "-", e.licence, "here" if e.present else f"fetch {human_bytes(e.download)}"]
        for e in entries
    ]
    print_table("Bundled models", ["name", "what", "quantized", "licence", "weights"], rows)
    out.print("Any model folder, .gguf file or hub id works too.")


@command(epilog="Example: `headscape check smollm2-135m`")
def check(
    model: o.Model,
    asked: Fetching = Fetching(),
) -> None:
    """Check that a model's weights are intact, and that capturing leaves its logits unchanged."""
    from headscape.attention.capture import check_parity
    from headscape.attention.models import verify_weights
    from headscape.attention.tapping import way_of

    loaded = asked.load(model)
    verified = verify_weights(loaded)
    parity = check_parity(loaded)
    facts = {
        **loaded.describe(),
        "weights read in full": f"SHA-256 {verified[:12]}...",
        "tapped by": way_of(loaded.module, loaded.attention),
        "attention layers captured": parity.n_layers,
        "blocks": sorted({site.block for site in loaded.sites}),
        "largest logit": parity.scale,
        "largest difference": parity.max_difference,
        "parity": "ok" if parity.ok else "FAILED",
    }
    print_facts(model, facts, asked.as_json)
    if not parity.ok:
        raise HeadscapeError(f"logits under capture differ by {parity.max_difference:.2g}: {model} is not supported")
