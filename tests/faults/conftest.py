"""Prints how many faults were injected: the counts of docs/reliability.md."""

import sys


def pytest_terminal_summary(terminalreporter):
    module = next((m for name, m in sys.modules.items() if name.endswith("test_kills") and hasattr(m, "COUNTS")), None)
    if module is not None and module.LONG:
        for (name, what), n in sorted(module.COUNTS.items()):
            terminalreporter.write_line(f"{name:10} {what:32} {n:5}")
        terminalreporter.write_line(f"{'all':43} {sum(module.COUNTS.values()):5}")
