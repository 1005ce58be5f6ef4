"""Mutants: change one small thing in the source, and see whether a test notices.

The sample is seeded and takes a mutant from each room in turn. A mutant is tested in a copy of the tree: first by its
module's doctests and tests/ROOM/test_MODULE.py, then by the other tests of that folder, quick tests before slow ones,
then by quick tests elsewhere that import the module, or of the study that is called like a command.
Tests that noticed a mutant are run without one in the end, and must pass. mutants.txt lists the mutants that change no
behaviour, and why.

    python scripts/mutants.py -n 20 --only geometry --seed 3
    python scripts/mutants.py --only geometry/flexible.py:53
    python scripts/mutants.py --kept killed.txt --minutes 10    # again and again, until none is left
"""

import argparse
import ast
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "headscape"
ROOMS = [
    "wavelets",
    "geometry",
    "statistics",
    "collapse",
    "hopfield",
    "pruning",
    "attention",
    "studies",
    "report",
    "cli",
]
ROOMS += ["top"]
"""top: the modules in no room."""
WANTED = 0.9
"""Share of mutants to kill, not counting the equivalent ones."""
PAD = 64
"""Blanks after every source. So a mutant has the size and date of its source, and numba keeps its other functions."""
LIMITS = {"not slow": 300, "slow": 900}
"""Seconds that tests may take, by their marker."""
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

    @property
    def key(self) -> str:
        return f"{self.file}\n- {self.old}\n+ {self.new}"

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
    """A sample in which rooms take turns; `only` names a room, a module or a line.

    A mutant's place in the sample depends on its own two lines, so a change elsewhere leaves most of the sample alone.
    """
    found = []
    for room in ROOMS:
        files = sorted(SOURCE.glob("[a-z]*.py") if room == "top" else (SOURCE / room).rglob("*.py"))
        mutants = [mutant for path in files for mutant in mutants_of(path)]
        if only and only != room:
            mutants = [m for m in mutants if only in (m.file, f"{m.file}:{m.line}") or m.file.startswith(f"{only}/")]
        distinct = {mutant.key: mutant for mutant in mutants}.values()
        found.append(sorted(distinct, key=lambda mutant: blake2b(f"{seed}{mutant.key}".encode()).digest()))
    return [mutant for mutant in chain.from_iterable(zip_longest(*found)) if mutant][:n]


