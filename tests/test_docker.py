"""The containers' Kafka is set up as the tests' own nodes are."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.kafka_docker import PUBLIC_IMAGE, docker_broker
from support.kafka_local import COMMON_PROPERTIES, replication
from support.unavailable import Unavailable

_DOCKER = Path(__file__).parents[1] / "docker"


@pytest.mark.parametrize("count", [1, 3])
def test_nodes_in_containers_have_the_settings_of_the_others(count: int) -> None:
    script = (_DOCKER / "node.sh").read_text("utf-8")
    values = {
        "$KAFKA_NODE_COUNT": str(count),
        "$majority": str(count // 2 + 1),
    }
    found = {
        name: values.get(value, value)
        for name, value in re.findall(r"^([a-z.]+)=(.*)$", script, re.MULTILINE)
    }
    expected = {**COMMON_PROPERTIES, **replication(count)}
    assert {name: found.get(name) for name in expected} == expected


@pytest.mark.parametrize("name", ["compose.yaml", "compose-three.yaml"])
def test_the_image_is_the_version_that_the_jars_are(name: str) -> None:
    text = (_DOCKER / name).read_text("utf-8")
    assert text.count(f"image: ${{KAFKA_IMAGE:-{PUBLIC_IMAGE}}}") == 1


def test_without_an_engine_the_next_way_is_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody-listens")
    with ExitStack() as stack, pytest.raises(Unavailable, match="Docker"):
        docker_broker(stack)


def test_without_docker_the_next_way_is_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with ExitStack() as stack, pytest.raises(Unavailable, match="install Docker"):
        docker_broker(stack)
