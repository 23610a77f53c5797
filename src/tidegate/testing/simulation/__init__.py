"""The simulator: seeded schedules, injected faults and crashing drivers in one process."""
