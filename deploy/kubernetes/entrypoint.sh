#!/bin/bash
# The first process of a pod. "executor": what Spark starts, with its settings in the environment. Else a command of Tidegate.
set -euo pipefail
if [ "${1:-}" != executor ]; then
    exec tidegate "$@"
fi
options=()
while IFS='=' read -r -d '' name value; do
    case "$name" in SPARK_JAVA_OPT_*) options+=("$value") ;; esac
done < <(env -0)
exec java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CONF_DIR:-$SPARK_HOME/conf}:$SPARK_HOME/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "${SPARK_RESOURCE_PROFILE_ID:-0}" --podName "$SPARK_EXECUTOR_POD_NAME"
