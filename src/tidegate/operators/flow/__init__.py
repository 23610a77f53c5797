"""Move records through a task: levels, subtasks, rounds, feeds, channels."""
