"""A dictionary by identity that does not keep its keys alive."""

import gc
import weakref

from trueloop.tracing.weak_id_dict import WeakIdDict


class Thing:
    """An object that equals every other object of its class."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing)

    def __hash__(self) -> int:
        return 0


def test_objects_are_distinguished_by_identity():
    facts = WeakIdDict[Thing, str]()
    first, second = Thing(), Thing()
    assert facts.get(first) is None
    assert facts.put(first, "a") == "a"
    assert facts.get(second) is None
    facts.put(second, "b")
    facts.put(first, "c")
    assert facts.items() == [(first, "c"), (second, "b")]
    assert facts.values() == ["c", "b"]
    facts.remove(first)
    facts.remove(first)
    assert (facts.get(first), facts.get(second), len(facts)) == (None, "b", 1)


def test_a_freed_object_is_removed_with_its_value():
    facts = WeakIdDict[Thing, Thing]()
    thing, fact = Thing(), Thing()
    fact_reference = weakref.ref(fact)
    facts.put(thing, fact)
    del thing, fact
    gc.collect()
    assert (len(facts), facts.items(), fact_reference()) == (0, [], None)


def test_a_reused_address_is_another_object():
    facts = WeakIdDict[Thing, int]()
    for number in range(200):
        thing = Thing()  # as a rule where the one before was
        assert facts.get(thing) is None
        facts.put(thing, number)
        del thing
    assert len(facts) == 0


def test_objects_may_be_freed_during_iteration():
    facts, kept = WeakIdDict[Thing, int](), Thing()
    before = gc.get_threshold()
    gc.disable()
    try:
        for number in range(100):
            thing = Thing()
            thing.__dict__["own"] = thing
            facts.put(thing, number)
        facts.put(kept, 100)
        del thing
        gc.set_threshold(gc.get_count()[0] + 50)  # in the midst of them
        gc.enable()
        assert facts.items()[-1] == (kept, 100)
    finally:
        gc.set_threshold(*before)
        gc.enable()
    gc.collect()
    assert len(facts) == 1
