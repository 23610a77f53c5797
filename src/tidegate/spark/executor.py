"""What ``env.execute`` finds through the entry point ``tidegate.executors``: runs a Program on Spark."""

from __future__ import annotations

from tidegate.graph.transformation import Program
from tidegate.runtime.handle import StartedJob
from tidegate.runtime.master import JobMaster
from tidegate.runtime.statistics import Listener
from tidegate.spark.engine import SparkEngine
from tidegate.spark.session import check_settings, is_local, spark_context
from tidegate.spark.shipping import ship


class SparkExecutor:
    """Runs jobs in the active Spark context, or in one it creates. Several jobs may run at once."""

    def execute_async(self, program: Program) -> StartedJob:
        """Everything wrong with the program or its configuration is raised here; the job then runs in the background."""
        check_settings(program.configuration)
        listeners: list[Listener] = []
        configuration = program.configuration
        engine = SparkEngine(
            lambda: spark_context(configuration),
            lambda context, spec: ship(context, configuration, spec.settings.job_id, program.name),
            one_host=is_local(configuration),
        )
        return StartedJob(JobMaster(program, engine, listeners=listeners), listeners)
