"""Every code block of the documents is run (Python), or read by the real parser of the command line (shell).

Most commands are run too, on a tiny network in place of the one they name.
"""

import ast
import contextlib
import inspect
import os
import re
import runpy
import shlex
import sys
from argparse import ArgumentParser
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
import typer
from markdown_it import MarkdownIt
from typer.testing import CliRunner

import headscape as hs
from headscape.cli import app
from writers import tiny

CLONE = Path(__file__).parents[2]
PAGES = [
    CLONE / "README.md",
    CLONE / "CONTRIBUTING.md",
    CLONE / "CHANGELOG.md",
    *sorted((CLONE / "docs").glob("**/*.md")),
]
PAGES = [page for page in PAGES if not {"_build", "made"} & set(page.parts)]
TUTORIALS = sorted((CLONE / "docs" / "tutorials").glob("*.py"))
SHELL, OUTPUT = {"", "sh"}, {"text", "json"}
DIRECTIVES = {"{eval-rst}", "{image}", "{include}", "{math}", "{toctree}"}  # of Sphinx: none holds code
MAKE = set(re.findall(r"^(\w+):", (CLONE / "Makefile").read_text(), re.M))
ELSEWHERE = {"dask", "export", "llama-cli", "pip", "pre-commit"}  # programs of others
COMMANDS = typer.main.get_command(app)


def fences(page, languages):
    found = [token for token in MarkdownIt().parse(page.read_text()) if token.type == "fence"]
    return [token.content for token in found if token.info.strip() in languages]


def named(pages):
    return [pytest.param(page, id=page.relative_to(CLONE).as_posix()) for page in pages]


def reads(line, mention=False):
    """Parse a line as the shell and the program would; nothing is run. A mention, `headscape report`, may lack arguments."""
    words = shlex.split(line, comments=True)
    if not words:
        return
    program, *arguments = words
    if program == "headscape" and arguments[:1] not in (["--version"], ["--help"]):
        command = COMMANDS.get_command(None, arguments[0])
        assert command is not None, line
        try:
            command.make_context(arguments[0], arguments[1:])
        except Exception as error:
            if not mention or type(error).__name__ != "MissingParameter":
                raise
    elif program == "make":
        assert set(takewhile(lambda word: "=" not in word, arguments)) <= MAKE, line
    elif program == "python":
        assert (CLONE / arguments[0]).is_file(), line
    else:
        assert program in ELSEWHERE | {"headscape"}, line


@pytest.mark.parametrize("page", named(PAGES))
def test_a_block_says_what_it_is(page):
    for token in MarkdownIt().parse(page.read_text()):
        assert token.type != "code_block", token.content  # indented: nothing would say what it is
        if token.type == "fence":
            assert token.info.split(" ")[0] in {"python"} | SHELL | OUTPUT | DIRECTIVES, token.content


@pytest.mark.parametrize("page", named([page for page in PAGES if fences(page, SHELL)]))
def test_shell_blocks_are_read_by_the_parser(page):
    for block in fences(page, SHELL):
        for line in block.replace("\\\n", " ").splitlines():
            reads(line)


@pytest.mark.parametrize("page", named([*PAGES, *TUTORIALS]))
def test_commands_in_sentences_are_read_by_the_parser(page):
    for command in re.findall(r"(?<!`)`{1,2}(headscape [^`]+)`", page.read_text()):
        for line in command.split(";"):
            if "..." not in line and "/" not in shlex.split(line):
                reads(line, mention=True)


class ParsedError(Exception):
    """A script has read its command line."""


def scripts(page):
    """Every line that starts a script of the repository, in shell blocks and in sentences, once."""
    lines = [line for block in fences(page, SHELL) for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"(?<!`)`{1,2}(python [a-z]\S+\.py[^`]*)`", page.read_text())
    return list(dict.fromkeys(line for line in lines if re.match(r"python \S+\.py", line)))


def accepted(line, monkeypatch):
    """Start a script up to where it has parsed its arguments; of one without a parser the options must be in its text."""
    _, name, *arguments = shlex.split(line, comments=True)
    script = CLONE / name
    if "ArgumentParser(" not in script.read_text():
        assert all(word in script.read_text() for word in arguments if word.startswith("-")), line
        return
    read = ArgumentParser.parse_args

    def parse(self, *args, **rest):
        raise ParsedError(read(self, *args, **rest))

    with monkeypatch.context() as patch:
        patch.setattr(ArgumentParser, "parse_args", parse)
        patch.setattr(sys, "argv", [str(script), *arguments])
        patch.syspath_prepend(script.parent)
        patch.setattr(os, "environ", os.environ.copy())
        with pytest.raises(ParsedError):
            runpy.run_path(str(script), run_name="__main__")


@pytest.mark.slow
@pytest.mark.parametrize("page", named([page for page in [*PAGES, *TUTORIALS] if scripts(page)]))
def test_scripts_take_the_options_that_pages_give_them(page, monkeypatch):
    for line in scripts(page):
        accepted(line, monkeypatch)


@pytest.mark.slow
def test_an_option_that_a_script_does_not_have_is_seen(monkeypatch, capsys):
    for line in ("python benchmarks/softmax.py --nonsense", "python benchmarks/spectra.py --repeats many"):
        with pytest.raises(SystemExit):
            accepted(line, monkeypatch)
    with pytest.raises(AssertionError):
        accepted("python scripts/prune_page.py --nonsense", monkeypatch)


