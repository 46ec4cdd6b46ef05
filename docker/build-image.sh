#!/usr/bin/env bash
# Builds an image that the compose files can use in place of apache/kafka, from Debian
# packages and the Kafka jars that the tests use.
#
# Only for places that cannot pull images. Where you can, do not set KAFKA_IMAGE, and
# the compose files take the public apache/kafka.
#
#   docker/build-image.sh NAME
#   KAFKA_IMAGE=NAME docker compose -f docker/compose.yaml up -d --wait
#
# Needs root, debootstrap, a Docker engine, Python 3.10 or later, and, unless the tests
# have fetched the jars before, a JDK and Maven.
#
#   PYTHON   the Python to use (else that of .venv, else python3)
set -euo pipefail

if (($# != 1)); then
    echo "usage: $0 NAME" >&2
    exit 2
fi
name=$1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# It is among the commands of root, and not everybody who is root has those on the path.
PATH=$PATH:/usr/sbin:/sbin

echo "$name is only for places that cannot pull images: use apache/kafka elsewhere." >&2

python=${PYTHON:-$root/.venv/bin/python}
[[ -x $python ]] || python=$(command -v "${PYTHON:-python3}")
jars=$(PYTHONPATH=$root/tests "$python" -c \
    'from support.kafka_jars import kafka_classpath; print(kafka_classpath())')

# Not in /tmp, which may be kept in memory or forbid devices.
work=$(mktemp -d /var/tmp/epochfence-image.XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT
image=$work/root

debootstrap --variant=minbase --include=ca-certificates,openjdk-17-jre-headless \
    bookworm "$image" >"$work/log" 2>&1 || {
    tail -n 20 "$work/log" >&2
    exit 1
}
rm -rf "$image"/var/cache/apt/archives/*.deb "$image"/var/lib/apt/lists/*

mkdir -p "$image/opt/kafka/libs" "$image/opt/kafka/bin" "$image/opt/kafka/config"
cp "${jars%/\*}"/*.jar "$image/opt/kafka/libs/"

cat >"$image/opt/kafka/config/log4j2.xml" <<'LOGGING'
<Configuration status="WARN">
  <Appenders>
    <Console name="out">
      <PatternLayout pattern="%d %p %m (%c{1})%n%throwable"/>
    </Console>
  </Appenders>
  <Loggers><Root level="INFO"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
LOGGING

# A command of the public image's, and the variables that it knows.
command_of() {
    cat >"$image/opt/kafka/bin/$1" <<COMMAND
#!/bin/sh
exec java \${KAFKA_HEAP_OPTS:--Xmx384m} \${KAFKA_JVM_PERFORMANCE_OPTS:-} $3 \\
    -cp '/opt/kafka/libs/*' $2 "\$@"
COMMAND
    chmod +x "$image/opt/kafka/bin/$1"
}

command_of kafka-storage.sh kafka.tools.StorageTool ''
command_of kafka-cluster.sh org.apache.kafka.tools.ClusterTool ''
command_of kafka-server-start.sh kafka.Kafka \
    '-Dlog4j2.configurationFile=/opt/kafka/config/log4j2.xml'

tar -C "$image" -c . | docker import - "$name" >/dev/null
echo "built $name"
