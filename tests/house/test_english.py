"""Prose in documents, docstrings and comments avoids words that read as translated.

The rules are in CONTRIBUTING.md. The check finds what a search can find; it does not judge
sentences. A use that is right goes into ALLOWED, with enough context to be unique.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
LIBRARIES = "PyTorch|NumPy|JAX|Hugging Face|transformers|pandas|Dask|torchvision|diffusers"
RULES = {
    "next to, compared with, in addition to": r"\bbesides?\b",
    "only, by itself": r"\balone\b",
    "interleaved, alternately": r"\b(?:in|by) turns\b",
    "if, when": r"\b[Ww]here there (?:is|are)\b|(?:^|(?<=[.;:] )|(?<=\| ))Where (?![^.]*\?)[a-z]",
    "so that ... not": r"\blest\b",
    "is, are, is stored": r"\bl(?:ie|ies|ying)\b(?! detector)|\bst(?:and|ands|ood)\b(?! for\b)",
    "fully masked": r"\bsees? (?:no keys?|nothing)\b",
    "its own ..., a separate ...": r"\bof (?:its|their|his|your) own\b(?! \w)",
    "library before noun": rf"\b(?:tensors|arrays|models|modules|functions) of (?:{LIBRARIES})\b",
    "a heading that is a noun or a verb": r"^#+ (?:\d+\. )?What (?!.*\?$)",
    "American spelling": (
        r"\b(?:behaviour|colour|neighbour|centre|grey|licence|labelled|cancelled|modelling)\w*\b"
        r"|\b(?:normal|quant|initial|recogn|optim|material|serial|organ|vector|summar)is(?:e|ed|es|ing|ation)\b"
    ),
}
ALLOWED = (
    "append beside 1x32",  # names of benchmark cases
    "evict beside 1x32",
    "no longer stand",
)
FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1`*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`|``.*?``|<!--.*?-->|\]\([^)]*\)", re.DOTALL)


def blanked(text, pattern):
    """Remove what is not prose, and keep the numbers of lines."""
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def of_markdown(path):
    text = blanked(blanked(path.read_text(encoding="utf-8"), FENCE), CODE)
    yield from enumerate(text.splitlines(), 1)


def of_python(path):
    """The lines of docstrings without examples, and of comments."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, kinds) and (text := ast.get_docstring(node, clean=False)):
            first = node.body[0].lineno
            in_example = False
            for number, line in enumerate(blanked(text, CODE).splitlines(), first):
                in_example = line.lstrip().startswith((">>>", "...")) or (
                    in_example and bool(line.strip())
                )
                if not in_example:
                    yield number, line
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], blanked(token.string, CODE)


def of_cpp(path):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if comment := re.search(r"//(.*)", line):
            yield number, blanked(comment[1], CODE)


def sources():
    """The name of each part of the repository, how it is read, and its files."""
    docs = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    yield "documents", of_markdown, [*docs, *sorted((ROOT / "docs").rglob("*.md"))]
    for name in ("python", "docs", "benchmarks", "examples", ".ci"):
        yield name, of_python, sorted((ROOT / name).rglob("*.py"))
    yield (
        "cpp",
        of_cpp,
        [*sorted((ROOT / "cpp").rglob("*.?pp")), *sorted((ROOT / "docs").rglob("*.?pp"))],
    )


@pytest.mark.parametrize(("name", "read", "paths"), list(sources()), ids=lambda each: str(each)[:9])
def test_words_that_read_as_translated(name, read, paths):
    found = []
    for path in paths:
        for number, line in read(path):
            if any(phrase in line for phrase in ALLOWED):
                continue
            found += [
                f"{path.relative_to(ROOT)}:{number}: {match[0]!r}: {advice}"
                for advice, pattern in RULES.items()
                for match in re.finditer(pattern, line)
            ]
    assert paths
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("the page beside it", True),
        ("Where a mask hides all, the output is 0.", True),
        ("The page where it begins.", False),
        ("Where does it begin?", False),
        ("tensors of PyTorch", True),
        ("PyTorch tensors", False),
        ("a file of its own.", True),
        ("the keys of its own text", False),
        ("## What a cache takes", True),
        ("## What surprises people?", False),
        ("it stands for a number", False),
        ("the standard", False),
        ("normalised", True),
        ("a row that sees no key", True),
    ],
)
def test_the_rules(line, is_found):
    assert any(re.search(pattern, line) for pattern in RULES.values()) == is_found
