"""Prints how many faults were injected: the counts of docs/reliability.md."""

import sys


def pytest_terminal_summary(terminalreporter):
    modules = [m for name, m in sys.modules.items() if name.rpartition(".")[2] in ("test_kills", "test_hostile")]
    for module in modules:
        counts = getattr(module, "COUNTS", {}) if module.LONG else {}
        for what, n in sorted(counts.items()):
            terminalreporter.write_line(f"{what if isinstance(what, str) else ' '.join(what):43} {n:5}")
        if counts:
            terminalreporter.write_line(f"{'all':43} {sum(counts.values()):5}")
