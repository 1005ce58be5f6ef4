"""Mutants: change one small thing in the source, and see whether a test notices.

The sample is seeded and takes a mutant from each room in turn. A mutant is tested in a copy of the tree by the tests of
its module (the doctests, then tests/ROOM/test_MODULE.py) and the others of its room; those marked slow come last.
Mutants that change no behaviour are listed with the reason in mutants.txt, beside this file.

    python scripts/mutants.py -n 20 --only geometry --seed 3
    python scripts/mutants.py --only geometry/flexible.py:53
    python scripts/mutants.py --quick    # without the slow tests: what survives is to be tried again with them
"""

import argparse
import ast
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "headscape"
ROOMS = ("wavelets", "geometry", "statistics", "collapse", "hopfield", "pruning", "attention", "studies", "top")
"""top: the modules in no room."""
WANTED = 0.9
"""Share of mutants to kill, not counting the equivalent ones."""
PAD = 64
"""Blanks after every source. So a mutant has the size and date of its source, and numba keeps its other functions."""
FAILING = 3
"""Tests of a room that may fail without a mutant; they are left out and named."""
KERNEL = re.compile(r"@(\w*kernel|compiled\w*)\b")
SWAPS = """Lt < <= >=, LtE <= < >, Gt > >= <=, GtE >= > <, Eq == !=, NotEq != ==, Is is is_not, IsNot is_not is, In in not_in,
NotIn not_in in, Add + -, Sub - +, Mult * /, Div / *, FloorDiv // *, Pow ** *, Mod % *, And and or, Or or and"""
OPERATORS = {name: [w.replace("_", " ") for w in words] for name, *words in map(str.split, SWAPS.split(","))}


class Mutant(NamedTuple):
    """A line before and after a change, and the whole source after it."""

    file: str
    line: int
    old: str
    new: str
    source: bytes
    compiled: bool  # by numba, whose cache does not see every change

    def __str__(self) -> str:
        return f"{self.file}:{self.line}\n- {self.old}\n+ {self.new}"


def nodes(node: ast.AST, compiled: bool) -> Iterator[tuple[ast.AST, bool]]:
    """What can change behaviour, so neither types nor error messages; and whether numba may have compiled it."""
    if isinstance(node, ast.FunctionDef):
        compiled = any(KERNEL.match(f"@{ast.unparse(decorator)}") for decorator in node.decorator_list)
    yield node, compiled
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            match child:
                case ast.Raise() | ast.JoinedStr() | ast.keyword(arg="strict") | ast.If(test=ast.Name("TYPE_CHECKING")):
                    continue
                case ast.AST() if name not in ("annotation", "returns", "decorator_list"):
                    yield from nodes(child, compiled)


