"""Records that are models of pydantic, or have slots: copied and packed without pickle, and always equal to what pickle gives."""

from __future__ import annotations

import pickle
import random
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pydantic
import pytest

from tidegate.base.errors import StateFormatError
from tidegate.operators.flow.packing import OBJECTS, Packer
from tidegate.operators.loop.ownership import own


class Order(pydantic.BaseModel):
    customer: str
    amount: int = 1
    note: str | None = None


class Empty(pydantic.BaseModel):
    pass


class Frozen(pydantic.BaseModel, frozen=True):
    customer: str
    amount: int = 1


class Open(pydantic.BaseModel, extra="allow"):
    customer: str


class Private(pydantic.BaseModel):
    customer: str
    _seen: int = pydantic.PrivateAttr(default=0)


class Cached(pydantic.BaseModel):
    customer: str

    @cached_property
    def length(self) -> int:
        return len(self.customer)


class Nested(pydantic.BaseModel):
    order: Order
    tags: list[str]


class Listed(pydantic.RootModel[list[int]]):
    pass


class Own(Order):
    def __getstate__(self) -> Any:
        return {**super().__getstate__(), "__pydantic_extra__": None}


class OwnCopy(Order):
    def __deepcopy__(self, memo: Any = None) -> Any:
        raise ValueError("not copied by tests")


class Checked(Order):
    @pydantic.model_validator(mode="after")
    def is_positive(self) -> Any:
        if self.amount < 0:
            raise ValueError("negative")
        return self

    def model_post_init(self, context: Any, /) -> None:
        raise_if_called.append(self.customer)


raise_if_called: list[str] = []


@dataclass(slots=True)
class Slots:
    customer: str
    amount: int = 1


def state(value: Any) -> Any:
    return type(value), value.__getstate__()


def back(values: list[Any]) -> tuple[bool, list[Any]]:
    data = Packer(None).pack(values)
    return data[0] == OBJECTS, Packer(None).unpack_list(data)


def cached() -> Cached:
    made = Cached(customer="ada")
    assert made.length == 3
    return made


