"""The documentation site: every page is in it, every link leads somewhere, every public name and
exception is described.

`make docs` builds it, with warnings as errors. Here is what takes no build, and, left to the whole
suite, the programs whose output the pages show.
"""

import ast
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs._site import built, drawings, gallery, links, see_also, tiles, versions
from docs._site.public_names import members, modules, public_names
from synknumba._device import probe
from tests.environment import PACKAGE, ROOT, environment
from tests.test_pages import BLOCKS, OWN_OUTPUT, missing_packages

DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if gallery.GALLERY not in page.parents)
LIST_OF_EXAMPLES = ROOT / "examples" / "README.md"
TEXTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
TEXTS.append(LIST_OF_EXAMPLES)
FENCED = re.compile(r"^(?P<fence>`{3,}|:{3,}).*?^(?P=fence)$", re.MULTILINE | re.DOTALL)
GENERATED = {"gallery/index"}  # by `make docs`


def name_of(page):
    return page.relative_to(DOCS).with_suffix("").as_posix()


def contents(page):
    """The pages that the toctrees of a page list."""
    for body in re.findall(
        r"^```\{toctree\}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    ):
        for line in body.splitlines():
            if line and not line.startswith(":"):
                name = re.sub(r".*<(.+)>", r"\1", line)  # without a title of its own
                files = sorted(page.parent.glob(f"{name}.md")) or [page.parent / f"{name}.md"]
                yield from (name_of(Path(file.parent.resolve(), file.name)) for file in files)


def test_every_page_is_in_the_contents():
    listed = [one for page in PAGES for one in contents(page)]
    assert len(listed) > 50
    assert sorted(listed) == sorted({*map(name_of, PAGES), *GENERATED} - {"index"})  # each once


def slugs(page):
    """The anchors of a page's headings, as GitHub and MyST make them."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ +(.*?)\s*$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def page_links(page):
    text = re.sub(r"`[^`\n]*`", "`", FENCED.sub("", page.read_text(encoding="utf-8")))
    return [
        target
        for target in re.findall(r"\]\(([^)\s]+)\)", text)
        if not re.match(r"[a-z]+:", target)
    ]


def test_links_were_found():
    assert sum(len(page_links(page)) for page in [*TEXTS, *PAGES]) > 200


def test_links_lead_somewhere():
    links = [(page, target) for page in (*TEXTS, *PAGES) for target in page_links(page)]
    broken = [(str(page), target) for page, target in links if not leads_somewhere(page, target)]
    assert broken == []


def leads_somewhere(page, target):
    path, _, anchor = target.partition("#")
    file = Path(page.parent, path).resolve() if path else page
    return file.exists() and (not anchor or anchor in slugs(file))


def test_links_on_the_site():
    """Files of the repository that the site has are linked there; others are named. Pages link to
    files, and not to what `make docs` writes, which a clone has not.
    """
    code = "\n```\n[x](../y)\n```\n"
    text = (
        f"[heat](../examples/heat.py), [`tests`](../tests/quick.py), "
        f"[quick](../tests/quick.py), [a](calls.md#rows){code}"
    )
    shown = links.rewrite(text, "docs/sequences.md", "docs/sequences.md")
    assert shown == f"[heat](gallery/heat.md), `tests`, `tests/quick.py`, [a](calls.md#rows){code}"
    assert (
        links.rewrite("[a](docs/calls.md)", "CONTRIBUTING.md", "docs/development/c.md")
        == "[a](../calls.md)"
    )


@pytest.mark.parametrize(
    "code",
    [
        "`kernel[grid, block](...)` and `kernel[grid](x)`",
        "[`simt.check(kernel)[grid, block](...)`](#simtcheck)",
        "``a ` b[0](c)``",
    ],
)
def test_links_leave_inline_code_alone(code):
    assert links.rewrite(code, "docs/calls.md", "docs/calls.md") == code


def test_markup_that_is_left_on_a_page():
    """`make docs` reads all pages."""
    page = "<h1>A <code>`b`</code></h1><pre>`c`</pre>\n<p>kernel<br>docs/...`` and</p>[x](y)"
    assert built.leftovers(page) == ["2: docs/...`` and", "2: [x](y)"]


def test_a_name_is_followed_by_pages_that_use_it():
    uses = see_also.uses()
    assert uses.keys() == public_names().keys()
    assert "sequences" in uses["synknumba.sequence"]
    assert "gallery/heat" in uses["synknumba.swap"]
    assert uses["synknumba.RankDied"] == ["errors"]


def test_versions_to_choose_from(tmp_path):
    built, site = tmp_path / "built", tmp_path / "site"
    built.mkdir()
    (built / "index.html").write_text("first", encoding="utf-8")
    for version in ("0.9.0", "0.10.0"):
        versions.add(built, site, version)
    (built / "index.html").write_text("second", encoding="utf-8")
    versions.add(built, site, "0.9.0")
    assert versions.versions(site) == ["0.10.0", "0.9.0"]
    assert '["0.10.0", "0.9.0"]' in (site / "versions.js").read_text(encoding="utf-8")
    assert "url=0.10.0/index.html" in (site / "index.html").read_text(encoding="utf-8")
    assert (site / "0.9.0" / "index.html").read_text(encoding="utf-8") == "second"
    assert (site / "0.10.0" / "index.html").read_text(encoding="utf-8") == "first"


@pytest.mark.parametrize("name", ["calls", "variables", "sequences", "expectation"])
def test_guides_are_short_and_show_what_they_say(name):
    """Rules are in the page of every rule beside it."""
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert len(FENCED.sub("", text).split()) <= 600
    sections = re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    questions = {title: body for title, body in sections if title.endswith("?")}
    assert len(questions) > 4
    assert [title for title, body in questions.items() if "```" not in body] == []


def read_list_of_examples():
    """The names and titles that the list beside the examples has, in its order."""
    rows = re.findall(
        r"^\| \[(.+?)\]\((.+?)\.py\)", LIST_OF_EXAMPLES.read_text("utf-8"), re.MULTILINE
    )
    return [(Path(file).name, title) for title, file in rows]


def test_every_example_is_in_the_gallery():
    shown = {name: example for part in gallery.SECTIONS.values() for name, example in part.items()}
    assert sorted(shown) == gallery.examples()
    titles = {name: example.title for name, example in shown.items()}
    assert read_list_of_examples() == list(titles.items())
    for name, example in shown.items():
        draws = '"--picture"' in gallery.source_of(name).read_text(encoding="utf-8")
        assert draws == (example.crop != (0, 0, 0)), name
        assert draws != (name in tiles.TILES), name


def test_drawings_are_those_of_their_program():
    assert drawings.DRAWINGS
    for draw in drawings.DRAWINGS:
        assert (drawings.PICTURES / f"{draw.__name__}.svg").read_text(
            encoding="utf-8"
        ) == draw().svg()


def documented():
    """The names that the reference describes."""
    for page in sorted((DOCS / "reference").glob("*.md")):
        module = ""
        for directive, name in re.findall(
            r"^\.\. (auto\w+|py:data|currentmodule):: (\S+)$",
            page.read_text(encoding="utf-8"),
            re.MULTILINE,
        ):
            if directive == "currentmodule":
                module = f"{name}."
            elif directive not in {"autosummary", "automodule"}:
                yield name if name.startswith("synknumba.") else module + name


def test_the_reference_has_every_public_name():
    names = public_names()
    assert len(names) > 150
    assert sorted(documented()) == sorted(names)


def test_every_public_name_has_a_docstring():
    assert all(one.__doc__ for one in public_names().values())


def errors_named(text):
    """The lines of a docstring's section on errors that begin one, as matches of its name, or as
    they are.
    """
    _, _, section = inspect.cleandoc(text).partition("\nRaises:\n")
    lines = section.split("\n\n")[0].splitlines()
    return [
        re.match(r" {4}(\w+(?:, \w+)*): ", line) or line
        for line in lines
        if re.match(r" {4}\S", line)
    ]


def test_sections_on_errors_name_errors():
    """Each line there is taken for the name of one."""
    found = {}
    for name, one in public_names().items():
        methods = vars(one).items() if isinstance(one, type) else ()
        found |= {name: errors_named(one.__doc__)}
        found |= {
            f"{name}.{of}": errors_named(method.__doc__)
            for of, method in methods
            if of[0] != "_" and method.__doc__
        }
    assert sum(map(len, found.values())) > 150
    assert {
        name: line for name, lines in found.items() for line in lines if isinstance(line, str)
    } == {}


EXCEPTIONS = {
    name
    for module in modules()
    for name, one in members(module).items()
    if isinstance(one, type) and issubclass(one, Exception)
}
ERRORS = (DOCS / "errors.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^##+ (\w+)\n(.*?)(?=^##|\Z)", ERRORS, re.MULTILINE | re.DOTALL))
TABLES = re.findall(r"^\| `(.+?)` \|", ERRORS, re.MULTILINE)


def test_the_index_of_errors_has_every_exception():
    assert len(EXCEPTIONS) > 20
    sections = {
        name: text for name, text in SECTIONS.items() if name[0].isupper() and "```python" in text
    }
    assert sections.keys() == EXCEPTIONS
    assert all("**Way out.**" in text for text in sections.values())


def test_the_index_of_errors_quotes_messages_as_they_are():
    """Each message in a table stands in the package's source."""
    assert len(TABLES) > 30
    texts = []
    for path in PACKAGE.rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        texts += [
            node.value
            for node in nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
    everything = "\n".join(texts)
    assert [message for message in TABLES if message not in everything] == []


def plain(text):
    """Without line breaks, numbers of processes and bytes, and folders."""
    return re.sub(
        r'(File "|\()/[^"()]*/', r"\1", re.sub(r"pid \d+|\d+(,\d+)+", "N", " ".join(text.split()))
    )


@pytest.mark.whole
@pytest.mark.parametrize("name", sorted(EXCEPTIONS))
def test_the_program_of_an_error(name, tmp_path, run_program):
    program, shown = re.search(
        r"```python\n(.*?)```\n(?:\n```\n(.*?)```)?", SECTIONS[name], re.DOTALL
    ).groups()
    if name in {"DeviceError", "RecordError"} and probe().count:
        pytest.skip("shows a machine without GPUs")
    done = run_program(program, tmp_path / "example.py")
    assert (done.returncode == 0) == (shown is None), done.stderr
    assert shown is None or plain(shown) in plain(done.stderr)


SHOWN = [block for block in BLOCKS if block.id.partition(":")[0] in OWN_OUTPUT]


def test_programs_were_found():
    assert len(SHOWN) > 14


@pytest.mark.whole
@pytest.mark.parametrize("program", SHOWN)
def test_programs_print_what_stands_behind_print(program, tmp_path, run_program):
    """A comment behind `print` is a line of the output; "about …" is not compared."""
    if missing := missing_packages(program):
        pytest.skip(f"needs {', '.join(missing)}")
    told = re.findall(r"^ *print\(.*#\s+(.*)$", program, re.MULTILINE)
    assert told or "print(" not in program
    done = run_program(program, tmp_path / "program.py")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [one for one in told if not one.startswith("about ")] == [
        line for line in lines if line in told
    ]


GALLERY_PROGRAM = """
import json, sys
from pathlib import Path
from docs._site import gallery
gallery.GALLERY = Path(sys.argv[1])
gallery.KEPT = gallery.GALLERY / "kept"
gallery.LIMIT = int(sys.argv[3])
print(json.dumps(gallery.page_of("histogram", "A histogram", sys.argv[2])))
"""


@pytest.mark.whole
def test_the_gallery_runs_what_has_changed(tmp_path):
    """A kept output is used for the same example and arguments only: there is no time to run."""

    def page(arguments, seconds):
        done = subprocess.run(
            [sys.executable, "-c", GALLERY_PROGRAM, str(tmp_path), arguments, str(seconds)],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            cwd=ROOT,
        )
        return done.stdout.splitlines()[-1:], done.stderr

    (first,), _ = page("--rows 20011", 90)
    text = json.loads(first)
    command = "python examples/histogram.py --rows 20011 --device cpu --ranks 2"
    assert f"$ {command} --picture histogram.png" in text
    assert "every count is NumPy's" in text
    assert (tmp_path / "histogram.png").stat().st_size > 1000
    assert page("--rows 20011", 0) == ([first], "")
    assert "TimeoutExpired" in page("--rows 20012", 0)[1]
