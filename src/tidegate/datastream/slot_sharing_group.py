"""Slot sharing groups: accepted, without effect, because Spark places tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate.base.arguments import expect_text
from tidegate.base.errors import ProgramError

__all__ = ["MemorySize", "SlotSharingGroup"]

_UNITS = ((40, "tb"), (30, "gb"), (20, "mb"), (10, "kb"))


@dataclass(frozen=True, order=True)
class MemorySize:
    """A number of bytes."""

    bytes_size: int = 0

    @staticmethod
    def of_mebi_bytes(mebi_bytes: int) -> MemorySize:
        """Return this many mebibytes."""
        return MemorySize(mebi_bytes << 20)

    def get_bytes(self) -> int:
        """Return the value in bytes."""
        return self.bytes_size

    def get_kibi_bytes(self) -> int:
        """Whole kibibytes."""
        return self.bytes_size >> 10

    def get_mebi_bytes(self) -> int:
        """Whole mebibytes."""
        return self.bytes_size >> 20

    def get_gibi_bytes(self) -> int:
        """Whole gibibytes."""
        return self.bytes_size >> 30

    def get_tebi_bytes(self) -> int:
        """Whole tebibytes."""
        return self.bytes_size >> 40

    def __str__(self) -> str:
        """In the largest unit that is exact."""
        for shift, unit in _UNITS:
            if self.bytes_size and not self.bytes_size % (1 << shift):
                return f"{self.bytes_size >> shift} {unit}"
        return f"{self.bytes_size} bytes"


@dataclass(frozen=True)
class SlotSharingGroup:
    """A name for operators that may share a slot in Flink, with the resources the slot should have."""

    name: str
    cpu_cores: float | None = None
    task_heap_memory: MemorySize | None = None
    task_off_heap_memory: MemorySize | None = None
    managed_memory: MemorySize | None = None
    external_resources: Mapping[str, float] = field(default_factory=dict)

    @staticmethod
    def builder(name: str) -> SlotSharingGroup.Builder:
        """Return the builder of a group."""
        return SlotSharingGroup.Builder(name)

    def get_name(self) -> str:
        """Return the group's name."""
        return self.name

    def get_cpu_cores(self) -> float | None:
        """Cores of a slot; None if not set."""
        return self.cpu_cores

    def get_task_heap_memory(self) -> MemorySize | None:
        """Heap memory of a slot; None if not set."""
        return self.task_heap_memory

    def get_task_off_heap_memory(self) -> MemorySize | None:
        """Off-heap memory of a slot; None if not set."""
        return self.task_off_heap_memory

    def get_managed_memory(self) -> MemorySize | None:
        """Managed memory of a slot; None if not set."""
        return self.managed_memory

    def get_external_resources(self) -> dict[str, float]:
        """Amounts of other resources, by name."""
        return dict(self.external_resources)

    class Builder:
        """A group with resources has cores and heap memory."""

        def __init__(self, name: str) -> None:
            self._name = expect_text("SlotSharingGroup.builder", name, 'for example "heavy"')
            self._cpu_cores: float | None = None
            self._heap: MemorySize | None = None
            self._off_heap: MemorySize | None = None
            self._managed: MemorySize | None = None
            self._external: dict[str, float] = {}

        def set_cpu_cores(self, cpu_cores: float) -> SlotSharingGroup.Builder:
            """Cores of a slot."""
            if cpu_cores <= 0:
                raise ProgramError("The number of cores of a slot sharing group is not positive", found=repr(cpu_cores))
            self._cpu_cores = cpu_cores
            return self

        def set_task_heap_memory(self, task_heap_memory: MemorySize) -> SlotSharingGroup.Builder:
            """Heap memory of a slot."""
            if task_heap_memory.get_bytes() <= 0:
                raise ProgramError("The task heap memory should be positive.", found=str(task_heap_memory))
            self._heap = task_heap_memory
            return self

        def set_task_heap_memory_mb(self, task_heap_memory_mb: int) -> SlotSharingGroup.Builder:
            """Heap memory of a slot, in mebibytes."""
            return self.set_task_heap_memory(MemorySize.of_mebi_bytes(task_heap_memory_mb))

        def set_task_off_heap_memory(self, task_off_heap_memory: MemorySize) -> SlotSharingGroup.Builder:
            """Off-heap memory of a slot."""
            self._off_heap = task_off_heap_memory
            return self

        def set_task_off_heap_memory_mb(self, task_off_heap_memory_mb: int) -> SlotSharingGroup.Builder:
            """Off-heap memory of a slot, in mebibytes."""
            return self.set_task_off_heap_memory(MemorySize.of_mebi_bytes(task_off_heap_memory_mb))

        def set_managed_memory(self, managed_memory: MemorySize) -> SlotSharingGroup.Builder:
            """Managed memory of a slot."""
            self._managed = managed_memory
            return self

        def set_managed_memory_mb(self, managed_memory_mb: int) -> SlotSharingGroup.Builder:
            """Managed memory of a slot, in mebibytes."""
            return self.set_managed_memory(MemorySize.of_mebi_bytes(managed_memory_mb))

        def set_external_resource(self, name: str, value: float) -> SlotSharingGroup.Builder:
            """Return the amount of another resource."""
            self._external[name] = value
            return self

        def build(self) -> SlotSharingGroup:
            """Return the group."""
            others = [self._cpu_cores, self._heap, self._off_heap, self._managed, self._external or None]
            if (self._cpu_cores is None or self._heap is None) and any(other is not None for other in others):
                raise ProgramError(
                    "The cpu cores and task heap memory are required when specifying the resource of a slot sharing group",
                    where=f"slot sharing group '{self._name}'",
                    found=f"{self._cpu_cores} cores, {self._heap} of heap memory",
                    cure="call both set_cpu_cores and set_task_heap_memory, or set no resource",
                )
            return SlotSharingGroup(
                self._name, self._cpu_cores, self._heap, self._off_heap, self._managed, dict(self._external)
            )
