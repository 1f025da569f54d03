"""The package as it is installed: contents, import direction, what start-up loads."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("collectors", "pipelines", "policies", "reports")
HEAVY = (
    "torch",
    "duckdb",
    "polars",
    "pyarrow",
    "sklearn",
    "scipy",
    "optuna",
    "plotly",
    "numba",
    "numpy",
    "pandas",
)


def python(code: str, *flags: str, cwd: Path | None = None) -> str:
    """Output of a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, *flags, "-c", code], capture_output=True, text=True, cwd=cwd, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def tracked(*patterns: str) -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", *patterns], capture_output=True, text=True, cwd=ROOT, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return set(listed.stdout.split())


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    out = tmp_path_factory.mktemp("wheel")
    source = out / "source"
    copied = subprocess.run(
        ["git", "clone", "--quiet", str(ROOT), str(source)], capture_output=True, check=False
    )
    if copied.returncode:
        pytest.skip("not a git checkout")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
         "--wheel-dir", str(out), str(source)],
        check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = out.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_wheel_holds_the_package_and_nothing_else(wheel_names: set[str]) -> None:
    committed = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", "HEAD"],
        capture_output=True, text=True, cwd=ROOT, check=True,
    ).stdout.split()  # fmt: skip
    suffixes = (".py", ".sql", ".css", ".js", ".html", ".in", "py.typed", "_response.json")
    expected = {f"xtune/{n}" for n in committed if n.startswith(FOLDERS) and n.endswith(suffixes)}
    expected |= {n for n in committed if n.startswith("xtune/") and n.endswith(suffixes)}
    inside = {n for n in wheel_names if ".dist-info/" not in n}
    assert inside == expected


def test_engine_imports_alone_in_an_isolated_interpreter() -> None:
    out = python(
        "import sys, json, xtune.policies, xtune.policies.controller, xtune.policies.router\n"
        "print(json.dumps(sorted(m for m in sys.modules if m.split('.')[0] == 'xtune')))",
        "-I",
    )
    loaded = json.loads(out)
    assert "xtune.policies.controller" in loaded
    assert [m for m in loaded if m != "xtune" and not m.startswith("xtune.policies")] == []


def test_engine_imports_only_itself_and_what_it_ships_with() -> None:
    out = python(
        "import ast, json, pathlib\n"
        "found = set()\n"
        "for f in pathlib.Path('policies').rglob('*.py'):\n"
        "    for n in ast.walk(ast.parse(f.read_text())):\n"
        "        if isinstance(n, ast.Import): found |= {a.name.split('.')[0] for a in n.names}\n"
        "        elif isinstance(n, ast.ImportFrom) and n.level == 0:\n"
        "            found.add(n.module.split('.')[0])\n"
        "print(json.dumps(sorted(found)))",
        cwd=ROOT,
    )
    foreign = set(json.loads(out)) - set(sys.stdlib_module_names) - {"__future__"}
    assert foreign <= {"numpy", "torch", "numba", "triton"}


def test_help_loads_nothing_heavy() -> None:
    out = python(
        "import sys, json\n"
        "sys.argv = ['xtune', '--help']\n"
        "from xtune.cli import main\n"
        "code = main()\n"
        f"loaded = [m for m in {HEAVY!r} if m in sys.modules]\n"
        "print(json.dumps([code, loaded]))"
    )
    assert json.loads(out.splitlines()[-1]) == [0, []]


def test_top_folders_are_not_importable_by_their_bare_names() -> None:
    out = python(
        "import sys, json, xtune.collectors, xtune.pipelines, xtune.policies, xtune.reports\n"
        f"print(json.dumps([n for n in {FOLDERS!r} if n in sys.modules]))",
        cwd=ROOT,
    )
    assert json.loads(out) == []


def test_top_level_holds_the_agreed_folders() -> None:
    top = {name.split("/")[0] for name in tracked() if "/" in name}
    assert top == {
        "xtune", *FOLDERS, "tests", "data_samples", "bench", "docs", ".ci"
    } or top == {"xtune", *FOLDERS, "tests", "data_samples", "bench", ".ci"}  # fmt: skip


def test_no_source_file_is_long() -> None:
    long = {
        name: lines
        for name in tracked("*.py", "*.sql")
        if not (ROOT / name).is_symlink() and (ROOT / name).is_file()
        and (lines := len((ROOT / name).read_text().splitlines())) > 500
    }  # fmt: skip
    assert long == {}


def test_constraints_pin_every_dependency() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    names = {re.split(r"[>=\[]", item)[0].lower().replace("_", "-") for item in wanted}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in lines if "==" in line}
    assert names <= pinned


def test_groups_of_tests_stay_on_one_worker(tmp_path: Path) -> None:
    """Whole fabrics and lakes are built once a worker: a runner that ignores groups builds two."""
    (tmp_path / "test_groups.py").write_text(
        "import os, pytest\n"
        "@pytest.mark.parametrize('i', range(8))\n"
        "@pytest.mark.parametrize('group', [pytest.param(g, marks=pytest.mark.xdist_group(g))\n"
        "                                   for g in 'ab'])\n"
        "def test_group(group, i):\n"
        "    open(group, 'a').write(os.environ['PYTEST_XDIST_WORKER'] + '\\n')\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for group in "ab":
        workers = (tmp_path / group).read_text().split()
        assert len(workers) == 8
        assert len(set(workers)) == 1
