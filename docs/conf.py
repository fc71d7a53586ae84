"""How Sphinx builds the site: ``python -m sphinx -n -W --keep-going -b html docs build/site``."""

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

from sphinx.ext.autodoc.mock import _MockObject

import regard

project = "regard"
author = "the authors of regard"
copyright = "2026, the authors of regard"
release = version = regard.__version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "command_help",
    "docstring_links",
    "mathml",
    "plain_pages",
    "repository_links",
    "run_programs",
]
exclude_patterns = ["_*", "**/.ipynb_checkpoints", "**/__pycache__"]
html_math_renderer = "mathml"
default_role = "code"
highlight_language = "text"

myst_enable_extensions = ["colon_fence", "dollarmath", "fieldlist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

# A cache would show what another version of regard has printed.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_execution_show_tb = True
nb_output_stderr = "remove"
nb_merge_streams = True
# Widgets would need scripts from other machines.
nb_ipywidgets_js = {}

autosummary_generate = False
# The docstrings name the types, so that a signature is short enough to be read.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_mock_imports = [
    package
    for package in ("dask", "distributed", "jax", "torch", "transformers")
    if find_spec(package) is None
]
if "jax" in autodoc_mock_imports:
    # regard.jax adds its primitive to tables, which a mock would refuse.
    _MockObject.__setitem__ = lambda *_: None
if "dask" in autodoc_mock_imports:
    # regard.dask looks where this class comes from, which a mock could not tell.
    arrays = sys.modules["dask.array"] = ModuleType("dask.array")
    arrays.Array = type("Array", (), {"__module__": "dask.array.core"})
maximum_signature_line_length = 80
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

html_title = "regard"
html_theme = "pydata_sphinx_theme"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
# Opened from a folder, a page may not read another one, from which the summary would come.
html_show_search_summary = False
html_context = {"default_mode": "auto"}
html_sidebars = {"*": []}  # pages at the top have no neighbors in a section
html_theme_options = {
    "logo": {"text": "regard"},
    "header_links_before_dropdown": 4,
    "navbar_end": ["theme-switcher"],
    "navigation_with_keys": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": True,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
}
copybutton_exclude = ".linenos, .gp, .go"
