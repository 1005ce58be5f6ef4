"""The engines under their first address; they live in `headscape.studies.work.engines`."""

from headscape.studies.work.engines import ENGINES, Engine, Failure, LocalEngine, make_engine

__all__ = ["ENGINES", "Engine", "Failure", "LocalEngine", "make_engine"]
