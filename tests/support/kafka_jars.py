"""Apache Kafka as plain jars from Maven, kept in a cache outside the tree.

A cache folder is either absent or whole: it is filled under another name beside
its place and renamed into it, and an inventory written last tells whether anything
has been lost from it since. A lock keeps parallel test runs from filling it twice.
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from support.unavailable import Unavailable
from support.waiting import wait_until

KAFKA_VERSION = "4.3.1"
MINIMUM_JAVA_VERSION = 17

# Kafka 4 logs through SLF4J 1.7: with the binding named log4j-slf4j2-impl it would
# log nothing, and a broker that fails to start would not say why.
_DEPENDENCIES = (
    ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.1"),
    ("org.apache.logging.log4j", "log4j-core", "2.25.1"),
)
_COPY_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_DOWNLOAD_TIMEOUT_S = 600

# Longer than one download: whoever waits for the lock waits for another run's.
_LOCK_TIMEOUT_S = _DOWNLOAD_TIMEOUT_S + 60

_INVENTORY = "inventory.json"


def find_java() -> str:
    """Return the path of a Java runtime that can run Kafka, or raise `Unavailable`."""
    home = os.environ.get("JAVA_HOME")
    candidates = [str(Path(home) / "bin" / "java")] if home else []
    candidates.append("java")
    found = [path for name in candidates if (path := shutil.which(name))]
    for java in found:
        if _java_version(java) >= MINIMUM_JAVA_VERSION:
            return java
    trouble = "is too old" if found else "was not found"
    raise Unavailable(f"java {trouble} (version {MINIMUM_JAVA_VERSION} or later)")


def kafka_classpath() -> str:
    """Return a Java class path that holds Kafka, downloading it on first use."""
    cache = _cache_root() / f"kafka-{KAFKA_VERSION}"
    if not _is_whole(cache):
        cache.parent.mkdir(parents=True, exist_ok=True)
        with _locked(cache.with_name(f"{cache.name}.lock")):
            if not _is_whole(cache):
                _fill(cache)
    return str(cache / "libs" / "*")


def _cache_root() -> Path:
    named = os.environ.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path.home() / ".cache") / "epochfence"


def _java_version(java: str) -> int:
    """Return the feature number of a Java runtime (17 for "17.0.15"), 0 if unknown."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except OSError:
        return 0
    # Up to Java 8 the version was written 1.8: the 1 that this gives is too old too.
    found = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    return int(found.group(1)) if found else 0


def _pom() -> str:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version></dependency>\n"
        for group, artifact, version in _DEPENDENCIES
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0">\n'
        "<modelVersion>4.0.0</modelVersion>\n"
        "<groupId>epochfence.tests</groupId><artifactId>kafka</artifactId>\n"
        "<version>1</version><packaging>pom</packaging>\n"
        f"<dependencies>\n{dependencies}</dependencies>\n</project>\n"
    )


def _is_whole(cache: Path) -> bool:
    """Tell whether every jar is there, as downloaded for the versions above."""
    try:
        inventory = json.loads((cache / _INVENTORY).read_text())
    except (OSError, ValueError):
        return False
    return bool(inventory == _inventory(cache / "libs"))


def _inventory(libs: Path) -> dict[str, object]:
    """Describe a folder of jars, and the versions that were asked for."""
    jars = {jar.name: jar.stat().st_size for jar in sorted(libs.glob("*.jar"))}
    return {"pom": _pom(), "jars": jars}


@contextmanager
def _locked(path: Path) -> Generator[None, None, None]:
    """Hold the file's lock; the system drops it with the process, however it ends."""
    with path.open("w") as file:

        def acquired() -> bool:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        wait_until(acquired, _LOCK_TIMEOUT_S, f"another test run released {path}")
        yield


def _fill(cache: Path) -> None:
    """Download Kafka into the cache. The caller holds the lock."""
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable("mvn (Maven) was not found and Kafka is not in the cache yet")
    # Under the lock nobody else downloads: these belong to runs that were killed.
    for leftover in cache.parent.glob(f"{cache.name}.partial-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{cache.name}.partial-", dir=cache.parent))
    try:
        _download(maven, partial)
        if cache.exists():
            shutil.rmtree(cache)
        partial.rename(cache)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _download(maven: str, folder: Path) -> None:
    pom = folder / "pom.xml"
    pom.write_text(_pom())
    libs = folder / "libs"
    command = [maven, "-q", "-B", "-f", str(pom), _COPY_GOAL]
    command += [f"-DoutputDirectory={libs}", "-DincludeScope=runtime"]
    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_DOWNLOAD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        raise Unavailable(f"Maven took more than {expired.timeout:g} s") from expired
    if answer.returncode != 0:
        raise Unavailable(f"Maven could not get Kafka:\n{answer.stdout[-2000:]}")
    (folder / _INVENTORY).write_text(json.dumps(_inventory(libs)))
