"""What table 1 found."""

from headscape.studies.table1.study import Table1Result

__all__ = ["Table1Result"]
