"""What is installed is the whole package, and it imports as promised."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_FOLDERS = {
    "facade": "epochfence",
    "epochs": "epochfence.epochs",
    "producers": "epochfence.producers",
    "consumers": "epochfence.consumers",
    "elections": "epochfence.elections",
    "leading": "epochfence.leading",
    "replay": "epochfence.replay",
    "testing": "epochfence.testing",
}


@pytest.mark.parametrize("folder", _FOLDERS)
def test_every_module_is_installed(folder: str) -> None:
    for path in (_ROOT / folder).glob("*.py"):
        name = _FOLDERS[folder]
        if path.stem != "__init__":
            name = f"{name}.{path.stem}"
        assert importlib.util.find_spec(name) is not None, f"{name}: install again"


def test_folders_are_flat_and_all_of_them_are_packaged() -> None:
    for folder in _FOLDERS:
        assert list((_ROOT / folder).glob("*/*.py")) == []


def test_schemas_and_the_type_marker_are_installed() -> None:
    assert (files("epochfence") / "py.typed").is_file()
    for path in (_ROOT / "epochs").glob("*.avsc"):
        installed = files("epochfence.epochs") / path.name
        assert installed.read_bytes() == path.read_bytes()
    sql = files("epochfence.replay") / "verdicts.sql"
    assert sql.read_bytes() == (_ROOT / "replay" / "verdicts.sql").read_bytes()


def test_what_pages_are_made_of_is_installed() -> None:
    parts = [path for path in (_ROOT / "replay").iterdir() if path.suffix != ".py"]
    there = [path for path in parts if path.is_file()]
    assert {path.suffix for path in there} == {".html", ".css", ".js", ".sql"}
    for path in there:
        installed = files("epochfence.replay") / path.name
        assert installed.read_bytes() == path.read_bytes()


def test_the_library_needs_no_extra() -> None:
    """`import epochfence` works where what extras bring is missing."""
    code = (
        "import sys\n"
        "for name in ('typer', 'rich', 'msgspec', 'psycopg', 'etcd3gw', 'kazoo',\n"
        "             'kubernetes'):\n"
        "    sys.modules[name] = None\n"
        "import epochfence\n"
        "from epochfence.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "pip install 'epochfence[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("module", "name", "driver", "extra"),
    [
        ("epochfence", "PostgresSink", "psycopg", "postgres"),
        ("epochfence.elections", "PostgresElection", "psycopg", "postgres"),
        ("epochfence.elections", "EtcdElection", "etcd3gw", "etcd"),
        ("epochfence.elections", "ZookeeperElection", "kazoo", "zookeeper"),
        ("epochfence.elections", "KubernetesElection", "kubernetes", "kubernetes"),
    ],
)
def test_what_lacks_its_driver_says_what_to_install(
    module: str, name: str, driver: str, extra: str
) -> None:
    code = (
        "import sys\n"
        f"sys.modules['{driver}'] = None\n"
        "try:\n"
        f"    from {module} import {name}\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"pip install 'epochfence[{extra}]'" in done.stdout


def test_what_is_loaded_when_asked_for_is_public() -> None:
    import epochfence

    assert all(hasattr(epochfence, name) for name in epochfence.__all__)
    assert not hasattr(epochfence, "MysqlSink")

    from epochfence import elections

    assert all(hasattr(elections, name) for name in elections.__all__)
    assert not hasattr(elections, "MysqlElection")


def test_the_testing_kit_needs_no_extra_and_no_pytest() -> None:
    code = (
        "import sys\n"
        "for name in ('typer', 'rich', 'msgspec', 'psycopg', 'etcd3gw', 'kazoo',\n"
        "             'kubernetes', 'pytest'):\n"
        "    sys.modules[name] = None\n"
        "import epochfence.testing\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_purity_contract_names_every_pure_module() -> None:
    """A module of epochs/ that imports nothing impure belongs into the contract."""
    if sys.version_info < (3, 11):
        pytest.skip("tomllib comes with Python 3.11")
    import tomllib

    settings = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))
    (contract,) = [
        one
        for one in settings["tool"]["importlinter"]["contracts"]
        if one["name"] == "the rules are pure"
    ]
    impure = tuple(
        f"import {name}"
        for name in ("time", "threading", "logging", "getpass", "psycopg")
    ) + tuple(f"from {name}" for name in ("confluent_kafka", "secrets"))
    shells = {
        path.stem
        for path in (_ROOT / "epochs").glob("*.py")
        if any(line.startswith(impure) for line in path.read_text().splitlines())
    }
    modules = {path.stem for path in (_ROOT / "epochs").glob("*.py")} - {"__init__"}
    named = {name.rpartition(".")[2] for name in contract["source_modules"]}
    assert named == modules - shells
