"""Prose in documents, docstrings and comments avoids words that read as translated.

The rules are in CONTRIBUTING.md. The check finds what a search can find; it does not judge
sentences. A use that is right goes into ALLOWED, with enough context to be unique.
"""

import ast
import re
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
# The first two are names of benchmark cases.
ALLOWED = ("append beside 1x32", "evict beside 1x32", "no longer stand")
FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1`*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"``.*?``|`[^`\n]*`|<!--.*?-->|\]\([^)]*\)", re.DOTALL)
EXAMPLE = re.compile(r"^ *>>>.*?(?=^ *$|\Z)", re.MULTILINE | re.DOTALL)


def prose(path):
    """Return the text of a document, or the comments and docstrings of a source."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        text = FENCE.sub("", text)
    elif path.suffix == ".py":
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
        docstrings = [EXAMPLE.sub("", ast.get_docstring(node, clean=False) or "") for node in nodes]
        text = "\n".join([*docstrings, *re.findall(r"(?:^|  )#( .*)", text, re.MULTILINE)])
    else:
        text = "\n".join(re.findall(r"//(.*)", text))
    return CODE.sub(" ", text)


def sources():
    """Return the files of each part of the repository."""
    parts = {"documents": [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]}
    for name in ("python", "docs", "benchmarks", "examples", ".ci"):
        parts[name] = list((ROOT / name).rglob("*.py"))
    parts["cpp"] = [path for folder in ("cpp", "docs") for path in (ROOT / folder).rglob("*.?pp")]
    return parts


@pytest.mark.parametrize("part", sources())
def test_words_that_read_as_translated(part):
    paths = sources()[part]
    assert paths
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()!r}: {advice}"
        for path in paths
        for line in prose(path).splitlines()
        if not any(phrase in line for phrase in ALLOWED)
        for advice, pattern in RULES.items()
        if re.search(pattern, line)
    ]
    assert not found, "\n".join(found)
