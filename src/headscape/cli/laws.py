"""The command that draws random vectors and matrices: chapters 5 and 6 of Wertich's thesis."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headscape.cli import options as o
from headscape.cli.records import Working, command
from headscape.cli.shared import finish, numbers


@command(epilog="Example: `headscape laws --out runs/laws --dim 100 --radii 1,10`")
def laws(
    to: Annotated[Path, typer.Option("--out", help="The run directory; resumed when it exists.")] = Path("runs/laws"),
    dim: Annotated[int, o.count("Dimension of the vectors.", 8, 4096)] = 100,
    radii: Annotated[str, typer.Option(help="Lengths (norms) of the vectors, comma-separated.")] = "1,10",
    draws: Annotated[int, o.count("How many pairs and matrices are drawn.", 20)] = 400,
    asked: Working = Working(),
) -> None:
    """Draw random vectors and matrices and compare with chapters 5 and 6 of Wertich's thesis (2024); no model is needed."""
    from headscape.studies.laws import laws as run_laws

    lengths = tuple(numbers(radii, float, "1,10"))
    with asked.working("drawing") as how:
        result = run_laws(to, n=dim, radii=lengths, draws=draws, random_state=asked.seed, **how)
    finish(result, asked.as_json, at=to)
