"""The command that names the heads of a role."""

from __future__ import annotations

import warnings
from typing import Annotated

import typer

from headscape.cli import options as o
from headscape.cli.records import Ending, command
from headscape.cli.shared import err, out, print_frame, print_json, progress_bar

COLUMNS = {
    "score": "score: share of the head's attention on the pattern; chance: the same for attention spread at random",
    "copying": "copying: 1 if the head raises the logit of the token it attends to, -1 if it lowers it",
    "score_distance": "score_distance: share of the variance of a row's scores that the distance of query and key explains",
    "score_key": "score_key: the same of the key alone, whatever the query",
    "score_pair": "score_pair: the same of the pair of tokens, what distance and key leave",
    "sink_features": "sink_features: share of the first token's score that the five largest features of its key make",
    "has_role": "share: of the inputs in which the head has the role; has_role: whether its mean score gives it the role",
}


@command(epilog="Examples: `headscape heads runs/book`, `headscape heads runs/book --role induction --top 5`")
def heads(
    run: o.Run,
    role: Annotated[
        str | None,
        typer.Option(help="induction, previous, duplicate, first (sink), self, next, punctuation, local, ..."),
    ] = None,
    top: Annotated[int, o.count("How many heads to list per role.")] = 10,
    block: o.Block = None,
    asked: Ending = Ending(),
) -> None:
    """Name the heads of a run by role: induction, previous token, attention sink and others, with the score expected by chance."""
    from headscape.records import as_records
    from headscape.roles import BLOCK_ROLES, ROLES, role_name
    from headscape.runs import Run
    from headscape.studies.organize.by_role import heads_by_role

    meanings = ROLES | BLOCK_ROLES
    opened = Run.open(run)
    with warnings.catch_warnings(record=True) as heard, progress_bar("reading maps", asked.quiet) as progress:
        warnings.simplefilter("always", UserWarning)
        found = heads_by_role(run, [role] if role is not None else meanings, block=block, progress=progress)
    tables = {name: (one if role is not None else one[one["has_role"]]).head(top) for name, one in found.items()}
    for line in dict.fromkeys(str(one.message) for one in heard):
        err.print(line, soft_wrap=True)  # also of JSON, which goes elsewhere
    if opened.gap:
        err.print(opened.gap, soft_wrap=True)
    if asked.as_json:
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