def stages_of(file: str) -> list[tuple[list[str], str]]:
    """The tests of a module: its doctests and own files, its folder, and quick ones elsewhere that are about it.

    Of the folder those come first that name the module most; quick tests come before slow ones.
    """
    folder, name = (ROOT / "tests" / file).parent, Path(file).stem
    texts = {path: path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py"))}
    inside = [path for path in texts if path.is_relative_to(folder) and ("/" in file or path.parent == folder)]
    own = [path for path in inside if path.stem == f"test_{name}"]
    others = sorted((path for path in inside if path not in own), key=lambda path: -texts[path].count(name))
    module = f"headscape.{file.removesuffix('.py').replace('/', '.')} "
    about = ROOT / "tests/studies" / name  # of a command: the tests of its study
    far = [path for path, text in texts.items() if path not in inside and (module in text or path.parent == about)]
    groups = [[f"src/headscape/{file}", *(str(path.relative_to(ROOT)) for path in own)]]
    groups += [[str(path.relative_to(ROOT)) for path in group] for group in (others, far)]
    stages = [(group, speed) for group in groups if group for speed in LIMITS]
    return stages[:-1] if far else stages


class Copy:
    """A copy of the tree, in which mutants are tested."""

    def __init__(self, place: Path) -> None:
        self.place, self.tree = place, place / "tree"
        shutil.copytree(ROOT, self.tree, ignore=shutil.ignore_patterns(".?*", "__pycache__", "runs"))
        for path in (self.tree / "src").rglob("*.py"):
            self.write(path, path.read_bytes() + b" " * PAD)

    def write(self, path: Path, source: bytes) -> None:
        path.write_bytes(source)
        os.utime(path, (0, 0))

    def failure(self, tests: list[str], speed: str, cache: str = "numba") -> str:
        """The first test that fails, "time" if they take too long, or nothing if all pass."""
        env = {"PYTHONPATH": str(self.tree / "src"), "NUMBA_CACHE_DIR": str(self.place / cache)}
        env |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "--hypothesis-seed=0", *tests]
        with open(self.place / "output", "w") as output:
            how = {"stdout": output, "stderr": output, "start_new_session": True, "env": os.environ | env}
            process = subprocess.Popen([*command, "-m", speed], cwd=self.tree, **how)
        try:
            if process.wait(LIMITS.get(speed, max(LIMITS.values()))) in (0, 5):  # passed, or no tests of that speed
                return ""
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return "time"
        text = (self.place / "output").read_text()
        found = re.search(r"^(?:FAILED|ERROR):? (.+?)(?: - |$)", text, re.M)
        return found.group(1) if found else tests[0]

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        path = self.tree / "src/headscape" / mutant.file
        whole = path.read_bytes()
        self.write(path, mutant.source.ljust(len(whole)))
        try:
            yield
        finally:
            self.write(path, whole)

    def killer(self, mutant: Mutant, quick: bool) -> str:
        """The first test that notices the mutant, if any; it is checked without the mutant in the end."""
        cache = f"{time.monotonic()}" if mutant.compiled else "numba"
        with self.mutated(mutant):
            stages = [stage for stage in stages_of(mutant.file) if not quick or stage[1] != "slow"]
            return next(filter(None, (self.failure(*stage, cache) for stage in stages)), "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=100, help="how many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help=f"{', '.join(ROOMS)}; or a file, or FILE:LINE")
    parser.add_argument("--quick", action="store_true", help="leave out the slow tests; survivors are not kept")
    parser.add_argument("--kept", type=Path, help="file of what was tried so far, read and added to")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no mutant after that time")
    options = parser.parse_args()
    blocks = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").split("\n\n")
    equivalent = {"\n".join(block.strip().splitlines()[:3]) for block in blocks}
    kept = dict[str, str]()
    if options.kept and options.kept.exists():
        kept = dict(reversed(block.split("\n", 1)) for block in options.kept.read_text().strip().split("\n\n"))
    fates: dict[str, list[Mutant]] = {"killed": [], "survived": [], "equivalent": [], "not tried": []}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        copy = Copy(Path(place))
        for mutant in draw(options.n, options.seed, options.only):
            if mutant.key in equivalent:
                fate = "equivalent"
            elif mutant.key in kept:
                fate = kept[mutant.key].split()[0]
            elif time.monotonic() - began > 60 * options.minutes:
                fate = "not tried"
            else:
                killer = copy.killer(mutant, options.quick)
                fate = "killed" if killer else "survived"
                print(f"{fate} {killer}\n{mutant}\n", flush=True)
                kept[mutant.key] = f"{fate} {killer}"
                if options.kept and (killer or not options.quick):
                    with open(options.kept, "a") as file:
                        file.write(f"{fate} {killer}\n{mutant.key}\n\n")
            fates[fate].append(mutant)
        killers = {line.removeprefix("killed ") for line in kept.values() if line.startswith("killed ")} - {"time"}
        broken = (
            killers and not (options.quick or fates["not tried"]) and copy.failure(sorted(killers), "slow or not slow")
        )
    if broken:
        sys.exit(f"a test that counts as noticing a mutant fails without it: {broken}")
    print(", ".join(f"{len(found)} {fate}" for fate, found in fates.items()), *fates["survived"], sep="\n\n")
    sys.exit(len(fates["survived"]) > (1 - WANTED) * (len(fates["survived"]) + len(fates["killed"])))


if __name__ == "__main__":
    main()
