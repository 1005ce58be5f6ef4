"""Units: which heads are removed together: single heads, the heads of a key/value head, or whole attention layers."""

from __future__ import annotations

from headscape.attention.models import Model
from headscape.attention.projections import layout_of, output_projections
from headscape.errors import InputError

__all__ = ["UNITS", "group_sizes", "units_of"]

UNITS = ("head", "group", "layer")


def group_sizes(model: Model) -> dict[str, int]:
    """Query heads per key/value head, for every attention module; 1 where the layer's layout is unknown."""
    part, outputs = model.module.get_submodule, output_projections(model)
    found = {}
    for site in model.sites:
        try:
            found[site.name] = layout_of(part(site.name), part(outputs[site.name]), site.n_heads).group
        except InputError:
            found[site.name] = 1
    return found


def units_of(model: Model, unit: str) -> dict[str, list[tuple[int, ...]]]:
    """The units of every attention module, as tuples of its heads.

    A group is a key/value head with the queries that use it: removing it whole shrinks the key/value cache.
    """
    if unit not in UNITS:
        raise InputError(f"the unit is one of {', '.join(UNITS)}, not {unit!r}")
    sizes = {site.name: site.n_heads if unit == "layer" else 1 for site in model.sites}
    if unit == "group":
        sizes = group_sizes(model)
    return {
        site.name: [tuple(range(h, h + sizes[site.name])) for h in range(0, site.n_heads, sizes[site.name])]
        for site in model.sites
    }
