"""The first screen: heads by role and by name, the grid of layers and heads, and one interesting head already open."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import numpy as np

from headscape.errors import InputError
from headscape.report.gather import Column, Scene
from headscape.report.palette import DARK, LIGHT
from headscape.report.shades import Shades
from headscape.report.text import escape, number
from headscape.roles import BLOCK_ROLES, ENOUGH, MIXED, ROLES, find_role, role_name

__all__ = [
    "PANEL",
    "first_screen",
    "heads_by_role",
    "in_order",
    "opening_head",
    "role_column",
    "role_css",
    "strongest_first",
]

PANEL = '<section id="panel" class="panel" aria-label="Selected head" tabindex="-1" data-keys></section>'
ORDER = [role_name(role) for role in (*ROLES, *BLOCK_ROLES)]
N_NAMES = 4  # heads of a role that are named before one asks for all


def role_column(scene: Scene) -> Column | None:
    """The column that names roles, if there is one."""
    return next((c for c in scene.columns if not c.is_number and c.name.startswith("role")), None)


def heads_by_role(scene: Scene) -> dict[str, list[int]]:
    """The numbers of the heads of each role, strongest first; known roles in their order, `mixed` last."""
    column = role_column(scene)
    if column is None:
        return {}
    found: dict[str, list[int]] = {}
    for i, word in enumerate(column.values):
        if isinstance(word, str):
            found.setdefault(word, []).append(i)
    scores = {c.name: c.values for c in scene.columns if c.is_number}
    for role, heads in found.items():
        score = scores.get(_key(role))
        if score is not None:
            falling = (-np.nan_to_num(np.asarray(score, dtype=float))).tolist()
            heads.sort(key=falling.__getitem__)
    return {role: found[role] for role in in_order(found)}


def in_order(roles: Iterable[str]) -> list[str]:
    """Known roles in their order, others behind them, `mixed` last."""
    rank = {role: i for i, role in enumerate(ORDER)} | {MIXED: len(ORDER) + 1}
    return sorted(roles, key=lambda role: rank.get(role_name(role), len(ORDER)))


def _key(role: str) -> str:
    try:
        return find_role(role)
    except InputError:
        return role


def strongest_first(scene: Scene) -> list[int]:
    """The heads that have a role, role after role, the strongest of each first."""
    return [i for role, heads in heads_by_role(scene).items() if role != MIXED for i in heads]


def opening_head(scene: Scene) -> int:
    """The head to open the page with: the strongest induction head, else that of the first role there is."""
    return next(iter(strongest_first(scene)), 0)


def _classes(by_role: dict[str, list[int]]) -> dict[str | None, str]:
    """The classes of each role's colour: `mixed` and no role are grey; a role of most heads is pale, so that others stand out."""
    half = sum(map(len, by_role.values())) / 2
    found: dict[str | None, str] = {
        role: f"r{n % (len(LIGHT) - 1)}{' pale' if len(heads) > half else ''}"
        for n, (role, heads) in enumerate(by_role.items())
    }
    return found | {None: "rm", MIXED: "rm"}


def role_css() -> str:
    """The colours of the roles in both themes."""
    light, dark = ("".join(f"--r{i}:{colour};" for i, colour in enumerate(colours[:-1])) for colours in (LIGHT, DARK))
    classes = "".join(f".r{i}{{--role:var(--r{i})}}" for i in range(len(LIGHT) - 1))
    return f':root{{{light}}}:root[data-theme="dark"]{{{dark}}}{classes}.rm{{--role:var(--line)}}\n'


def first_screen(scene: Scene) -> str:
    """Chips of roles with their heads by name, search, the grid, and the panel of the selected head; empty without heads."""
    if not scene.heads:
        return ""
    if len(scene.heads) == 1:
        return f'<section id="heads" aria-label="Heads">{PANEL}</section>'
    by_role = heads_by_role(scene)
    classes = _classes(by_role)
    chips = "".join(_chip(scene, classes[role], role, heads) for role, heads in by_role.items())
    listed = f'<ul class="roles" aria-label="Heads by role" data-keys>{chips}</ul>' if chips else ""
    search = (
        '<div class="search" role="search"><label for="search">Find heads</label>'
        '<input id="search" type="search" placeholder="18.6, layer 3, induction…" autocomplete="off" '
        'aria-describedby="matches"><span id="matches" class="note" role="status"></span></div>'
    )
    return (
        f'<section id="heads" aria-label="Heads">{listed}<div class="first"><div class="overview">{search}'
        f"{_grid(scene, by_role, classes)}</div>{PANEL}</div></section>"
    )


def _name(scene: Scene, i: int) -> str:
    head = scene.heads[i]
    return str(head) if len({h.block for h in scene.heads}) > 1 else f"{head.layer}.{head.head}"