def executed(page, tmp_path, monkeypatch, names=None):
    """Run the Python blocks of a page one after the other, in an empty folder; the last expression of each is shown."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"} if names is None else names
    for block in fences(page, {"python"}):
        with contextlib.redirect_stdout(None):
            exec(compile(block, page.name, "exec"), names)
    return names


@pytest.mark.parametrize("page", named([*PAGES, *TUTORIALS]))
def test_calls_in_sentences_name_what_there_is(page):
    for code in re.findall(r"(?<!`)`{1,2}([^`\n]*\bhs\.\w[^`\n]*)`", page.read_text()):
        with contextlib.suppress(SyntaxError):  # not a whole statement
            for node in ast.walk(ast.parse(code)):
                name = re.fullmatch(r"hs\.(\w+)", ast.unparse(node.func if isinstance(node, ast.Call) else node))
                assert name is None or name[1] in hs.__all__, code
                if name and isinstance(node, ast.Call):
                    words = {word.arg: ... for word in node.keywords}
                    given = [one for one in node.args if ast.unparse(one) != "..."]
                    inspect.signature(getattr(hs, name[1])).bind_partial(*given, **words)


LIGHT = [page for page in PAGES[3:] if fences(page, {"python"}) and page.name != "start.md"]


@pytest.mark.parametrize("page", named(LIGHT))
def test_python_blocks_run(page, tmp_path, monkeypatch):
    executed(page, tmp_path, monkeypatch)


def test_the_five_minutes_of_the_readme_run(load, tmp_path, monkeypatch):
    loaded = load("smollm2-135m")
    monkeypatch.setattr(hs, "load_model", {"smollm2-135m": loaded}.__getitem__)
    names = executed(CLONE / "README.md", tmp_path, monkeypatch)
    assert names["X"].values.shape[2] == 270 and (tmp_path / "report.html").is_file()
    assert fences(CLONE / "docs" / "start.md", {"python"}) == fences(CLONE / "README.md", {"python"})[:1]  # the same


def test_the_readme_is_short():
    assert len((CLONE / "README.md").read_text().splitlines()) < 120


STORIES = (
    *("README", "capture", "claims", "collapse", "compare", "compress", "gaussian", "hopfield", "index", "organize"),
    *("prompt", "prune", "report", "scale", "softmax", "spectra", "start"),
)
BEGUN = ("claims", "report", "scale", "spectra")  # their first command takes a run
MODELS = {"smollm2-135m", "minilm-l6", "vit-fmnist", "gemma3-270m", "llama-7b/", "llama-70b/"}
ELSEWHERE_TOO = {"--scheduler", "split"}  # another machine's cluster, and graphics cards to split a model over
SHORT = {
    "analyze": ["--tokens", "32"],
    "capture": ["--tokens", "32"],
    "claims": ["--only", "spectra"],
    "collapse": ["--batches", "2"],
    "prune": ["--windows", "4"],
    "train": ["--steps", "20", "--layers", "2", "--heads", "2", "--dim", "8"],
}
CHEAP = ["--rates", "1e-3", "--finalists", "1", "--seeds", "1", "--batch", "8", "--evaluations", "1"]
"""For the page of hopfield, whose commands take a graphics card many hours; of an image 5 tokens in place of 197."""


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A Llama of three layers that reads bytes, and another."""
    folders = [tmp_path_factory.mktemp("networks") / f"tiny{seed}" for seed in range(2)]
    for seed, folder in enumerate(folders):
        model = tiny(seed=seed)
        model.module.save_pretrained(folder)
        model.tokenizer.save_pretrained(folder)
    return folders


def commands(page):
    for block in fences(page, SHELL):
        for line in block.replace("\\\n", " ").splitlines():
            program, *words = shlex.split(line, comments=True) or [""]
            if program == "headscape":
                yield words


def invoked(*words):
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, (words, done.output, done.exception)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", named([page for page in PAGES if page.stem in STORIES and page.parent.name != "theory"])
)
def test_commands_run_on_a_tiny_network(page, network, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("books").mkdir()
    Path("wiki").mkdir()
    for name in ("book.txt", "other.txt", "books/sense-and-sensibility.txt", "wiki/rank.txt", "wiki/judge.txt"):
        Path(name).write_text(hs.sample_text("rank" if name in ("book.txt", "wiki/rank.txt") else "judge"))
    if page.stem in BEGUN:
        captured = hs.capture(hs.load_model(network[0]), "book.txt", tokens=32, batches=3, out="runs/book")
        hs.organize(captured, model=None)
    if page.stem in ("claims", "collapse"):
        arms = ["--arms", "standard,both", "--rates", "1e-3", "--seeds", "1"]
        invoked("train", "gpt", "--text", "books", *SHORT["train"], *arms, "--out", "runs/train-gpt")
    if page.stem == "hopfield":
        images = np.random.default_rng(0).integers(0, 256, (400, 32, 32, 3)).astype(np.uint8)
        np.savez("cifar.npz", images=images, labels=np.arange(400) % 10)
    found = [words for words in commands(page) if not ELSEWHERE_TOO & set(words)]
    assert found
    for words in found:
        short = ["--tokens", "1024"] if "--pool" in words else [] if "--prompt" in words else SHORT.get(words[0], [])
        short = ["--seeds", "1"] if "--table1" in words else [] if "--step" in words else short
        known = dict.fromkeys(MODELS, str(network[0])) | {"2000": "20", "8": "2"}
        known |= {"gemma3-270m": str(network[1]), "runs/gemma3-270m-claims": "runs/book"}
        known |= {"cuda": "cpu", "wikitext": "books"}
        if page.stem == "hopfield" and words[0] == "train":
            short = [*short, *CHEAP, *(["--patch", "112"] if "--images" in words else ["--tokens", "32"])]
        invoked(*[known.get(word, word) for word in words if word != "--open"], *short)
