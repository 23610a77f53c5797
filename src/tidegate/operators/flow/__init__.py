"""How records flow through a task: levels, subtasks, rounds, feeds, channels."""