def _chip(scene: Scene, colour: str, role: str, heads: list[int]) -> str:
    names = heads if role != MIXED else []
    hidden = ' class="extra" hidden'
    links = "".join(
        f'<a href="#{escape(name)}"{hidden if n >= N_NAMES else ""}>{escape(name)}</a>'
        for n, name in enumerate(_name(scene, i) for i in names[:200])
    )
    more = '<span class="more" aria-hidden="true">…</span>' if len(names) > N_NAMES else ""
    return (
        f'<li class="{colour}"><button type="button" aria-pressed="false" data-role="{escape(role)}" '
        f'title="{escape(_about(role))}">'
        f'<i aria-hidden="true"></i>{escape(role)} <b>{number(len(heads))}</b></button>{links}{more}</li>'
    )


def _about(role: str) -> str:
    """What a head of a role does."""
    mixed = {MIXED: f"no known pattern holds {ENOUGH:.0%} of its attention"}
    return (ROLES | BLOCK_ROLES | mixed).get(_key(role), role)


def _grid(scene: Scene, by_role: dict[str, list[int]], classes: dict[str | None, str]) -> str:
    """The grid as HTML, so that it is there at the first paint and can be read without scripts."""
    role_of = {i: role for role, heads in by_role.items() for i in heads}
    order = sorted(range(len(scene.heads)), key=lambda i: (_block_rank(scene)[scene.heads[i].block], scene.heads[i]))
    width = 1 + max(head.head for head in scene.heads)
    lines, row, block = [_head_numbers(width)], 0, None
    score = None if by_role else _score(scene)
    shades = None if score is None else Shades.of(np.asarray(score.values, dtype=float))
    for (own, layer), group in groupby(order, key=lambda i: scene.heads[i][:2]):
        if own != block and len(_block_rank(scene)) > 1:
            lines.append(f'<div class="block" role="row"><span role="rowheader">{escape(own)}</span></div>')
        block, row = own, row + 1
        cells = "".join(
            _cell(scene, i, classes[role_of.get(i)], role_of.get(i), _shade(score, shades, i)) for i in group
        )
        lines.append(
            f'<div class="row" role="row"><b role="rowheader" aria-label="layer {layer}">{layer}</b>{cells}</div>'
        )
    colours = "" if score is None or shades is None else f" Color: {escape(score.name)}, {shades.said}."
    what = ", colored by role" if by_role else f", colored by {escape(score.name)}" if score is not None else ""
    size, first = f"--columns:{width};--rows:{row}", opening_head(scene)
    return (
        f'<div id="grid" role="grid" aria-label="Layers and heads{what}. Arrow keys move the selection." '
        f'style="{size}" data-keys>{"".join(lines)}</div>'
        f'<p class="note">One cell per head: rows are layers, columns are heads. Choose one, or move with the arrow keys.{colours} '
        f"{escape(_name(scene, first))} is head {scene.heads[first].head} of layer {scene.heads[first].layer}.</p>"
    )


def _head_numbers(width: int) -> str:
    """The line of head numbers above the grid; of many every fourth."""
    step = 1 if width <= 16 else 4
    numbers = "".join(
        f'<b role="columnheader" aria-label="head {n}" style="grid-column:{n + 2}">{n}</b>'
        for n in range(0, width, step)
    )
    return f'<div class="row numbers" role="row">{numbers}</div>'


def _block_rank(scene: Scene) -> dict[str, int]:
    return {block: n for n, block in enumerate(dict.fromkeys(head.block for head in scene.heads))}


def _score(scene: Scene) -> Column | None:
    """The score that colours the grid where no head has a role: that of the first grid that a study draws."""
    specs = [spec for section in scene.sections for spec in section.of_kind("head_grid")]
    wanted = str(specs[0].data.get("score", "")) if specs else ""
    numbers = [c for c in scene.columns if c.is_number]
    return next((c for c in numbers if c.name == wanted or c.name.startswith(f"{wanted} (")), None) if wanted else None


def _shade(score: Column | None, shades: Shades | None, i: int) -> tuple[str, str]:
    """The style that colours a head by its score, and the score in words; empty without one."""
    if score is None or shades is None:
        return "", ""
    value = float(np.asarray(score.values, dtype=float)[i])
    colour = shades.colour(value)
    return ("" if colour is None else f"--role:{colour}"), f"{score.name} {number(value)}"


def _cell(scene: Scene, i: int, colour: str, role: str | None, shade: tuple[str, str]) -> str:
    head, (style, score) = scene.heads[i], shade
    said = ": ".join(part for part in (f"layer {head.layer}, head {head.head}", role or score) if part)
    styles = ";".join(part for part in (f"grid-column:{head.head + 2}" if head.head else "", style) if part)
    place = f' style="{styles}"' if styles else ""
    return f'<span class="c {colour}" role="gridcell" tabindex="-1" data-i="{i}" aria-label="{escape(said)}"{place}></span>'
