"""The shape of the source: small functions, few parameters, the same files in every study."""

import ast
import re
from pathlib import Path

import pytest

import headscape as hs

SRC = Path(__file__).parents[1] / "src" / "headscape"
LINES, PARAMETERS = 60, 8
SIGNATURES_OF_OTHERS = {"intercept.py": {"_fused"}}  # stands in for torch's scaled_dot_product_attention
STUDIES = sorted(folder for folder in (SRC / "studies").iterdir() if (folder / "study.py").is_file())


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def lines_of(node):
    docstring = ast.get_docstring(node, clean=False) or ""
    return node.end_lineno - node.lineno + 1 - len(docstring.splitlines())


def parameters_of(node):
    named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [each.arg for each in named if each.arg not in ("self", "cls")]


@pytest.mark.parametrize("room", sorted(path.name for path in SRC.iterdir() if path.is_dir() or path.suffix == ".py"))
def test_functions_are_small_and_take_few_parameters(room):
    files = [SRC / room] if room.endswith(".py") else sorted((SRC / room).rglob("*.py"))
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        public = {*hs.__all__, "__init__"} | SIGNATURES_OF_OTHERS.get(file.name, set())
        for node in functions(tree):
            assert lines_of(node) <= LINES, f"{file.name}: {node.name} has {lines_of(node)} lines"
            if room != "cli" and node.name not in public:
                assert len(parameters_of(node)) <= PARAMETERS, f"{file.name}: {node.name} takes {parameters_of(node)}"


@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: folder.name)
def test_who_knows_one_study_knows_all(folder):
    files = {path.name for path in folder.iterdir()}
    assert files >= {"__init__.py", "study.py", "result.py", "findings.py", "figures.py", "figures.toml"}


FOUR = ("study", "result", "findings", "figures")


def test_a_modules_test_is_found_by_its_name():
    """test_NAME.py in the mirrored folder; a file of another name says which modules it tests as well.

    The four files of a study are tested in its test_study.py, unless they have a test of their own.
    """
    tests = Path(__file__).parent
    files = {path: path.read_text(encoding="utf-8") for path in tests.rglob("test_*.py")}
    said = [
        word
        for text in files.values()
        for also in re.findall(r"^Also tests ([^\"]+)\.$", text, re.M)
        for word in re.split(r",\s+", also)
    ]
    modules = {
        ".".join(p.relative_to(SRC).with_suffix("").parts): p
        for p in SRC.rglob("*.py")
        if p.name not in ("__init__.py", "__main__.py", "version.py")
    }
    assert len(set(said)) == len(said) and set(said) <= set(modules)
    for name, path in modules.items():
        place = tests / path.relative_to(SRC).parent
        names = [path.stem, *(["study"] if path.parent in STUDIES and path.stem in FOUR else [])]
        found = any((place / f"test_{each}.py").is_file() for each in names)
        assert found != (name in said), f"{name} has no test of its name, or is named although it has one"


def test_no_file_holds_what_an_unfinished_merge_leaves():
    root = SRC.parents[1]
    rooms = [root / name for name in ("src", "tests", "docs", "examples", "scripts", "benchmarks")]
    files = [
        path
        for room in rooms
        for kind in ("py", "md", "toml", "csv", "json", "js", "css", "html")
        for path in room.rglob(f"*.{kind}")
    ]
    files = [path for path in files if "_build" not in path.parts] + [*root.glob("*.md"), *root.glob("*.toml")]
    left = re.compile(r"^(<{7}|>{7}) ", re.M)
    assert not [
        path.relative_to(root) for path in files if left.search(path.read_text(encoding="utf-8", errors="replace"))
    ]