def changes(node: ast.AST, source: bytes, starts: list[int]) -> Iterator[tuple[int, int, str]]:
    """Small changes of a node: (first byte, end, text to put there)."""

    def span(of: ast.expr) -> tuple[int, int]:
        return starts[of.lineno - 1] + of.col_offset, starts[of.end_lineno - 1] + of.end_col_offset

    operations: list[tuple[ast.expr, ast.AST, ast.expr]] = []
    match node:
        case ast.Compare():
            operations = list(zip([node.left, *node.comparators[:-1]], node.ops, node.comparators, strict=True))
        case ast.BoolOp():
            operations = [(node.values[0], node.op, node.values[1])]
        case ast.BinOp(right=ast.Constant(value=str()) | ast.JoinedStr()):
            pass  # a path
        case ast.BinOp():
            operations = [(node.left, node.op, node.right)]
        case ast.AugAssign():
            operations = [(node.target, node.op, node.value)]
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            start = span(node)[0]
            yield start, start + (3 if isinstance(node.op, ast.Not) else 1), ""
        case ast.Constant(value=bool()):
            yield *span(node), str(not node.value)
        case ast.Constant(value=int() | float()):
            yield *span(node), str(node.value + 1)
        case ast.If() | ast.IfExp():
            start, end = span(node.test)
            yield start, end, f"not ({source[start:end].decode()})"
        case ast.Slice():
            for start, end in (span(b) for b in (node.lower, node.upper) if b and not isinstance(b, ast.Constant)):
                yield start, end, f"({source[start:end].decode()}) + 1"
    for left, operator, right in operations:
        was, *others = OPERATORS.get(type(operator).__name__, ["@"])
        at = source.find(was.encode(), span(left)[1], span(right)[0])
        yield from ((at, at + len(was), other) for other in others)


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every mutant of a module."""
    source = path.read_bytes()
    starts = [0, *(found.end() for found in re.finditer(b"\n", source))]
    for node, compiled in nodes(ast.parse(source), KERNEL.search(source.decode()) is not None):
        for start, end, text in changes(node, source, starts):
            mutated = source[:start] + text.encode() + source[end:]
            line = source.count(b"\n", 0, start)
            old, new = (each.split(b"\n")[line].decode().strip() for each in (source, mutated))
            yield Mutant(str(path.relative_to(SOURCE)), line + 1, old, new, mutated, compiled)


def draw(n: int, seed: int, only: str) -> list[Mutant]:
    """A sample in which rooms take turns; `only` names a room, a module or a line."""
    chance, found = random.Random(seed), []
    for room in ROOMS:
        files = sorted(SOURCE.glob("[a-z]*.py") if room == "top" else (SOURCE / room).rglob("*.py"))
        mutants = [mutant for path in files for mutant in mutants_of(path)]
        if only and only != room:
            mutants = [m for m in mutants if only in (m.file, f"{m.file}:{m.line}") or m.file.startswith(f"{only}/")]
        found.append(chance.sample(mutants, len(mutants)))
    return [mutant for mutant in chain.from_iterable(zip_longest(*found)) if mutant][:n]


def tests_of(file: str) -> list[str]:
    """The tests of a module and its room, its own first."""
    room, own = (ROOT / "tests" / file).parent, f"test_{Path(file).name}"
    found = room.rglob("test_*.py") if "/" in file else room.glob("test_*.py")
    ordered = sorted(found, key=lambda path: (path.name != own, path))
    return [f"src/headscape/{file}", *(str(path.relative_to(ROOT)) for path in ordered)]


class Copy:
    """A copy of the tree, in which mutants are tested."""

    def __init__(self, place: Path, speeds: tuple[str, ...] = ("not slow", "slow")) -> None:
        self.place, self.tree, self.limits, self.speeds = place, place / "tree", dict[str, float](), speeds
        self.skip: dict[str, list[str]] = {}
        shutil.copytree(ROOT, self.tree, ignore=shutil.ignore_patterns(".?*", "__pycache__", "runs"))
        for path in (self.tree / "src").rglob("*.py"):
            self.write(path, path.read_bytes() + b" " * PAD)

    def write(self, path: Path, source: bytes) -> None:
        path.write_bytes(source)
        os.utime(path, (0, 0))

    def passes(self, tests: list[str], cache: str = "numba", limit: float | None = None) -> bool:
        """Whether all tests pass, and in time."""
        env = {"PYTHONPATH": str(self.tree / "src"), "NUMBA_CACHE_DIR": str(self.place / cache)}
        env |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "--hypothesis-seed=0", *tests, "-m"]
        for speed in self.speeds:
            with open(self.place / "output", "w") as output:
                how = {"stdout": output, "stderr": output, "start_new_session": True, "env": os.environ | env}
                process = subprocess.Popen([*command, speed], cwd=self.tree, **how)
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                status = process.wait()
            if status not in (0, 5):  # passed, or no tests of that speed
                return False
        return True

    def survives(self, mutant: Mutant) -> bool:
        """Whether no test notices the mutant."""
        tests, room, began = tests_of(mutant.file), str(Path(mutant.file).parent), time.monotonic()
        if room not in self.limits:
            failing: list[str] = []  # without a mutant
            while not self.passes([*tests, *(f"--deselect={test}" for test in failing)]):
                text = (self.place / "output").read_text()
                found = re.search(r"^(?:FAILED|ERROR) (\S+::\S+)", text, re.M)
                if found is None or len(failing) == FAILING:
                    sys.exit(f"tests of {mutant.file} fail without it\n{text[-3000:]}")
                failing.append(found.group(1))
                print(f"left out, failing without a mutant: {failing[-1]}\n", flush=True)
            self.skip[room], self.limits[room] = failing, 60 + 3 * (time.monotonic() - began)
        tests += [f"--deselect={test}" for test in self.skip[room]]
        path = self.tree / "src/headscape" / mutant.file
        whole = path.read_bytes()
        self.write(path, mutant.source.ljust(len(whole)))
        try:
            return self.passes(tests, f"{began}" if mutant.compiled else "numba", self.limits[room])
        finally:
            self.write(path, whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=100, help="how many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help=f"{', '.join(ROOMS)}; or a file, or FILE:LINE")
    parser.add_argument("--quick", action="store_true", help="leave out the slow tests")
    options = parser.parse_args()
    blocks = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").split("\n\n")
    equivalent = {tuple(block.strip().splitlines()[:3]) for block in blocks if block.strip()}
    fates: dict[str, list[Mutant]] = {"killed": [], "survived": [], "equivalent": []}
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        copy = Copy(Path(place), *([("not slow",)] if options.quick else []))
        for mutant in draw(options.n, options.seed, options.only):
            known = (mutant.file, f"- {mutant.old}", f"+ {mutant.new}") in equivalent
            fate = "equivalent" if known else "survived" if copy.survives(mutant) else "killed"
            fates[fate].append(mutant)
            print(f"{fate}: {mutant}\n", flush=True)
    print(", ".join(f"{len(found)} {fate}" for fate, found in fates.items()), *fates["survived"], sep="\n\n")
    sys.exit(len(fates["survived"]) > (1 - WANTED) * (len(fates["survived"]) + len(fates["killed"])))


if __name__ == "__main__":
    main()
