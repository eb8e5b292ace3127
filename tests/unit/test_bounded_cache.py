"""The bounded cache."""

import pickle

from synknumba._types import Cache


def test_drops_the_oldest():
    dropped = []
    cache = Cache(2, dropped.append)
    cache["a"], cache["b"], cache["c"] = 1, 2, 3
    assert dict(cache) == {"b": 2, "c": 3}
    assert dropped == [1]


def test_what_was_used_is_not_the_oldest():
    cache = Cache(2)
    cache["a"], cache["b"] = 1, 2
    assert cache.use("a") == 1
    assert cache.use("x") is None
    assert cache.get("b") == 2  # does not count as use
    cache["c"] = 3
    assert list(cache) == ["a", "c"]


def test_tells_what_it_drops_but_not_what_is_taken_out():
    dropped = []
    cache = Cache(3, dropped.append)
    cache["a"], cache["b"], cache["c"] = 1, 2, 3
    cache.pop("a")
    cache.drop("b")
    cache.drop("b")
    assert dropped == [2]
    cache.drop_all()
    assert dropped == [2, 3]
    assert not cache


def test_is_pickled_empty():
    cache = Cache(1)
    cache["a"] = 1
    copy = pickle.loads(pickle.dumps(cache))
    copy["b"], copy["c"] = 2, 3
    assert list(copy) == ["c"]