VALUES = [
    Order(customer="ada"),
    Order(customer="ada", note=None),
    Order(customer="ada", amount=2, note="x"),
    Order.model_construct(customer=1, amount="no number", _fields_set={"something"}),
    Empty(),
    Frozen(customer="ada"),
    Open.model_validate({"customer": "ada", "more": 1}),
    Open(customer="ada"),
    Private(customer="ada"),
    cached(),
    Cached(customer="ada"),
    Nested(order=Order(customer="ada"), tags=["a"]),
    Listed([1, 2]),
    Own(customer="ada"),
    Slots("ada", 2),
    Slots("ada", [1]),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_packed_and_a_copied_model_have_the_state_of_a_pickled_one(value: Any) -> None:
    wanted = state(pickle.loads(pickle.dumps(value)))
    _, packed = back([value, value])
    assert [state(one) for one in packed] == [wanted, wanted] and packed[0] is not value
    assert state(own(value)) == wanted


def test_which_models_are_packed_without_pickle() -> None:
    assert back([Order(customer="ada"), Order(customer="bob", amount=2, note="x")])[0]
    assert back([Frozen(customer="ada")])[0] and back([Open(customer="ada")])[0] is False
    assert not back([Order(customer="ada"), Frozen(customer="ada")])[0], "of two classes"
    assert not back([cached()])[0] and not back([Own(customer="ada")])[0] and not back([Private(customer="ada")])[0]
    assert not back([Nested(order=Order(customer="ada"), tags=[])])[0]


def test_random_models_come_back_with_the_names_that_were_given() -> None:
    rng = random.Random(7)
    for _ in range(300):
        orders = []
        for _ in range(rng.randint(1, 6)):
            fields: dict[str, Any] = {"customer": rng.choice(["", "ada", "a\0b,c", "é"])}
            if rng.random() < 0.5:
                fields["amount"] = rng.choice([0, -1, 2**40])
            if rng.random() < 0.5:
                fields["note"] = rng.choice([None, "", "x"])
            orders.append(Order(**fields))
        packed, found = back(orders)
        assert packed and [state(one) for one in found] == [state(one) for one in orders]


def test_a_copied_model_is_independent_and_a_frozen_one_is_not_copied() -> None:
    order, frozen, slots = Order(customer="ada"), Frozen(customer="ada"), Slots("ada")
    kept, kept_slots = own(order), own(slots)
    order.amount = 5
    slots.amount = 5
    assert (kept.amount, kept.model_fields_set, order.model_fields_set) == (1, {"customer"}, {"customer", "amount"})
    assert kept_slots == Slots("ada", 1)
    assert own(frozen) is frozen
    nested = Nested(order=Order(customer="ada"), tags=["a"])
    copied = own(nested)
    nested.tags.append("b")
    nested.order.amount = 7
    assert copied == Nested(order=Order(customer="ada"), tags=["a"])


def test_no_validator_runs_when_a_model_is_copied_or_comes_back() -> None:
    checked = Checked(customer="ada")
    checked.amount = -1
    raise_if_called.clear()
    assert own(checked).amount == -1
    packed, found = back([checked])
    assert packed and found[0].amount == -1
    assert raise_if_called == []


def test_a_copy_of_a_model_that_copies_itself_is_left_to_pickle() -> None:
    value = OwnCopy(customer="ada")
    assert own(value) == value and own(value) is not value


def test_a_class_that_changes_while_records_are_in_flight_gets_their_fields_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with pickle. By position, the fields of a reordered class would silently change places."""
    orders, slots = [Order(customer="ada", amount=2), Order(customer="bob", note="x")], [Slots("ada", 2)]
    models, objects = Packer(None).pack(orders), Packer(None).pack(slots)
    pickled = pickle.dumps((orders, slots))

    class OtherOrder(pydantic.BaseModel):
        note: str | None = None
        more: int = 7
        amount: int = 1
        customer: str

    @dataclass(slots=True)
    class OtherSlots:
        amount: int
        customer: str
        more: int = 7

    for name, kind in (("Order", OtherOrder), ("Slots", OtherSlots)):
        kind.__name__ = kind.__qualname__ = name
        monkeypatch.setitem(globals(), name, kind)
    wanted, others = pickle.loads(pickled)
    found = Packer(None).unpack_list(models)
    assert [state(one) for one in found] == [state(one) for one in wanted]
    assert [(one.customer, one.amount, one.note) for one in found] == [("ada", 2, None), ("bob", 1, "x")]
    for (one,) in (others, Packer(None).unpack_list(objects)):
        assert (type(one), one.amount, one.customer, hasattr(one, "more")) == (OtherSlots, 2, "ada", False)


def test_a_record_in_flight_with_a_field_that_its_class_has_not_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = Packer(None).pack([Slots("ada", 2)])

    @dataclass(slots=True)
    class Fewer:
        customer: str

    Fewer.__name__ = Fewer.__qualname__ = "Slots"
    monkeypatch.setitem(globals(), "Slots", Fewer)
    with pytest.raises(StateFormatError, match="has a field that its class has not") as caught:
        Packer(None).unpack_list(packed)
    assert "the record's fields are amount, customer" in str(caught.value)
    assert "class Slots of module tests.unit.operators.test_models" in str(caught.value)


def test_records_in_flight_of_an_earlier_version_are_read() -> None:
    """Their head has the class alone."""
    order = Order(customer="ada", amount=2)
    data = Packer(None).pack([order])
    size = int.from_bytes(data[6:10], "little")
    head = pickle.dumps(Order, 5)
    earlier = b"".join((data[:1], b"\x01", data[2:6], len(head).to_bytes(4, "little"), head, data[10 + size :]))
    assert Packer(None).unpack_list(earlier) == [order]
