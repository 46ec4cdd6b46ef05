#!/bin/sh
# What runs in each container of the compose files: "start" makes the settings of one
# node and becomes Kafka, "check" asks that node for an answer. Plain sh, as the public
# image has little else; the paths are those of that image.
#
#   KAFKA_NODE_ID          1, or one of 1 to 3
#   KAFKA_NODE_COUNT       1 or 3
#   KAFKA_PORT             where clients reach node 1; node 2 has the next port, ...
#   KAFKA_CONTROLLER_PORT  the same for the traffic among the controllers
set -eu

host=127.0.0.1
port=$((KAFKA_PORT + KAFKA_NODE_ID - 1))

if [ "$1" = check ]; then
    exec /opt/kafka/bin/kafka-cluster.sh cluster-id --bootstrap-server "$host:$port"
fi

# Ids that are the same at each start: a container that is restarted finds the data of
# its cluster, and three nodes agree without having talked.
cluster_id=epochfenceCluster0001A
majority=$((KAFKA_NODE_COUNT / 2 + 1))
controllers=
voters=
number=1
while [ "$number" -le "$KAFKA_NODE_COUNT" ]; do
    address=$host:$((KAFKA_CONTROLLER_PORT + number - 1))
    controllers=$controllers${controllers:+,}$address
    voters=$voters${voters:+,}$number@$address:epochfenceDirectory0${number}A
    number=$((number + 1))
done

# The tests' own nodes have the same settings (tests/support/kafka_local.py tells why
# each is there, tests/test_docker.py compares).
cat >/tmp/kafka.properties <<SETTINGS
process.roles=broker,controller
node.id=$KAFKA_NODE_ID
controller.quorum.bootstrap.servers=$controllers
listeners=PLAINTEXT://$host:$port,CONTROLLER://$host:$((KAFKA_CONTROLLER_PORT + KAFKA_NODE_ID - 1))
advertised.listeners=PLAINTEXT://$host:$port
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs=/tmp/kafka-data
auto.create.topics.enable=false
default.replication.factor=$KAFKA_NODE_COUNT
min.insync.replicas=$majority
offsets.topic.replication.factor=$KAFKA_NODE_COUNT
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=$KAFKA_NODE_COUNT
transaction.state.log.min.isr=$majority
transaction.state.log.num.partitions=4
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
share.coordinator.state.topic.replication.factor=$KAFKA_NODE_COUNT
share.coordinator.state.topic.min.isr=$majority
share.coordinator.state.topic.num.partitions=4
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=1000
group.consumer.session.timeout.ms=6000
group.consumer.min.heartbeat.interval.ms=500
group.consumer.heartbeat.interval.ms=1000
log.cleaner.backoff.ms=200
auto.leader.rebalance.enable=false
SETTINGS

# Share groups need no setting: a cluster that is formatted by Kafka 4.2 or later has
# them switched on.
/opt/kafka/bin/kafka-storage.sh format --ignore-formatted --cluster-id "$cluster_id" \
    --initial-controllers "$voters" --config /tmp/kafka.properties
exec /opt/kafka/bin/kafka-server-start.sh /tmp/kafka.properties
