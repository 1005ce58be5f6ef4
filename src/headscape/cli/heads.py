"""The command that names the heads of a role."""

from __future__ import annotations

import warnings
from typing import Annotated

import pandas as pd
import typer

from headscape.cli import options as o
from headscape.cli.shared import app, err, out, print_frame, print_json

COLUMNS = {
    "score": "score: share of the head's attention on the pattern; chance: the same for attention spread at random",
    "copying": "copying: 1 if the head raises the logit of the token it attends to, -1 if it lowers it",
    "holds": "share: of the inputs in which the head has the role; holds: whether it counts as a head of the role",
}


@app.command(epilog="Examples: `headscape heads runs/book`, `headscape heads runs/book --role induction --top 5`")
def heads(
    run: o.Run,
    role: Annotated[
        str | None,
        typer.Option(help="induction, previous, duplicate, first (sink), self, next, punctuation, local, ..."),
    ] = None,
    top: Annotated[int, typer.Option(help="How many heads to list per role.", min=1, max=o.MANY)] = 10,
    block: o.Block = None,
    as_json: o.Json = False,
) -> None:
    """Name the heads of a run by role: induction, previous token, attention sink and others, with the score expected by chance."""
    from headscape.errors import InputError
    from headscape.records import as_records
    from headscape.roles import BLOCK_ROLES, ROLES, find_role, role_name
    from headscape.runs import Run
    from headscape.studies.heads import find_heads

    meanings = ROLES | BLOCK_ROLES
    opened = Run.open(run)
    tables: dict[str, pd.DataFrame] = {}
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", UserWarning)
        for name in meanings if role is None else [find_role(role)]:
            try:
                found = find_heads(run, name, None, block=block)
            except InputError:
                if role is not None:
                    raise
                continue  # a pattern that nothing here can show
            tables[name] = found.head(top) if role is not None else found[found["holds"]].head(top)
    for line in dict.fromkeys(str(one.message) for one in heard):
        err.print(line, soft_wrap=True)  # also of JSON, which goes elsewhere
    if opened.gap:
        err.print(opened.gap, soft_wrap=True)
    if as_json:
        print_json({name: as_records(table) for name, table in tables.items()})
        return
    for name, table in tables.items():
        if len(table):
            print_frame(f"{role_name(name)}: {meanings[name]}", table)
    columns = [column for table in tables.values() if len(table) for column in table.columns]
    for line in [meaning for column, meaning in COLUMNS.items() if column in columns]:
        out.print(line, style="dim", soft_wrap=True)
    empty = [role_name(name) for name, table in tables.items() if not len(table)]
    if empty:
        out.print(f"no head of this role beyond chance: {', '.join(empty)}", highlight=False, markup=False)
