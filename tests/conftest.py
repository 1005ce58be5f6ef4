"""Shared set-up: one thread per test process, models that are loaded once, and which tests are slow."""

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("headscape", deadline=None)  # a busy machine is not a failure
settings.load_profile("headscape")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"

SLOW = Path(__file__).with_name("slow.txt")
"""Tests and fixtures of more than a second, FILE::NAME; written by `make slow`."""
SLOW_FIXTURES = {"load", "chromium", "visit", "cluster"}
"""They need the weights of a bundled model, a browser or a cluster."""


def pytest_addoption(parser):
    parser.addoption("--write-slow", action="store_true", help="measure which tests are slow and list them")


@pytest.hookimpl(tryfirst=True)  # before pytest picks by marker
def pytest_collection_modifyitems(config, items):
    """Mark what is slow, by a rule and by the list; tests that share a fixture of their module share a process."""
    listed = set() if config.getoption("write_slow") else set(SLOW.read_text(encoding="utf-8").split())
    for item in items:
        file, _, name = item.nodeid.partition("[")[0].partition("::")
        fixtures = set(getattr(item, "fixturenames", ()))
        groups = {mark.args[0] for mark in item.iter_markers("xdist_group")}
        own = listed & {f"{file}::{each}" for each in (name, *fixtures)}
        if own or fixtures & SLOW_FIXTURES or "dask" in groups or item.get_closest_marker("models"):
            item.add_marker("slow")
        if not groups and any(_of_module(item, name) for name in fixtures):
            item.add_marker(pytest.mark.xdist_group(file))
    # what stays together comes first: a process that took it last would work on alone
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


def _of_module(item, fixture):
    """Whether a fixture is made once a module: two processes would make it twice."""
    return any(each.scope == "module" for each in item._fixtureinfo.name2fixturedefs.get(fixture, ()))


_seconds = Counter()


def _busy():
    """Seconds of the processor so far, with those of processes that have ended: the same on a busy machine."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    began = _busy()
    try:
        return (yield)
    finally:
        place = pyfuncitem.nodeid.partition("[")[0]
        _seconds[place] = max(_seconds[place], _busy() - began)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    began = _busy()
    try:
        return (yield)
    finally:
        if fixturedef.scope != "session":
            place = f"{request.node.nodeid.partition('::')[0]}::{fixturedef.argname}"
            _seconds[place] = max(_seconds[place], _busy() - began)


def pytest_sessionfinish(session):
    """Write the list anew for the files that ran."""
    if session.config.getoption("write_slow"):
        files = {item.nodeid.partition("::")[0] for item in session.items}
        others = {line for line in SLOW.read_text().split() if line.partition("::")[0] not in files}
        found = others | {name for name, seconds in _seconds.items() if seconds > 1}
        SLOW.write_text("".join(f"{name}\n" for name in sorted(found)))


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def load():
    """Load a bundled model once a session."""
    import headscape as hs

    loaded = {}

    def get(name):
        if name not in loaded:
            loaded[name] = hs.load_model(name, device="cpu")
        return loaded[name]

    return get
